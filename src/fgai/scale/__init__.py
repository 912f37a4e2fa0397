"""Graphs that do not fit: batches from a sampler, features and edges on disk, exact figures that stream."""

from fgai.scale.convert import convert, convert_edge_list, write_store
from fgai.scale.loader import Loader, exact
from fgai.scale.sampler import NeighbourSampler
from fgai.scale.store import Store

__all__ = ["Loader", "NeighbourSampler", "Store", "convert", "convert_edge_list", "exact", "write_store"]
