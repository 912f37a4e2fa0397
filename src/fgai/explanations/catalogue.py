"""Explanations by name: which weights say what a node's answer rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from torch import Tensor

from fgai.attention import Attention
from fgai.errors import TapError, UnknownNameError
from fgai.explanations.attribution import Attribution, attribution
from fgai.explanations.leave_one_out import leave_one_out
from fgai.registry import Registry

SKIP = 1.0  # the weight of a node's own row where no self-loop weighs it; 1 makes one hop count w_1 + ... + w_L


class Answer(Protocol):
    """What explanations need of a reading."""

    @property
    def logits(self) -> Tensor:
        """[N, C]."""
        ...

    @property
    def attention(self) -> Mapping[str, Attention]:
        """By site, in the order in which it acted."""
        ...


Explanation = Callable[..., Attribution]  # (reading, read=None, graph=None) -> Attribution
EXPLANATIONS: Registry[Explanation] = Registry("explanation")


def resolve(name: str | Explanation) -> Explanation:
    """An explanation by its name; `layer:NAME` is the attention of the site NAME, and a function is itself.

    >>> resolve("layer:conv1").keywords
    {'site': 'conv1'}
    >>> resolve("tee")
    Traceback (most recent call last):
    fgai.errors.UnknownNameError: no explanation is called 'tee'; did you mean 'tree'? There is: tree, last, ...
    """
    if callable(name):
        return name
    if name.startswith("layer:"):
        return partial(layer, site=name.removeprefix("layer:"))
    return EXPLANATIONS[name]


@EXPLANATIONS.register("tree")
def tree(reading: Answer, read: Any = None, graph: Any = None, *, skip: float = SKIP) -> Attribution:
    """Attention along the computation tree (GAtt): products of attention on every path, summed over the layers.

    A node that has no self-loop in a layer (TransformerConv) reaches itself by the layer's skip connection, which no
    softmax weighs: that path has the weight `skip`, 1 unless told otherwise, and is not normalised.
    """
    sites = reading.attention
    _refuse_relations(sites)
    notes = ["paths that no attention weighs (residual and jumping connections, other message passing) do not count"]
    for site, attention in sites.items():
        loops = attention.target[attention.source == attention.target].unique().numel()
        if loops < attention.num_targets and len(sites) > 1:
            notes.append(
                f"layer '{site}': {attention.num_targets - loops} of {attention.num_targets} nodes have no self-loop; "
                f"their own row passes with the weight {skip:g}"
            )
    return attribution("tree", sites, skip, tuple(notes))


@EXPLANATIONS.register("last")
def last(reading: Answer, read: Any = None, graph: Any = None) -> Attribution:
    """The attention of the last layer, mean over heads: the paper's explanation."""
    site = next(reversed(list(reading.attention)))
    return _alone("last", reading, site)


@EXPLANATIONS.register("first")
def first(reading: Answer, read: Any = None, graph: Any = None) -> Attribution:
    """The attention of the first layer, mean over heads."""
    return _alone("first", reading, next(iter(reading.attention)))


def layer(reading: Answer, read: Any = None, graph: Any = None, *, site: str) -> Attribution:
    """The attention of one layer, mean over heads."""
    if site not in reading.attention:
        raise UnknownNameError(f"no attention is called '{site}'; in this reading there is {list(reading.attention)}")
    return _alone(f"layer:{site}", reading, site)


EXPLANATIONS.add("leave-one-out", leave_one_out)


def _alone(name: str, reading: Answer, site: str) -> Attribution:
    others = [other for other in reading.attention if other != site]
    notes = (f"the attention of the other layers does not count: {', '.join(others)}",) if others else ()
    return attribution(name, {site: reading.attention[site]}, notes=notes)


def _refuse_relations(sites: Mapping[str, Attention]) -> None:
    """Layers that act side by side, on several relations, are no chain."""
    typed = [site for site in sites if "__" in site]
    if typed:
        raise TapError(
            f"'{typed[0]}' attends over one relation of several, and the relations of a layer act side by side: there "
            f"is no single chain of layers; explain by one of them, 'layer:{typed[0]}'"
        )
    for site, attention in sites.items():
        name, _, number = site.rpartition("@")
        if number.isdigit() and name in sites and not _same_edges(sites[name], attention):
            raise TapError(
                f"layer '{name}' ran several times, on other edges each time, so its calls may act side by side; "
                f"explain by one of them, 'layer:{site}'"
            )


def _same_edges(one: Attention, other: Attention) -> bool:
    return one.edge_index.shape == other.edge_index.shape and bool((one.edge_index == other.edge_index).all())
