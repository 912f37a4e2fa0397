"""What the attention of a layer has an effect on, found by a change of its weights: the logits, and the next layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

from fgai.attention import Attention, explaining_sites
from fgai.graph import require
from fgai.rows import with_values
from fgai.typed import is_typed


@dataclass(frozen=True)
class SiteEffects:
    """The sites whose weights have no effect on the logits, and those on which the site before has no effect."""

    idle: frozenset[str] = frozenset()
    parallel: frozenset[str] = frozenset()

    def mark(self, sites: Mapping[str, Attention]) -> dict[str, Attention]:
        """Return the attention by site, with its marks."""
        return {
            site: replace(attention, idle=site in self.idle, parallel=site in self.parallel)
            for site, attention in sites.items()
        }


def site_effects(read: Any, graph: Any, reading: Any) -> SiteEffects:
    """Return which sites are idle and which are parallel: one forward pass for each of several sites.

    Args:
        read: The reader of the model.
        graph: The graph.
        reading: The reading of the graph.
    """
    sites = [site for site, attention in reading.attention.items() if len(attention.weight)]
    if len(sites) < 2 or is_typed(graph):  # the relations of a typed graph are joined
        return SiteEffects()

    def changed(name: str) -> Any:
        return read(graph, edit=lambda site, a: a.weight + _noise(a.weight) if site == name else a.weight)

    after = {site: changed(site) for site in sites}
    idle = frozenset(site for site in sites if torch.equal(after[site].logits, reading.logits))
    chain = [site for site in explaining_sites(SiteEffects(idle).mark(reading.attention)) if site in after]
    apart = [upper for lower, upper in pairwise(chain) if _same_at(upper, after[lower], reading)]
    if apart and isinstance(graph, Data) and isinstance(graph.get("x"), Tensor):
        shifted = read(_with_other_features(graph))  # weights that features do not change tell nothing of the order
        apart = [site for site in apart if not _same_at(site, shifted, reading)]
    return SiteEffects(idle, frozenset(apart))


def _same_at(site: str, one: Any, other: Any) -> bool:
    """Return whether two readings have the same attention at a site."""
    first, second = one.attention[site], other.attention[site]
    return torch.equal(first.edge_index, second.edge_index) and all(
        torch.equal(a, b) for a, b in ((first.weight, second.weight), (first.score, second.score)) if a is not None
    )


def _with_other_features(graph: Data) -> Data:
    other, x = copy.copy(graph), require(graph, "x")
    if x.is_sparse:
        x = x.coalesce()
        other.x = with_values(x, _other_rows(x.values()))
    else:
        other.x = _other_rows(x)
    return other


def _other_rows(values: Tensor) -> Tensor:
    """Return values with noise. Of ids and types, which must exist, each row becomes the next different one."""
    if values.is_floating_point() or values.is_complex() or not values.numel():
        return values + _noise(values)
    rows, kind = values.unique(dim=0, return_inverse=True)
    return rows[(kind + 1) % len(rows)]


def _noise(values: Tensor) -> Tensor:
    return torch.rand(values.shape, generator=torch.Generator().manual_seed(0)).to(values)
