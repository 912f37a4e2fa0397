"""The paper's three models as plain PyG modules."""

from fgai.backbones.base import BACKBONES, Backbone, build
from fgai.backbones.encodings import laplacian_encodings
from fgai.backbones.gat import GAT, GATv2
from fgai.backbones.gt import GT

__all__ = ["BACKBONES", "GAT", "GT", "Backbone", "GATv2", "build", "laplacian_encodings"]
