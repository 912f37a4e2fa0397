"""Explanations by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from fgai.attention import Attention, explaining_sites
from fgai.errors import TapError, UnknownNameError
from fgai.explanations.attribution import Attribution, attribution, refuse_pooling
from fgai.explanations.leave_one_out import leave_one_out
from fgai.registry import Registry

SKIP = 1.0  # weight of a node's own representation without a self-loop; an edge of hop 1 then has w_1 + ... + w_L


class Answer(Protocol):
    """The part of a `Reading` that explanations use."""

    @property
    def logits(self) -> Tensor:
        """The output of the model, [N, C]."""
        ...

    @property
    def attention(self) -> Mapping[str, Attention]:
        """The attention by site, in the order of execution."""
        ...


Explanation = Callable[..., Attribution]  # (reading, read=None, graph=None) -> Attribution
EXPLANATIONS: Registry[Explanation] = Registry("explanation")


def resolve(name: str | Explanation) -> Explanation:
    """Return an explanation by its name; `layer:NAME` is the attention of the site NAME.

    Args:
        name: One of `EXPLANATIONS`, `layer:NAME`, or a function, which is returned as it is.

    Raises:
        UnknownNameError: No explanation has this name.

    >>> resolve("layer:conv1").keywords
    {'site': 'conv1'}
    >>> resolve("tee")
    Traceback (most recent call last):
    fgai.errors.UnknownNameError: no explanation is called 'tee'; did you mean 'tree'? Registered: tree, last, ...
    """
    if callable(name):
        return name
    if isinstance(name, str) and name.startswith("layer:"):
        return partial(layer, site=name.removeprefix("layer:"))
    return EXPLANATIONS[name]


def one_layer(name: str | Explanation, sites: Mapping[str, Attention]) -> Attention | None:
    """Return the attention that an explanation consists of, or None if it is not the attention of one layer.

    Args:
        name: Name of an explanation, or a function.
        sites: The attention by site, in the order of execution.

    >>> import torch
    >>> attention = Attention(torch.tensor([[1.0]]), torch.tensor([[0], [1]]), num_targets=2)
    >>> one_layer("last", {"conv": attention}) is attention, one_layer("tree", {"conv": attention})
    (True, None)
    """
    if not isinstance(name, str) or not (name in ("last", "first") or name.startswith("layer:")):
        return None
    (site,) = sites_of(name, sites)
    refuse_pooling({site: sites[site]})
    return sites[site]


def sites_of(name: str | Explanation, sites: Mapping[str, Attention]) -> tuple[str, ...]:
    """Return the layers whose attention an explanation is about, in the order of execution.

    `tree` and functions are about all layers that explain, `leave-one-out` is about the last one.

    >>> import torch
    >>> attention = Attention(torch.tensor([[1.0]]), torch.tensor([[0], [1]]), num_targets=2)
    >>> sites_of("last", {"one": attention, "two": attention}), sites_of("tree", {"one": attention, "two": attention})
    (('two',), ('one', 'two'))
    """
    if isinstance(name, str) and name.startswith("layer:"):
        return (_checked_site(name.removeprefix("layer:"), sites),)
    explaining = explaining_sites(sites)
    if name in ("last", "leave-one-out"):
        return explaining[-1:]
    return explaining[:1] if name == "first" else explaining


@EXPLANATIONS.register("tree")
def tree(reading: Answer, read: Any = None, graph: Any = None, *, skip: float = SKIP) -> Attribution:
    """Attention along the computation tree (GAtt): products of attention on each path, summed over the layers.

    If a node has no self-loop in a layer (TransformerConv), the path through the layer's skip connection has the weight
    `skip`. It is not normalised. Attention over all pairs of nodes and attention that pools nodes are left out if the
    model attends over edges too.

    >>> import torch
    >>> from fgai.reading import Reading
    >>> edges = torch.tensor([[0, 1, 1], [0, 0, 1]])  # node 0 attends to itself and to 1
    >>> attention = Attention(torch.tensor([[0.5], [0.5], [1.0]]), edges, num_targets=2)
    >>> reading = Reading(torch.zeros(2, 2), {"conv1": attention, "conv2": attention})
    >>> tree(reading).of_nodes(torch.tensor([0])).weight  # edges 0 -> 0, 1 -> 0 and 1 -> 1
    tensor([0.7500, 0.7500, 0.5000], dtype=torch.float64)
    """
    sites = {site: reading.attention[site] for site in explaining_sites(reading.attention)}
    _refuse_relations(sites)
    notes = ["paths without attention (residual and jumping connections, other message passing) are ignored"]
    notes += _idle_note(reading.attention)
    if others := [site for site, a in reading.attention.items() if site not in sites and not a.idle]:
        notes.append(f"attention over pairs of nodes, or that pools nodes, is left out: {', '.join(others)}")
    for site, attention in sites.items():
        loops = attention.target[attention.source == attention.target].unique().numel()
        if loops < attention.num_targets and len(sites) > 1:
            notes.append(
                f"layer '{site}': {attention.num_targets - loops} of {attention.num_targets} nodes have no self-loop; "
                f"the path from such a node to itself has the weight {skip:g}"
            )
    return attribution("tree", sites, skip, tuple(notes))


@EXPLANATIONS.register("last")
def last(reading: Answer, read: Any = None, graph: Any = None) -> Attribution:
    """The attention of the last layer, mean over heads: the paper's explanation.

    >>> import torch
    >>> from fgai.reading import Reading
    >>> attention = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [1, 1]]), num_targets=2)
    >>> last(Reading(torch.zeros(2, 2), {"conv": attention})).total()
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    return _one_layer("last", reading, explaining_sites(reading.attention)[-1])


