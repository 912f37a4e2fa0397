"""Graphs that do not fit: batches from a sampler, features and edges on disk, exact figures that stream."""

from fgai.scale.convert import convert, convert_edge_list, write_store
from fgai.scale.judging import BatchAudit, audit_batches, certify_batches
from fgai.scale.layerwise import layerwise
from fgai.scale.loader import Loader, exact
from fgai.scale.reading import Seen, joined, readings
from fgai.scale.sampler import NeighbourSampler
from fgai.scale.store import Store

__all__ = [
    "BatchAudit",
    "Loader",
    "NeighbourSampler",
    "Seen",
    "Store",
    "audit_batches",
    "certify_batches",
    "convert",
    "convert_edge_list",
    "exact",
    "joined",
    "layerwise",
    "readings",
    "write_store",
]
