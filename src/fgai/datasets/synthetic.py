"""Generated graphs with labels, of any size. Results on them are always labelled as generated."""

from __future__ import annotations

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from fgai.errors import SettingError
from fgai.graph import edge_keys
from fgai.settings import check_numbers, check_seed, check_whole

ROUNDS = 200  # of drawing edges


def synthetic(
    nodes: int = 1_000,
    edges: int = 10_000,
    features: int = 32,
    classes: int = 4,
    *,
    homophily: float = 0.8,
    exponent: float = 2.5,
    signal: float = 0.5,
    seed: int = 0,
) -> Data:
    """Return a power-law community graph: undirected, no self-loops, no repeated edges; O(edges log edges) time.

    Each node has a popularity with P(d) ~ d^-exponent. The ends of an edge are drawn by popularity. Features are
    `signal` times a random direction of the community, plus unit noise.

    Args:
        nodes: Number of nodes.
        edges: Number of edges; both directions count.
        features: Number of features.
        classes: Number of communities.
        homophily: Probability that the second end of an edge is drawn from the community of the first.
        exponent: Exponent of the power law.
        signal: Strength of the features.
        seed: Random seed.

    Returns:
        The graph with `x`, `edge_index` and `y`, without masks.

    >>> data = synthetic(nodes=500, edges=4_000, seed=1)
    >>> data.num_nodes, data.num_edges, data.is_undirected(), data.has_self_loops()
    (500, 4000, True, False)
    """
    check_whole(1, nodes=nodes, classes=classes, features=features)
    check_numbers(0, homophily=homophily, exponent=exponent, signal=signal)
    check_seed(seed)
    if not 0 <= homophily <= 1 or exponent <= 1:
        raise SettingError(
            f"classes={classes}, homophily={homophily}, exponent={exponent}; give at least one class, a homophily in "
            "[0, 1] and an exponent above 1"
        )
    if edges % 2 or not 0 < edges <= nodes * (nodes - 1) // 4:
        raise SettingError(
            f"edges={edges} for nodes={nodes}; give an even number (both directions count), at most half of all pairs"
        )
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (nodes,), generator=generator)
    popularity = (
        torch.rand(nodes, generator=generator, dtype=torch.double).pow(-1.0 / (exponent - 1.0)).clamp(max=nodes**0.5)
    )
    pairs = _pairs(y, popularity, edges // 2, homophily, generator)
    centre = torch.randn(classes, features, generator=generator)
    x = signal * centre[y] + torch.randn(nodes, features, generator=generator)
    return Data(x=x, edge_index=to_undirected(pairs, num_nodes=nodes), y=y)


def synthetic_words(
    nodes: int = 1_500, edges: int = 30_000, words: int = 200, classes: int = 5, *, seed: int = 0
) -> Data:
    """Return a community graph whose features are words, 0 or 1, as in graphs of products or papers.

    Args:
        nodes: Number of nodes.
        edges: Number of edges; both directions count.
        words: Number of features. A word belongs to a community with probability 0.15. A node has a word of its
            community with probability 0.12, and any other with probability 0.02.
        classes: Number of communities.
        seed: Random seed.

    Returns:
        The graph with `x`, `edge_index` and `y`, without masks.

    >>> data = synthetic_words(nodes=300, edges=2_000, words=50)
    >>> data.x.shape, data.x.unique().tolist()
    (torch.Size([300, 50]), [0.0, 1.0])
    """
    check_whole(1, words=words)
    data = synthetic(nodes, edges, features=1, classes=classes, seed=seed)
    generator = torch.Generator().manual_seed(seed + 1)
    belongs = torch.rand(classes, words, generator=generator) < 0.15
    assert isinstance(data.y, Tensor)
    share = torch.where(belongs[data.y], 0.12, 0.02)
    data.x = (torch.rand(share.shape, generator=generator) < share).float()
    return data


def _pairs(y: Tensor, popularity: Tensor, count: int, homophily: float, generator: torch.Generator) -> Tensor:
    """Return `count` distinct pairs of nodes, [2, count], the smaller id first."""
    order = y.argsort(stable=True)  # by community, so that each is an interval of the cumulative popularity
    bounds = torch.cat([popularity.new_zeros(1), popularity[order].cumsum(0)])
    first = torch.searchsorted(y[order].contiguous(), torch.arange(int(y.max()) + 2))
    keys = torch.empty(0, dtype=torch.long)
    for _ in range(ROUNDS):
        draws = torch.rand(3, int(1.2 * (count - keys.numel())) + 64, generator=generator, dtype=torch.double)
        one = order[_position(bounds, draws[0] * bounds[-1])]
        low, high = bounds[first[y[one]]], bounds[first[y[one] + 1]]
        inside = draws[2] < homophily
        two = order[_position(bounds, torch.where(inside, low + draws[1] * (high - low), draws[1] * bounds[-1]))]
        pairs = torch.stack([torch.minimum(one, two), torch.maximum(one, two)])[:, one != two]
        keys = torch.cat([keys, edge_keys(pairs, y.numel())]).unique()
        if keys.numel() >= count:
            break
    else:
        raise SettingError(
            f"{ROUNDS} rounds gave only {2 * keys.numel()} of {2 * count} edges; ask for fewer edges, fewer classes or "
            "less homophily"
        )
    keys = keys[torch.randperm(keys.numel(), generator=generator)[:count]]
    return torch.stack([keys % y.numel(), keys // y.numel()])


def _position(bounds: Tensor, value: Tensor) -> Tensor:
    """Return the index of the interval of the cumulative popularity that holds a value."""
    return (torch.searchsorted(bounds, value, right=True) - 1).clamp_(0, bounds.numel() - 2)
