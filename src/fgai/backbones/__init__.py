"""Reference models, as plain PyG modules: those of the paper, and two robust ones."""

from fgai.backbones.base import BACKBONES, Backbone, build, shape_for
from fgai.backbones.gat import GAT, GATLinks, GATv2, GATv2Links
from fgai.backbones.gat_norm import GATNorm
from fgai.backbones.graphs import GATGraphs, GATv2Graphs, GPSGraphs
from fgai.backbones.gt import GT, laplacian_encodings
from fgai.backbones.soft_median import SoftMedianConv, SoftMedianGCN

__all__ = [
    "BACKBONES",
    "GAT",
    "GT",
    "Backbone",
    "GATGraphs",
    "GATLinks",
    "GATNorm",
    "GATv2",
    "GATv2Graphs",
    "GATv2Links",
    "GPSGraphs",
    "SoftMedianConv",
    "SoftMedianGCN",
    "build",
    "laplacian_encodings",
    "shape_for",
]
