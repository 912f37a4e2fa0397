"""Reference models of the paper, as plain PyG modules."""

from fgai.backbones.base import BACKBONES, Backbone, build, shape_for
from fgai.backbones.gat import GAT, GATLinks, GATv2, GATv2Links
from fgai.backbones.gt import GT, laplacian_encodings

__all__ = [
    "BACKBONES",
    "GAT",
    "GT",
    "Backbone",
    "GATLinks",
    "GATv2",
    "GATv2Links",
    "build",
    "laplacian_encodings",
    "shape_for",
]
