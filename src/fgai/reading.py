"""Reads the logits and the attention of a model on a graph.

Modules above this one read a model with `open_reader`, or with `training_reader` while it trains. They do not use the
tap or the kernels, and do not switch a model to evaluation mode to read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai.attending import attention_not_read
from fgai.attention import Attention, explaining_sites
from fgai.calling import Call, Graph, call_by_signature, call_model, check_model
from fgai.checks import check_attention, check_graph, check_logits, expected_rows, refuse_cached
from fgai.explanations import Attribution, Edge, Explanation, NodeExplanation, class_probs, explain_node, resolve
from fgai.items import Items, graph_of_nodes, items_of
from fgai.kernels.pyg import accelerated
from fgai.kernels.trim import Trim
from fgai.modes import eval_mode, frozen_params, statistics_mode, updating_layers
from fgai.printing import short_repr
from fgai.recording import NOTHING, Deltas, Edit
from fgai.relations import model_input
from fgai.site_effects import SiteEffects, site_effects
from fgai.tap import Tap
from fgai.typed import has_answer, join


@dataclass(frozen=True)
class Reading:
    """The logits and the attention of a model on one graph.

    Args:
        logits: The output of the model, [N, C]; [N, 1] or [N] for binary classification. A row per item.
        attention: The attention by site, in the order of execution.
        unread: The names of modules whose attention cannot be read.
        items: What the rows of the logits are for: nodes, pairs or graphs; None if the graph is not known.
    """

    logits: Tensor  # [N, C]
    attention: Mapping[str, Attention]
    unread: tuple[str, ...] = field(default=(), kw_only=True)
    items: Items | None = field(default=None, kw_only=True)

    __repr__ = short_repr

    @property
    def probs(self) -> Tensor:
        """Predicted class probabilities: the softmax, or the sigmoid of a single logit as two columns; [N, C]."""
        return class_probs(self.logits)

    @property
    def explanation(self) -> Attention:
        """The attention of the last layer over edges, which the paper calls the explanation.

        Without such a layer, it is the last one over all pairs of nodes, or the last one that pools nodes.
        """
        return self.attention[explaining_sites(self.attention)[-1]]

    def attribution(
        self, explanation: str | Explanation = "tree", *, read: Reader | None = None, graph: Graph | None = None
    ) -> Attribution:
        """Return the weight of each edge for each node under an explanation.

        Args:
            explanation: `tree`, `last`, `first`, `layer:NAME`, `leave-one-out`, or a function of this reading, `read`
                and `graph` that returns an `Attribution`.
            read: The reader of the model; `leave-one-out` runs the model again.
            graph: The graph of this reading, for `leave-one-out`.

        Returns:
            The attribution. The rows of nodes are computed on demand.

        Raises:
            UnknownNameError: No explanation or attention layer has this name.
            TapError: The explanation does not exist for this model.
        """
        return resolve(explanation)(self.detach(), read, graph)

    def explain(
        self,
        node: int,
        explanation: str | Explanation = "tree",
        *,
        read: Reader | None = None,
        graph: Graph | None = None,
    ) -> NodeExplanation:
        """Return the edges that the prediction of one node depends on, with their weights.

        Args:
            node: The node.
            explanation: Name of the explanation, see `attribution`.
            read: The reader of the model, for `leave-one-out`.
            graph: The graph of this reading, for `leave-one-out`.

        Returns:
            The edges, largest weight first.

        >>> from torch_geometric.nn import GATConv
        >>> path = Data(x=torch.ones(3, 2), edge_index=torch.tensor([[0, 1], [1, 2]]))
        >>> read(GATConv(2, 2), path).explain(1).top(1)
        [Edge(source=0, target=1, weight=0.5, hop=1)]
        """
        weights = self.attribution(explanation, read=read, graph=graph)
        return explain_node(weights, node, None if self.items is None else self.items.typed)

    def top(self, node: int, k: int = 5, explanation: str | Explanation = "tree") -> list[Edge]:
        """Return the k edges with the largest weights for one node, see `explain`.

        >>> attention = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [1, 1]]), num_targets=2)
        >>> Reading(torch.zeros(2, 2), {"conv": attention}).top(1, k=1)[0].source
        0
        """
        return self.explain(node, explanation).top(k)

    def head(self, nodes: int) -> Reading:
        """Return the logits and the attention of the first nodes; in a sampled batch these are the seed nodes."""
        if nodes == len(self.logits):
            return self
        attention = {site: a.head(nodes) for site, a in self.attention.items()}
        return Reading(self.logits[:nodes], attention, unread=self.unread, items=Items("nodes", nodes))

    def detach(self) -> Reading:
        """Return the reading detached from the autograd graph."""
        attention = {site: a.detach() for site, a in self.attention.items()}
        return replace(self, logits=self.logits.detach(), attention=attention)


class Reader:
    """Reads one model on graphs, in its current training mode and without the kernels.

    `open_reader` reads a model in evaluation mode, and faster.

    Args:
        model: A model with at least one attention layer.
        call: How to call the model, `call(model, graph) -> logits`. By default the parameters of `forward` are taken
            from the graph by name (`x`, `edge_index`, `edge_attr`, ...), or the graph itself is passed to a parameter
            named `data` or `graph`.

    Raises:
        TapError: The model has no attention layer.

    >>> from torch_geometric.nn import GATConv
    >>> read = Reader(GATConv(3, 2).eval())
    >>> reading = read(Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]])))
    >>> reading.logits.shape, list(reading.attention)
    (torch.Size([2, 2]), [''])
    """

    _effects: SiteEffects | None = None  # which sites have no effect on the logits or on the next, once it is known

    def __init__(self, model: nn.Module, call: Call | None = None) -> None:
        check_model(model)
        self.model = model
        self.call = call or call_by_signature
        self._tap = Tap(model)
        self.unread = attention_not_read(model)

    def __call__(
        self, graph: Graph, *, weight_delta: Deltas = NOTHING, score_delta: Deltas = NOTHING, edit: Edit | None = None
    ) -> Reading:
        """Read the model on a graph, optionally with perturbed attention.

        Args:
            graph: The graph to call the model on.
            weight_delta: What to add to the attention weights, by site, shaped like them.
            score_delta: What to add to the attention scores, by site, shaped like them.
            edit: A function `edit(site, attention)` that returns the weights to use instead.

        Returns:
            The logits and the attention.

        Raises:
            CallError: The model cannot be called on the graph, or does not return a tensor.
        """
        given = model_input(graph, bool(weight_delta or score_delta))
        edits = weight_delta, score_delta, None if edit is None else given.edit_of_sites(edit)
        batch = graph_of_nodes(given.graph) if isinstance(given.graph, Data) else None
        with self._context(given.graph), given.watched(self.model), self._tap.open(*edits, batch) as recording:
            logits = self._call(given.graph)
        items = items_of(graph, len(logits)) if isinstance(graph, Data) else None
        attention = (self._effects or SiteEffects()).mark(given.attention(recording.attention))
        return Reading(given.logits(logits), attention, unread=(*self.unread, *recording.lost), items=items)

    def checked(self, graph: Graph, check_rows: bool = True) -> Reading:
        """Read the clean graph as `marked` does; check the logits (their number if `check_rows`) and the attention."""
        reading, name = self.marked(graph), type(self.model).__name__
        check_logits(reading.logits, name, expected_rows(graph) if check_rows else ())
        check_attention(reading.attention, name)
        return reading

    def marked(self, graph: Graph) -> Reading:
        """Read a graph without gradients; attention without effect on the logits is marked, also in later readings."""
        with torch.no_grad():
            reading = self(graph).detach()
            if self._effects is None:
                self._effects = site_effects(self, graph, reading)
        return replace(reading, attention=self._effects.mark(reading.attention))

    def logits(self, graph: Graph) -> Tensor:
        """Return the logits only, without opening the tap."""
        given = model_input(graph)
        with self._context(given.graph):
            return given.logits(self._call(given.graph))

    def _call(self, graph: Graph) -> Tensor:
        return call_model(self.model, graph, self.call)

    def _context(self, graph: Graph) -> AbstractContextManager[None]:
        """Return the context in which the model is called on a graph."""
        return nullcontext()


class _FrozenReader(Reader):
    def _context(self, graph: Graph) -> AbstractContextManager[None]:
        return frozen_params(self.model)


@contextmanager
def open_reader(model: nn.Module, call: Call | None = None) -> Iterator[Reader]:
    """Open a reader of `model` in evaluation mode and on the kernels, inside a `with` block.

    While it reads, no parameter requires a gradient. A plain read therefore records none and needs no `torch.no_grad`,
    and an attack differentiates with respect to what it adds to the graph or to the attention. Products of features
    with linear layers are computed once; a change of a parameter or feature through `.data` is not seen. When the block
    ends, the model is as it was before. Copies and pickles made inside the block have PyG's classes.

    Args:
        model: A model with at least one attention layer. Blocks of the same model can be nested.
        call: How to call the model, see `Reader`.

    Yields:
        Reader: call it with a graph.

    >>> from torch_geometric.nn import GATConv
    >>> model = GATConv(3, 2)
    >>> with open_reader(model) as read:
    ...     reading = read(Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]])))
    >>> reading.logits.requires_grad, model.training
    (False, True)
    """
    reader = _FrozenReader(model, call)
    with eval_mode(model), accelerated(model, frozen=True):
        yield reader


class TrainingReader(Reader):
    """Reads a model that trains. For a model without attention, only `logits` can be used.

    In a batch with `num_sampled_nodes` (the number of nodes per hop), layers skip edges that do not affect the logits
    of the seed nodes (`fgai.kernels.trim`). The first batch compares the seed nodes' logits with and without skipping.
    If they differ, because nodes exchange information other than through message-passing layers in sequence (as in
    the statistics of a batch norm), no edge is skipped.
    """

    def __init__(self, model: nn.Module, call: Call | None, trim: Trim) -> None:
        refuse_cached(model)
        self.model, self.call, self._trim = model, call or call_by_signature, trim
        self._trims: dict[bool, bool] = {}  # whether skipping is exact, by whether a layer updates its statistics
        self.unread = attention_not_read(model)

    @cached_property
    def _tap(self) -> Tap:  # pyright: ignore[reportIncompatibleVariableOverride], created when attention is first read
        return Tap(self.model)

    def _context(self, graph: Graph) -> AbstractContextManager[None]:
        counts = graph.get("num_sampled_nodes") if isinstance(graph, Data) else None
        if counts is None:
            return self._trim.batch(None)
        updating = bool(updating_layers(self.model))
        if updating not in self._trims:
            with statistics_mode(self.model), torch.no_grad():
                self._trims[updating] = self._trim.is_exact(lambda: self._call(graph), counts)
        return self._trim.batch(counts if self._trims[updating] else None)


@contextmanager
def training_reader(model: nn.Module, call: Call | None = None) -> Iterator[TrainingReader]:
    """Open a reader of a model that trains, inside a `with` block. Gradients reach the parameters.

    The training mode of the model does not change. The kernels may sort edges and sample cheaper dropout masks
    (`accelerated(model, exact=False)`). In a sampled batch only the seed nodes are read, see `TrainingReader`.
    """
    with accelerated(model, exact=False) as trim:
        yield TrainingReader(model, call, trim)


def read(model: nn.Module, graph: Graph, call: Call | None = None) -> Reading:
    """Return the logits and the attention of `model` on `graph`, in evaluation mode and without gradients.

    Args:
        model: A model with at least one attention layer.
        graph: A `Data` or `HeteroData`.
        call: How to call the model, see `Reader`.

    Returns:
        The logits and the attention by site.

    Raises:
        DataError: The graph is invalid, or the model attends over none of its edges.
        TapError: The model has no attention layer.
        CallError: The model cannot be called on the graph, or does not return logits.
        NotFiniteError: A feature, a logit or an attention weight is not finite.

    >>> from torch_geometric.nn import GATConv
    >>> graph = Data(x=torch.ones(2, 3), edge_index=torch.tensor([[0], [1]]))
    >>> read(GATConv(3, 2), graph).explanation.weight.sum(0)
    tensor([2.])
    """
    check_graph(graph)
    with open_reader(model, call) as reader:
        return reader.checked(join(graph) if has_answer(graph) else graph, check_rows=False)