@EXPLANATIONS.register("first")
def first(reading: Answer, read: Any = None, graph: Any = None) -> Attribution:
    """The attention of the first layer, mean over heads.

    >>> import torch
    >>> from fgai.reading import Reading
    >>> attention = Attention(torch.tensor([[0.7], [0.3]]), torch.tensor([[0, 1], [1, 1]]), num_targets=2)
    >>> first(Reading(torch.zeros(2, 2), {"conv": attention})).total()
    tensor([0.7000, 0.3000], dtype=torch.float64)
    """
    return _one_layer("first", reading, explaining_sites(reading.attention)[0])


def layer(reading: Answer, read: Any = None, graph: Any = None, *, site: str) -> Attribution:
    """The attention of the layer `site`, mean over heads."""
    return _one_layer(f"layer:{site}", reading, _checked_site(site, reading.attention))


EXPLANATIONS.add("leave-one-out", leave_one_out)


def _checked_site(site: str, sites: Mapping[str, Attention]) -> str:
    if site not in sites:
        raise UnknownNameError(f"no attention layer is called '{site}'; this reading has {list(sites)}")
    return site


def _one_layer(name: str, reading: Answer, site: str) -> Attribution:
    others = [other for other in reading.attention if other != site]
    notes = [f"the attention of other layers is ignored: {', '.join(others)}"] if others else []
    return attribution(name, {site: reading.attention[site]}, notes=(*notes, *_idle_note(reading.attention)))


def _idle_note(sites: Mapping[str, Attention]) -> list[str]:
    """Return a note on the layers whose attention has no effect on the logits, if there are any."""
    idle = ", ".join(site or "the model itself" for site, attention in sites.items() if attention.idle)
    return [f"attention that has no effect on the logits does not explain them: {idle}"] if idle else []


def _refuse_relations(sites: Mapping[str, Attention]) -> None:
    """Raise if layers run in parallel, on several relations: they are not a chain."""
    typed = [site for site in sites if "__" in site or site.endswith(("conv_in", "conv_out"))]  # HeteroConv, DirGNNConv
    if typed:
        raise TapError(
            f"'{typed[0]}' attends over one of several relations, and the relations of a layer run in parallel: the "
            f"layers are not a chain; use the attention of one of them, 'layer:{typed[0]}'"
        )
    for site, attention in sites.items():
        if attention.parallel:
            raise TapError(
                f"layer '{site}' does not depend on the attention of the layer before it: they run in parallel and are "
                f"not a chain; use the attention of one of them, 'last' or 'layer:{site}'"
            )
        name, _, number = site.rpartition("@")
        if number.isdigit() and name in sites and not _same_edges(sites[name], attention):
            raise TapError(
                f"layer '{name}' ran several times on different edges, so its calls may run in parallel; use the "
                f"attention of one of them, 'layer:{site}'"
            )


def _same_edges(one: Attention, other: Attention) -> bool:
    """Whether two layers have the same edges into the targets of both."""
    targets = min(one.num_targets, other.num_targets)
    first, second = (attention.head(targets).edge_index for attention in (one, other))
    return torch.equal(first, second)
