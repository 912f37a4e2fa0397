"""Graphs, models and settings as a hostile or a hasty caller gives them, seeded."""

import copy
import dataclasses
import math
from typing import Any

import torch
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GATConv

from fgai import datasets
from fgai.adversaries import EdgeRewiring, NodeInjection
from fgai.backbones import BACKBONES
from fgai.datasets.split import split_nodes
from fgai.seeding import seeded

NODES, FEATURES, CLASSES = 16, 5, 3
NAN, INF = math.nan, math.inf
INTEGERS = (-3, -1, 0, 1, 2, 7, 2**31, 2**63, 10**30, True, 1.5, "2", None, NAN, INF)
FLOATS = (NAN, INF, -INF, -1.0, 0.0, 1e-320, 1e308, 0.5, 3, "x", None, True)
WORDS = ("zzz", "", None, 3, "kl", "l1", "L1", "vanilla", ("l1",))
TUPLES = (
    (),
    (NAN, NAN),
    (1.0, -1.0),
    (-INF, INF),
    (0,),
    (-1,),
    (10**9,),
    "abc",
    None,
    (0.0, 0.0),
    ("x",),
    3,
    ((1, NAN),),
)
WORK = (
    "epochs",
    "steps",
    "nodes",
    "edges",
    "restarts",
    "rounds",
    "added",
    "dropped",
    "pool",
    "seeds",
    "flips",
    "block",
    "keep",
)  # asked for, done


def graph():
    """A graph that nothing is wrong with: 16 nodes, masks and labels, and what any backbone needs."""
    made = split_nodes(
        datasets.synthetic(NODES, 48, features=FEATURES, classes=CLASSES, seed=4), seed=1, train=0.4, val=0.3
    )
    return BACKBONES["gt"].prepare(made)


def community():
    """A larger one, for budgets that cannot be chosen."""
    return split_nodes(datasets.synthetic(60, 300, features=FEATURES, classes=CLASSES, seed=4), seed=1)


def model(name="gat", features=FEATURES, classes=CLASSES):
    """A small model that has learnt nothing."""
    with seeded(0):
        return BACKBONES[name](features, classes).eval() if name in BACKBONES else Plain(features, classes).eval()


class Plain(nn.Module):
    """One layer of attention, as a user writes it."""

    def __init__(self, features=FEATURES, classes=CLASSES, ending=None):
        super().__init__()
        self.conv, self.ending = GATConv(features, classes), ending or (lambda logits: logits)

    def forward(self, x, edge_index):
        return self.ending(self.conv(x, edge_index))


class Loose(Plain):
    """A forward that takes anything."""

    def forward(self, *args, **kw):
        return self.conv(kw["x"], kw["edge_index"])


def _set(name, change):
    def mutate(rng, data):
        data[name] = change(rng, data[name].clone())

    return mutate


def _entry(bad):
    def put(rng, tensor):
        if tensor.numel():
            tensor.view(-1)[rng.randrange(tensor.numel())] = bad
        return tensor

    return put


def _mask(change):
    return [_set(f"{part}_mask", lambda rng, mask, change=change: change(mask)) for part in ("train", "val", "test")]


GRAPHS = [
    *(_set("x", _entry(bad)) for bad in (NAN, INF, -INF, 1e38)),
    *(_set("x", lambda rng, x, bad=bad: torch.full_like(x, bad)) for bad in (NAN, 0.0, 1e20)),
    *(
        _set("x", lambda rng, x, to=to: x.to(to))
        for to in (torch.long, torch.half, torch.bfloat16, torch.double, torch.bool)
    ),
    *(_set("x", lambda rng, x, of=of: of(x)) for of in (lambda x: x[:-1], lambda x: x[:, :-1], lambda x: x[:0])),
    *(_set("x", lambda rng, x, of=of: of(x)) for of in (lambda x: x[0], lambda x: x[:, :0], lambda x: x[None])),
    _set("x", lambda rng, x: x.to_sparse()),
    _set("x", lambda rng, x: x.to("meta")),
    _set("x", lambda rng, x: x.to(torch.cfloat)),
    *(_set("edge_index", _entry(bad)) for bad in (-1, NODES, 10**9, 2**62)),
    *(_set("edge_index", lambda rng, e, to=to: e.to(to)) for to in (torch.int, torch.float, torch.bool)),
    *(_set("edge_index", lambda rng, e, of=of: of(e)) for of in (lambda e: e[:, :0], lambda e: e[:1], lambda e: e.t())),
    _set("edge_index", lambda rng, e: torch.cat([e, e[:, :5]], 1)),
    _set("edge_index", lambda rng, e: torch.cat([e, torch.arange(NODES).repeat(2, 1)], 1)),
    _set("edge_index", lambda rng, e: e.to("meta")),
    *(_set("y", _entry(bad)) for bad in (-1, -100, CLASSES, 9, 2**40)),
    *(_set("y", lambda rng, y, to=to: y.to(to)) for to in (torch.float, torch.int, torch.bool, torch.uint8)),
    *(_set("y", lambda rng, y, of=of: of(y)) for of in (lambda y: y[:, None], lambda y: y[:-1], lambda y: y[:0])),
    _set("y", lambda rng, y: torch.nn.functional.one_hot(y, CLASSES).float()),
    _set("y", lambda rng, y: y.float().fill_(NAN)),
    *_mask(lambda mask: mask.long()),
    *_mask(lambda mask: mask.nonzero().flatten()),
    *_mask(lambda mask: torch.ones(30, dtype=torch.bool)),
    *_mask(lambda mask: mask[:3]),
    *_mask(lambda mask: mask.float()),
    *_mask(lambda mask: torch.zeros_like(mask)),
    *_mask(lambda mask: mask[:, None].expand(-1, 3)),
    *(
        lambda rng, data, name=name: data.__delitem__(name)
        for name in ("x", "edge_index", "y", "val_mask", "train_mask")
    ),
    *(lambda rng, data, name=name: data.__setitem__(name, None) for name in ("x", "edge_index", "y")),
    *(lambda rng, data, bad=bad: data.__setattr__("num_nodes", bad) for bad in (3, 10**6)),
    lambda rng, data: data.__setitem__("names", ["</script><script>document.title='run'</script>"] * NODES),
    lambda rng, data: data.__setitem__("names", ["a"]),
    lambda rng, data: data.__setitem__("x", data.x.tolist()),
]


