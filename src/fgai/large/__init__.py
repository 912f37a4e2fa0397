"""Graphs that do not fit: batches from a sampler, features and edges on disk, exact figures that stream."""

from fgai.large.convert import convert, convert_edge_list, write_store
from fgai.large.layerwise import layerwise
from fgai.large.loader import Loader, full_neighbour_loader
from fgai.large.sampler import NeighbourSampler
from fgai.large.store import DiskGraph
from fgai.large.streaming import BatchAudit, BatchReading, audit_batches, certify_batches, concat, readings

__all__ = [
    "BatchAudit",
    "BatchReading",
    "DiskGraph",
    "Loader",
    "NeighbourSampler",
    "audit_batches",
    "certify_batches",
    "concat",
    "convert",
    "convert_edge_list",
    "full_neighbour_loader",
    "layerwise",
    "readings",
    "write_store",
]
