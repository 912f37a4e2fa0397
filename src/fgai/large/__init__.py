"""Graphs larger than memory: sampled batches, features and edges on disk, and exact readings batch by batch."""

from fgai.large.convert import convert, convert_arrays, write_store
from fgai.large.graph_loader import GraphLoader
from fgai.large.layerwise import exact_loader, layerwise_readings
from fgai.large.loader import Loader, full_neighbour_loader
from fgai.large.sampler import NeighbourSampler
from fgai.large.store import DiskGraph
from fgai.large.streaming import (
    BatchAudit,
    BatchReading,
    audit_batches,
    batch_readings,
    certify_batches,
    concat_readings,
)
from fgai.large.tables import convert_tables

__all__ = [
    "BatchAudit",
    "BatchReading",
    "DiskGraph",
    "GraphLoader",
    "Loader",
    "NeighbourSampler",
    "audit_batches",
    "batch_readings",
    "certify_batches",
    "concat_readings",
    "convert",
    "convert_arrays",
    "convert_tables",
    "exact_loader",
    "full_neighbour_loader",
    "layerwise_readings",
    "write_store",
]
