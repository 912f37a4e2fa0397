"""Votes over hashed links: a classifier that a few changed links cannot move, for any model of a graph.

Every link {a, b} belongs to one of T groups, h(min(a, b), max(a, b), key) mod T. The model answers T times, each time
with the links of one group and all the nodes; the class with most votes is the answer, the lowest of those that tie.

Statement. Let n_c be the votes for class c at an item, and c* its answer. No change of e links moves the answer while

    n_c* - n_c > 2 e          for every class c < c*  (a tie would go to c)
    n_c* - n_c >= 2 e         for every class c > c*  (a tie would go to c*)

Proof. The group of a link depends on its two ends and the key alone: not on other links, on features, or on how many
nodes there are. So adding, removing or altering a link, in any direction, changes the graph of one group. After e
changes at least T - e groups have, on the old nodes, the links they had. New nodes may be linked to each other in such
a group, but not to an old node, and the model's answer for an item depends on what links lead to alone (`is_local`
tests this). So these groups vote as before, and at most e votes change. A changed vote lowers n_c* by at
most 1 and raises n_c by at most 1: the gap falls by at most 2 e. It stays positive, or is 0 where ties go to c*. QED

The key need not be secret: the statement holds for an attacker who knows it. Self-loops of the data are links, and are
hashed as such: kept in every group, one added self-loop would change T votes. Self-loops that a layer adds by itself
are in every group; they are no links of the data, so nobody can change them.

Rounding: adding nodes or links changes the order of sums, hence last digits. A vote whose best logits lie closer than
`ROUNDING` counts as if the attacker owned it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.acceleration import accelerated
from fgai.adversaries.gains import binary_logits
from fgai.errors import SettingError
from fgai.graph import add_nodes, delete_edges, require
from fgai.reading import Call, Reading, call_by_signature, eval_mode

ROUNDING = 1e-5  # of the largest logit of an item
KEY = 0x66676169  # any number; the statement holds for each
GIVEN = ("x", "edge_index", "edge_attr", "edge_weight", "edge_type", "edge_label_index", "n_id")


def link_groups(edge_index: Tensor, groups: int, key: int = KEY) -> Tensor:
    """The group of every link, by its two ends in either order: splitmix64 in wrapping 64-bit integers; [2, E] -> [E].

    >>> link_groups(torch.tensor([[0, 3, 1], [3, 0, 2]]), groups=7)
    tensor([6, 6, 2])
    """
    first, second = edge_index.amin(0), edge_index.amax(0)
    start = _mix(torch.full_like(first, _signed(key)))
    return (_mix(_mix(start + first) + second) & _signed(2**63 - 1)) % groups


@dataclass(frozen=True)
class Votes:
    """How T graphs answered for every item; `sure` leaves out what rounding decides, `possible` includes it."""

    count: Tensor  # [N, C]
    sure: Tensor  # [N, C], votes that rounding cannot take from this class
    possible: Tensor  # [N, C], votes that rounding could give to this class

    @property
    def answer(self) -> Tensor:
        """The class with most votes, the lowest of those that tie; [N]."""
        return self.count.argmax(1)

    @property
    def budget(self) -> Tensor:
        """The most links that anybody can change without moving the answer; [N].

        >>> count = torch.tensor([[5, 1, 1], [3, 4, 0]])
        >>> Votes(count, count, count).budget
        tensor([2, 0])
        """
        own = self.answer[:, None]
        lower = torch.arange(self.count.size(1), device=own.device) < own  # classes that would win a tie
        gap = self.sure.gather(1, own) - self.possible - lower.long()
        rivals = gap.scatter(1, own, torch.iinfo(gap.dtype).max)
        return (rivals.amin(1) // 2).clamp(0, int(self.count[0].sum()) if len(own) else 0)


class Voted(nn.Module):
    """A model that answers by the votes of `groups` graphs, each with a share of the links.

    It is called as the model is, further inputs by keyword. It returns log((votes + 1/2) / (groups + classes / 2)): its
    softmax is the share of the votes, its argmax the certified answer. In batches give `n_id`, the nodes' numbers in
    the whole graph, by which links are hashed. Inputs that are computed from the graph, such as positional encodings,
    would change with every link; name them in `fixed` if they are computed once and kept, else they are refused.

    Cost: the edge part of one forward pass, and the part of the nodes (linear layers) `groups` times.

    >>> from torch_geometric.nn import GATConv
    >>> voted = Voted(GATConv(3, 2), groups=5)
    >>> x, edge_index = torch.eye(3), torch.tensor([[0, 1], [2, 2]])
    >>> voted(x, edge_index).exp().sum(1)
    tensor([1., 1., 1.])
    """

    def __init__(self, model: nn.Module, groups: int = 11, key: int = KEY, fixed: tuple[str, ...] = ()) -> None:
        super().__init__()
        if groups < 1:
            raise SettingError(f"groups is {groups}; give at least one, e.g. 11")
        if any(getattr(module, "cached", False) for module in model.modules()):
            raise SettingError(
                f"{type(model).__name__} keeps the normalised links of the first graph it sees (cached=True), "
                "and votes show it several graphs; build it with cached=False"
            )
        self.model, self.groups, self.key, self.fixed = model, groups, key, fixed

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """Log vote shares; [N, F], [2, E] -> [N, C]."""
        data = Data(x=x, edge_index=edge_index, num_nodes=x.size(0), **inputs)
        if n_id is not None:
            data.n_id = n_id
        count = self.votes(data).count.to(x.dtype)
        return ((count + 0.5) / (self.groups + count.size(1) / 2)).log()

    @torch.no_grad()
    def votes(self, data: Data, call: Call | None = None) -> Votes:
        """The votes on a graph; `call` says how the model is called, as for `fgai.read`."""
        self._accept(data, call)
        with eval_mode(self.model), accelerated(self.model):
            answers = [self._vote(call, part) for part in self.graphs(data)]
        count, sure, possible = (torch.stack(parts).sum(0) for parts in zip(*answers, strict=True))
        return Votes(count, sure, possible)

    def graphs(self, data: Data) -> Iterator[Data]:
        """The graph of every group: all nodes, and the links that belong to it."""
        edge_index, n_id = require(data, "edge_index"), data.get("n_id")
        ends = edge_index if n_id is None else n_id[edge_index]
        group = link_groups(ends, self.groups, self.key)
        for number in range(self.groups):
            yield delete_edges(data, group != number)

    def calibrate(self, data: Data, links: int = 5, groups: tuple[int, ...] = (5, 11, 25, 51)) -> Voted:
        """The same with the number of groups that certifies most right answers of `val_mask` against `links` links.

        The attack comes after this choice: choose on a graph that you trust.
        """
        known, label = require(data, "val_mask"), require(data, "y")

        def score(voted: Voted) -> tuple[int, int]:
            votes = voted.votes(data)
            right = (votes.answer == label) & known
            return int((right & (votes.budget >= links)).sum()), int(right.sum())

        return max((Voted(self.model, count, self.key, self.fixed) for count in groups), key=score)

    def _vote(self, call: Call | None, part: Data) -> tuple[Tensor, Tensor, Tensor]:
        logits = binary_logits(Reading((call or call_by_signature)(self.model, part), {}))
        best = logits.amax(1, keepdim=True)
        near = logits >= best - ROUNDING * logits.abs().amax(1, keepdim=True).clamp(min=1e-30)
        own = nn.functional.one_hot(logits.argmax(1), logits.size(1))
        return own, own * (near.sum(1, keepdim=True) == 1), near.long()

    def _accept(self, data: Data, call: Call | None) -> None:
        """Refuse inputs of nodes that may have been computed from the graph."""
        names = [name for name in data.keys() if data.is_node_attr(name) and not _known(name)]  # noqa: SIM118, no dict
        if call is None and not _takes_graph(self.model):
            taken = inspect.signature(self.model.forward).parameters
            names = [name for name in names if name in taken]
        if unknown := [name for name in names if name not in self.fixed]:
            raise SettingError(
                f"{type(self.model).__name__} reads {unknown}; if they are computed from the links, every link changes "
                f"all of them and no vote is safe. If they are computed once and kept, say fixed={tuple(unknown)}"
            )


def is_local(voted: Voted, data: Data, call: Call | None = None) -> bool:
    """Whether answers stay when two nodes are added that are linked to each other only; norms over all nodes fail.

    This is a test with one example, no proof: it finds models whose answers depend on all nodes.
    """
    x = require(data, "x")
    low, high = (float(end) for end in (x.to_dense().aminmax() if x.is_sparse else x.aminmax()))
    far = torch.tensor([[low - 1.0], [high + 1.0]], dtype=x.dtype, device=x.device).expand(2, x.size(1))
    new = torch.tensor([[0, 1], [1, 0]], device=x.device) + x.size(0)
    ask = call or call_by_signature
    with torch.no_grad(), eval_mode(voted.model):
        before = ask(voted.model, part := next(voted.graphs(data)))
        after = ask(voted.model, add_nodes(part, far, new))[: len(before)]
    return bool((before - after).abs().max() <= 1e-4 * before.abs().max().clamp(min=1e-30))


def _known(name: str) -> bool:
    return name in GIVEN or name == "y" or name.endswith("_mask")


def _takes_graph(model: nn.Module) -> bool:
    first: Any = next(iter(inspect.signature(model.forward).parameters.values()), None)
    return first is not None and first.name in ("data", "graph")


def _mix(x: Tensor) -> Tensor:
    """The step of splitmix64; products wrap, shifts fill with zeros."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shifted(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shifted(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shifted(x, 31)


def _shifted(x: Tensor, bits: int) -> Tensor:
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """A number modulo 2^64, as a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63
