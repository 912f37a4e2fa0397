"""Votes over hashed links: a classifier whose predictions a few changed links cannot change, for any model.

Each link {a, b} belongs to one of T groups, h(min(a, b), max(a, b), key) mod T. The model predicts T times, each time
with all nodes and the links of one group. The class with most votes is the prediction; of tied classes, the lowest.

Statement. Let n_c be the votes for class c at an item, and c* its prediction. No change of e links changes it if

    n_c* - n_c > 2 e          for every class c < c*  (a tie would go to c)
    n_c* - n_c >= 2 e         for every class c > c*  (a tie would go to c*)

Proof. The group of a link depends on its two ends and the key only: not on other links, on features, or on the number
of nodes; in a typed graph an end is a type and a number within it. So adding, removing or altering a link, in any
direction, changes the graph of one group. After e changes at least T - e groups have the same links among old nodes as
before. In such a group, new nodes may be linked to each other but not to an old node, and the logits of an item depend
only on nodes that links lead to (`is_local` tests this). So these groups vote as before, and at most e votes change. A
changed vote lowers n_c* by at most 1 and raises n_c by at most 1, so the gap decreases by at most 2 e. It stays
positive, or is 0 where ties go to c*. QED

The key need not be secret: the statement holds for an attacker who knows it. Self-loops of the data are links and are
hashed like other links; if they were in all groups, one added self-loop would change T votes. Self-loops that a layer
adds itself are in all groups. They are not links of the data, so no attacker can change them.

Rounding: more nodes or links change the order of sums, and so the last digits of logits. A vote whose two best logits
differ by less than `fgai.certificates.rounding` allows, relative to the largest, is counted for the attacker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.adjacency import adjacencies_of
from fgai.adversaries.gains import binary_logits
from fgai.adversaries.typed import separate_pairs
from fgai.calling import Call, call_model, forward_parameters, takes_graph
from fgai.certificates.chain import class_logits
from fgai.certificates.linked import logits_of_parts
from fgai.certificates.rounding import precisions, rounding
from fgai.checks import one_graph, refuse_cached
from fgai.errors import SettingError
from fgai.graph import add_nodes, delete_edges, require, without_edges
from fgai.modes import eval_mode
from fgai.printing import short_repr
from fgai.reading import Reading
from fgai.settings import check_whole
from fgai.typed import is_typed, places

MAX_GROUPS = 1_000  # each is a pass over all nodes
KEY = 0x66676169  # any number; the statement holds for each
CHUNK = 2**15  # links that are hashed at once, so that they fit into the cache of the processor
KNOWN_INPUTS = (
    "x", "edge_index", "edge_attr", "edge_weight", "edge_type", "node_type", "edge_label", "edge_label_index", "n_id",
    "e_id", "input_id", "batch", "ptr",
)  # fmt: skip
TYPE = 2**40  # more than the nodes of a type
SCALES = (1.0, 1e3, 1e6)  # of the range of the features, for the nodes that `is_local` adds
FAR_ENTRIES = 2**22  # of the features of these nodes
UNCHANGED = 1e-4  # of the logits of an item: `is_local` takes less for rounding


def link_groups(edge_index: Tensor, groups: int, key: int = KEY) -> Tensor:
    """Return the group of each link, by splitmix64 of its two ends in either order; [2, E] -> [E].

    >>> link_groups(torch.tensor([[0, 3, 1], [3, 0, 2]]), groups=7)
    tensor([6, 6, 2])
    """
    start = _mix(torch.tensor(_signed(key), device=edge_index.device))
    parts = edge_index.long().split(CHUNK, dim=1)
    return torch.cat([_group(torch.minimum(*part), torch.maximum(*part), start, groups) for part in parts])


@dataclass(frozen=True)
class Votes:
    """Votes of T graphs for each item. Votes that rounding decides are not in `sure`, and are in `possible`."""

    count: Tensor  # [N, C]
    sure: Tensor  # [N, C], votes that rounding cannot take from this class
    possible: Tensor  # [N, C], votes that rounding could give to this class

    __repr__ = short_repr

    def __add__(self, other: Votes) -> Votes:
        """Return the votes of both."""
        return Votes(self.count + other.count, self.sure + other.sure, self.possible + other.possible)

    @property
    def prediction(self) -> Tensor:
        """The class with most votes; of tied classes, the lowest; [N]."""
        return self.count.argmax(1)

    @property
    def budget(self) -> Tensor:
        """The number of links that can change, whichever they are, without a change of the prediction; [N].

        >>> count = torch.tensor([[5, 1, 1], [3, 4, 0]])
        >>> Votes(count, count, count).budget
        tensor([2, 0])
        """
        own = self.prediction[:, None]
        lower = torch.arange(self.count.size(1), device=own.device) < own  # classes that would win a tie
        gap = self.sure.gather(1, own) - self.possible - lower.long()
        rivals = gap.scatter(1, own, torch.iinfo(gap.dtype).max)
        return (rivals.amin(1) // 2).clamp(0, int(self.count[0].sum()) if len(own) else 0)


class Voted(nn.Module):
    """A model that predicts by the votes of `groups` graphs, each with a part of the links.

    It is called like the model, with further inputs by keyword. For C classes it returns log((votes + 1/2) / (groups +
    C/2)): the softmax is the smoothed share of the votes, the argmax the certified prediction. In a batch, `n_id` must
    contain the node numbers in the full graph, which are hashed. A call costs the edge part of one forward pass, and
    the node part (linear layers) once for each group in which a node has a link (see `fgai.certificates.linked`).

    Args:
        model: A model with or without attention.
        groups: Number of graphs that vote.
        key: Key of the hash, a whole number; it need not be secret.
        fixed: Names of inputs that are computed once and not again when links change. Inputs such as positional
            encodings or a second list of edges are refused otherwise, because each link could change all of them.
            Features `x` and the `edge_attr` or `edge_weight` of a link are not refused: they must not depend on other
            links. Weights of a normalised adjacency do (`GCNNorm`); let the layer normalise instead.

    Raises:
        SettingError: A setting is invalid, or the model caches the links of its first graph.

    >>> from torch_geometric.nn import GATConv
    >>> voted = Voted(GATConv(3, 2), groups=5)
    >>> x, edge_index = torch.eye(3), torch.tensor([[0, 1], [2, 2]])
    >>> voted(x, edge_index).exp().sum(1)
    tensor([1., 1., 1.])
    """

    def __init__(self, model: nn.Module, groups: int = 11, key: int = KEY, fixed: tuple[str, ...] = ()) -> None:
        super().__init__()
        check_whole(1, MAX_GROUPS, groups=groups)
        check_whole(0, key=key)
        refuse_cached(model)
        self.model, self.groups, self.key, self.fixed = model, groups, key, fixed

    def forward(self, x: Tensor, edge_index: Tensor, n_id: Tensor | None = None, **inputs: Tensor) -> Tensor:
        """Return the logarithms of the vote shares; [N, F], [2, E] -> [N, C]."""
        data = Data(x=x, edge_index=edge_index, num_nodes=x.size(0), **inputs)
        if n_id is not None:
            data.n_id = n_id
        count = self.votes(data).count.to(torch.promote_types(x.dtype, torch.float32))  # half would round counts
        return ((count + 0.5) / (self.groups + count.size(1) / 2)).log()

    @torch.no_grad()
    def votes(self, data: Data, call: Call | None = None) -> Votes:
        """Return the votes on a graph.

        Args:
            data: The graph.
            call: How to call the model, see `fgai.Reader`.

        Returns:
            The votes for each node or pair.

        Raises:
            SettingError: The model takes inputs that may be computed from the links.
            CallError: The model cannot be called on the graph, or does not return logits.
        """
        self._check_inputs(data, call)
        bare = without_edges(data)
        share = rounding(*precisions(self.model, require(data, "x")))
        logits = logits_of_parts(self.model, bare, self.graphs(data), call)
        return reduce(add, (_vote(part, share) for part in logits))

    def graphs(self, data: Data) -> Iterator[Data]:
        """Yield the graph of each group: all nodes, and the links of the group."""
        group = link_groups(_hashed_ends(data), self.groups, self.key)
        for number in range(self.groups):
            yield delete_edges(data, group != number)

    def calibrate(
        self, data: Data, links: int = 5, groups: Sequence[int] = (5, 11, 25, 51), call: Call | None = None
    ) -> Voted:
        """Return a voted model with the number of groups that certifies most correct predictions in `val_mask`.

        Of equal ones the more accurate, then the first. Labels outside `val_mask` are not used. The choice must
        precede the attack, so the graph must not be attacked.

        Args:
            data: A graph with `y` and `val_mask`.
            links: Number of changed links to certify against.
            groups: The numbers of groups to choose from.
            call: How to call the model, see `fgai.Reader`.

        Returns:
            The same model with the best number of groups.

        Raises:
            SettingError: `groups` is empty, has a number below 1, or there is no validation node.
            DataError: The graph has no `y` or no `val_mask`.
        """
        check_whole(0, links=links)
        data = one_graph(data, masks=("val_mask",))
        val_mask, label = require(data, "val_mask"), require(data, "y")
        if not groups or not bool(val_mask.any()):
            raise SettingError(f"groups={tuple(groups)}, {int(val_mask.sum())} validation nodes; give at least one")

        def score(voted: Voted) -> tuple[int, int]:
            votes = voted.votes(data, call)
            right = (votes.prediction == label)[val_mask]
            return int((right & (votes.budget >= links)[val_mask]).sum()), int(right.sum())

        return max((Voted(self.model, count, self.key, self.fixed) for count in groups), key=score)

    def _check_inputs(self, data: Data, call: Call | None) -> None:
        """Refuse inputs that may be computed from the links."""
        names = [name for name, value in data.to_dict().items() if isinstance(value, Tensor | dict)]
        if call is None and not takes_graph(self.model):
            names = [name for name in names if name in forward_parameters(self.model)]
        known = {*self.fixed, *adjacencies_of(data)}
        if unknown := [name for name in names if name not in known and not _is_known(name)]:
            raise SettingError(
                f"{type(self.model).__name__} reads {unknown}; if they are computed from the links, each link changes "
                f"all of them and no vote is safe. If they are computed once only, give fixed={tuple(unknown)}"
            )


def is_local(voted: Voted, data: Data, call: Call | None = None) -> bool:
    """Return whether the logits are the same after many nodes are added that are linked in pairs, to each other only.

    Their features are random, inside and far outside the range of the features. Of a typed graph, there are pairs for
    each relation. It is False for models with a norm over all nodes or a virtual node. This is a test on one example,
    and not a proof.
    """
    x = require(data, "x")
    pairs = min(x.size(0), FAR_ENTRIES // max(1, x.size(1))) // 2
    relations = len(data["typed"].edge_types) if is_typed(data) else 1
    copies = max(len(SCALES), pairs // max(1, relations))
    new, types = separate_pairs(data, copies)
    part = next(voted.graphs(data))
    before = class_logits(voted.model, part, call)
    far = add_nodes(part, _far_rows(x, 2 * copies * relations), new, **types)
    with eval_mode(voted.model), torch.no_grad():  # logits of the new nodes need not be finite
        after = binary_logits(Reading(call_model(voted.model, far, call)[: len(before)], {}))
    size = before.abs().amax(1)
    allowed = rounding(*precisions(voted.model, x), least=UNCHANGED) * torch.maximum(size, size.median())
    return bool(((before - after).abs().amax(1) <= allowed).all())


def _far_rows(x: Tensor, rows: int) -> Tensor:
    """Return random features, each two rows at one of `SCALES`, more above the range of the features than below."""
    low, high = (float(end) for end in (x.coalesce().values() if x.is_sparse else x).aminmax())
    low, high = (min(low, 0.0), max(high, 0.0)) if x.is_sparse else (low, high)
    scale = torch.tensor(SCALES).repeat_interleave(2).repeat(rows // 2)[:rows, None]
    place = torch.rand(rows, x.size(1), generator=torch.Generator().manual_seed(0))
    largest = min(torch.finfo(one).max for one in (x.dtype, place.dtype) if one.is_floating_point) / 4
    return (low + (high - low or 1.0) * scale * (3 * place - 1)).clamp(-largest, largest).to(x)


def _hashed_ends(data: Data) -> Tensor:
    """Return the two ends of each link by numbers that added nodes do not change; [2, E]."""
    edge_index, n_id = require(data, "edge_index"), data.get("n_id")
    if is_typed(data):
        kinds = require(data, "node_type")
        return (TYPE * kinds + places(kinds))[edge_index]
    return edge_index if n_id is None else n_id[edge_index]


def _group(first: Tensor, second: Tensor, start: Tensor, groups: int) -> Tensor:
    """Return the group of each pair of ends in a fixed order; [B]."""
    return (_mix(_mix(start + first) + second) & _signed(2**63 - 1)) % groups


def _vote(logits: Tensor, share: float) -> Votes:
    """Return the votes of one graph; less than this share of the largest logit is rounding."""
    best = logits.amax(1, keepdim=True)
    near = logits >= best - share * logits.abs().amax(1, keepdim=True).clamp(min=1e-30)
    own = nn.functional.one_hot(logits.argmax(1), logits.size(1))
    return Votes(own, own * (near.sum(1, keepdim=True) == 1), near.long())


def _is_known(name: str) -> bool:
    """Return whether an input does not depend on the links: features, edges, labels and masks."""
    return name in KNOWN_INPUTS or name == "y" or name.endswith("_mask")


def _mix(x: Tensor) -> Tensor:
    """Apply the step of splitmix64: products wrap, shifts fill with zeros."""
    x = x + _signed(0x9E3779B97F4A7C15)
    x = (x ^ _shift_right(x, 30)) * _signed(0xBF58476D1CE4E5B9)
    x = (x ^ _shift_right(x, 27)) * _signed(0x94D049BB133111EB)
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Return a number modulo 2^64 as a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63