def hostile_graph(rng):
    """A graph with one or two things wrong, or of another kind altogether."""
    data = graph()
    if rng.random() < 0.04:
        return rng.choice((Data(), HeteroData(), Data(x=data.x), Data(edge_index=data.edge_index), one_node()))
    for _ in range(rng.choice((1, 1, 1, 2))):
        try:
            rng.choice(GRAPHS)(rng, data)
        except (KeyError, AttributeError, RuntimeError, IndexError, TypeError, NotImplementedError):
            continue  # the second change does not go with the first
    return data


def one_node():
    """A node without edges."""
    return Data(x=torch.ones(1, FEATURES), edge_index=torch.empty(2, 0, dtype=torch.long), y=torch.zeros(1).long())


def _poisoned(bad):
    def make(rng):
        made = model(rng.choice(("gat", "gatv2", "gt")))
        parameter = rng.choice(list(made.parameters()))
        with torch.no_grad():
            parameter.view(-1)[rng.randrange(parameter.numel())] = bad
        return made

    return make


def _filled(value):
    def make(rng):
        made = model("gat")
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.fill_(value)
        return made

    return make


def _frozen(rng):
    return model("gat").requires_grad_(False)


ENDINGS = (
    lambda logits: (logits, None),
    lambda logits: logits.softmax(-1),
    lambda logits: logits.log_softmax(-1),
    lambda logits: logits / 0.0,
    lambda logits: logits.argmax(-1),
    lambda logits: logits[:-1],
    lambda logits: logits[:, :1],
    lambda logits: logits[:, 0],
    lambda logits: logits.sum(),
    lambda logits: logits[:, :0],
    lambda logits: logits.long(),
    lambda logits: logits.detach(),
    lambda logits: logits.detach().numpy(),
    lambda logits: None,
    lambda logits: {"logits": logits},
    lambda logits: torch.where(logits > 0, logits, NAN),
    lambda logits: logits.to_sparse(),
    lambda logits: logits[None],
)
MODELS = [
    *(_poisoned(bad) for bad in (NAN, INF, -INF, 1e38)),
    *(_filled(value) for value in (NAN, 0.0, INF)),
    _frozen,
    *(lambda rng, to=to: model("gat").to(to) for to in (torch.half, torch.bfloat16, torch.double, "meta")),
    *(lambda rng, ending=ending: Plain(ending=ending).eval() for ending in ENDINGS),
    lambda rng: model("gat", FEATURES + 1),
    lambda rng: model("gat", FEATURES, 1),
    lambda rng: model("gat", FEATURES, 50),
    lambda rng: nn.Linear(FEATURES, CLASSES),
    lambda rng: Loose(),
    lambda rng: nn.Identity(),
    lambda rng: nn.DataParallel(Plain()),
    lambda rng: model("gat").train(),
]


def hostile_model(rng):
    """A model with something wrong."""
    return rng.choice(MODELS)(rng)


def either(rng):
    """A model and a graph; one of them, or both, are hostile."""
    kind = rng.randrange(5)
    net = hostile_model(rng) if kind in (0, 1, 4) else model(rng.choice(("gat", "gatv2", "gt", "plain")))
    return net, hostile_graph(rng) if kind in (2, 3, 4) else graph()


def _pool(name, kind):
    kind = str(kind)
    if "int" in kind and "tuple" not in kind:
        return tuple(v for v in INTEGERS if name not in WORK or not isinstance(v, int) or v < 8)
    if "float" in kind and "tuple" not in kind:
        return FLOATS
    if "tuple" in kind:
        return TUPLES
    return (True, False, None, 3) if kind == "bool" else WORDS


SMALL = {
    "epochs": 2,
    "steps": 1,
    "nodes": 1,
    "restarts": 1,
    "rounds": 1,
    "added": 2,
    "dropped": 2,
    "pool": 20,
    "limit": 50,
    "flips": 2,
    "block": 20,
    "keep": 1,
}


def hostile_settings(rng, kind, wrong=1):
    """`kind(**settings)`, a frozen dataclass of settings that asks for little, with some fields out of range.

    What is returned is called to construct it: refusing there is right.
    """
    fields = {field.name: field for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {name: value for name, value in SMALL.items() if name in fields}
    if "edges" in fields:
        given["edges"] = (1,) if "tuple" in str(fields["edges"].type) else 1
    given |= {name: ((1, 0.1),) for name in ("schedules", "adam") if name in fields}
    if "adversary" in fields:
        given["adversary"] = NodeInjection(1, 1, steps=1)
    if "members" in fields:
        given["members"] = (NodeInjection(1, 1, steps=1), EdgeRewiring(2, 2, rounds=1, pool=20))
    for name in rng.sample(sorted(fields), min(wrong, len(fields))):
        given[name] = copy.copy(rng.choice(_pool(name, fields[name].type)))
    return lambda: kind(**given)
