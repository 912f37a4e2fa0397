"""What hypothesis draws: small graphs, and vectors along edges, in which every rare thing is common.

Few nodes and many edges make repeated edges, self-loops, isolated nodes and empty neighbourhoods; weights
that are multiples of 1/8 tie often and add up without rounding.
"""

import random
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from fgai.attention import Attention

DTYPES = st.sampled_from([torch.float32, torch.float64])
HEADS = st.integers(1, 3)
KS = st.one_of(st.integers(1, 6), st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0]))
ROUNDING = {torch.float32: 2e-6, torch.float64: 1e-12}


def edge_index(pairs):
    """[(source, target), ...] -> [2, E]"""
    return torch.tensor(pairs, dtype=torch.long).reshape(-1, 2).t().contiguous()


def edge_lists(nodes, max_size=14):
    """Lists of (source, target), repeated edges and self-loops among them."""
    end = st.integers(0, nodes - 1)
    return st.lists(st.tuples(end, end), max_size=max_size)


@st.composite
def eighths(draw, *shape, high=8, dtype=None):
    """A tensor of multiples of 1/8."""
    count = int(np.prod(shape))
    whole = draw(st.lists(st.integers(0, high), min_size=count, max_size=count))
    return torch.tensor(whole, dtype=dtype or draw(DTYPES)).reshape(shape) / 8


@st.composite
def attentions(draw, max_nodes=6):
    """Weights that are multiples of 1/8, on any edges; the last node is always isolated."""
    nodes = draw(st.integers(1, max_nodes))
    pairs = draw(edge_lists(nodes))
    weight = draw(eighths(len(pairs), draw(HEADS)))
    return Attention(weight, edge_index(pairs), nodes + 1, score=weight.clone())


@st.composite
def normalised_attentions(draw):
    """Weights, some of them zero, that sum to one over the edges of each target."""
    attention = draw(attentions())
    weight = attention.weight.double().numpy().copy()
    for node in range(attention.num_targets):
        rows = attention.target.numpy() == node
        weight[rows] += weight[rows].sum(0) == 0
        weight[rows] /= weight[rows].sum(0)
    return replace(attention, weight=torch.from_numpy(weight).to(attention.weight.dtype), score=None)


@st.composite
def shuffles(draw, attention):
    """The same attention with its edges in another order."""
    order = list(range(attention.edge_index.size(1)))
    random.Random(draw(st.integers(0, 999))).shuffle(order)
    return replace(attention, weight=attention.weight[order], edge_index=attention.edge_index[:, order], score=None)


@st.composite
def vector_pairs(draw, whole_graph=False):
    """(weight, other, index, num): two sets of `num` vectors, some empty, [E] or [E, H]."""
    num = 1 if whole_graph else draw(st.integers(1, 5))
    index = draw(st.lists(st.integers(0, 0 if whole_graph else num - 1), max_size=14))
    shape = (len(index),) if draw(st.booleans()) else (len(index), draw(HEADS))
    weight, other = draw(eighths(2, *shape, high=4))
    return weight, other, torch.tensor(index, dtype=torch.long), num + (not whole_graph)


@st.composite
def distribution_pairs(draw):
    """Two arrays [rows, classes] in float64 whose rows are distributions, zeros among their entries."""
    rows, classes = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    both = draw(eighths(2, rows, classes, dtype=torch.float64)).numpy()
    both[..., 0] += both.sum(-1) == 0
    return both / both.sum(-1, keepdims=True)


def generators():
    """The state of the three global random generators, to be compared before and after."""
    legacy = np.random.get_state(legacy=False)
    return random.getstate(), str(legacy), legacy["state"]["key"].tobytes(), torch.get_rng_state().tolist()
