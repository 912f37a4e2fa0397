"""The attention layers that the laws run over, each with its own formula written out independently of PyG's code.

A case knows a layer, its inputs, what its attention weights should be (a dense formula, where the layer cannot
return them itself), and what its output is for ANY weights: `output(weights)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import elu, gelu, leaky_relu, normalize, relu
from torch_geometric.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    GeneralConv,
    HANConv,
    HEATConv,
    HGTConv,
    PointTransformerConv,
    RGATConv,
    SuperGATConv,
    TransformerConv,
)
from torch_geometric.nn.models import GAT

N, F, C, H = 12, 5, 3, 2
Weights = dict[str, tuple[Tensor, Tensor]]  # site -> (weight [E, H], edge_index [2, E])


@dataclass(frozen=True)
class Case:
    """A layer, what to give it, and what it should say."""

    layer: nn.Module
    inputs: tuple[Any, ...]
    weights: Callable[[Weights], dict[str, Tensor]]  # edges of each site -> the weights there should be
    output: Callable[[dict[str, tuple[Tensor, Tensor]]], Tensor]  # weights of each site -> the output there should be


def random_edges(sources: int = N, targets: int = N, p: float = 0.3, loops: bool = False) -> Tensor:
    """A directed graph without repeated edges; every target has a neighbour."""
    there = torch.rand(targets, sources) < p
    there[torch.arange(targets), (torch.arange(targets) + 1) % sources] = True
    if not loops and sources == targets:
        there.fill_diagonal_(False)
    return there.nonzero().t().flip(0).contiguous()


def dense(value: Tensor, edge_index: Tensor, shape: tuple[int, int] = (N, N), fill: float = 0.0) -> Tensor:
    """[E, ...] -> [targets, sources, ...]"""
    out = value.new_full((*shape, *value.shape[1:]), fill)
    return out.index_put((edge_index[1], edge_index[0]), value)


def softmax_rows(score: Tensor, edge_index: Tensor, shape: tuple[int, int] = (N, N)) -> Tensor:
    """The softmax of scores over the sources of each target, by a dense matrix with -inf where no edge is; [E, H]."""
    table = dense(score, edge_index, shape, -math.inf).softmax(dim=1)
    return table[edge_index[1], edge_index[0]]


def attend(weight: Tensor, edge_index: Tensor, value: Tensor, targets: int = N) -> Tensor:
    """sum_j w_ij u_j; [E, H], [sources, H, C] -> [targets, H, C]"""
    return torch.einsum("tsh,shc->thc", dense(weight, edge_index, (targets, value.size(0))), value)


def randomised(layer: nn.Module) -> Any:
    """Double precision and no zero biases, which would hide mistakes; `Any`, since its parts are asked for by name."""
    layer = layer.double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.eval()


def features() -> Tensor:
    return torch.randn(N, F, dtype=torch.double)


def returned(layer: nn.Module, *inputs: Any) -> Callable[[Weights], dict[str, Tensor]]:
    """The layer's own account of its weights."""
    return lambda edges: {"": layer(*inputs, return_attention_weights=True)[1][1]}


def gat(**settings: Any) -> Case:
    layer, x, edges = randomised(GATConv(F, C, heads=H, **settings)), features(), random_edges(loops=True)
    if settings.get("flow") == "target_to_source":
        edges = edges.flip(0)

    def output(w: Weights) -> Tensor:
        return attend(*w[""], layer.lin(x).view(N, H, C)).reshape(N, -1) + layer.bias

    return Case(layer, (x, edges), returned(layer, x, edges), output)


def gatv2() -> Case:
    layer, x, edges = randomised(GATv2Conv(F, C, heads=H)), features(), random_edges()

    def output(w: Weights) -> Tensor:
        return attend(*w[""], layer.lin_l(x).view(N, H, C)).reshape(N, -1) + layer.bias

    return Case(layer, (x, edges), returned(layer, x, edges), output)


def transformer() -> Case:
    layer, x, edges = randomised(TransformerConv(F, C, heads=H)), features(), random_edges()

    def output(w: Weights) -> Tensor:
        return attend(*w[""], layer.lin_value(x).view(N, H, C)).reshape(N, -1) + layer.lin_skip(x)

    return Case(layer, (x, edges), returned(layer, x, edges), output)


def supergat() -> Case:
    layer, x, edges = randomised(SuperGATConv(F, C, heads=H)), features(), random_edges()
    u = layer.lin(x).view(N, H, C)

    def weights(w: Weights) -> dict[str, Tensor]:
        (source, target), edge_index = w[""][1], w[""][1]
        agreement = (u[target] * u[source]).sum(-1).sigmoid()
        score = ((u[source] * layer.att_l).sum(-1) + (u[target] * layer.att_r).sum(-1)) * agreement
        return {"": softmax_rows(leaky_relu(score, 0.2), edge_index)}

    return Case(layer, (x, edges), weights, lambda w: attend(*w[""], u).reshape(N, -1) + layer.bias)


def rgat() -> Case:
    layer, x, edges = randomised(RGATConv(F, C, num_relations=2, heads=H)), features(), random_edges()
    kind = torch.randint(2, (edges.size(1),))

    def output(w: Weights) -> Tensor:
        weight, edge_index = w[""]
        value = torch.einsum("ef,efk->ek", x[edge_index[0]], layer.weight[kind]).view(-1, H, C)
        total = dense(weight[..., None] * value, edge_index).sum(1)
        return total.reshape(N, -1) + layer.bias

    return Case(layer, (x, edges, kind), returned(layer, x, edges, kind), output)


def heat() -> Case:
    layer, x, edges = randomised(HEATConv(F, C, 2, 2, 4, 3, 6, heads=H)), features(), random_edges()
    kind, edge_kind = torch.randint(2, (N,)), torch.randint(2, (edges.size(1),))
    attributes = torch.randn(edges.size(1), 3, dtype=torch.double)
    h = torch.stack([x[i] @ layer.hetero_lin.weight[kind[i]] + layer.hetero_lin.bias[kind[i]] for i in range(N)])
    along = leaky_relu(layer.edge_attr_emb(attributes), 0.2)
    embedded = leaky_relu(layer.edge_type_emb(edge_kind), 0.2)

    def weights(w: Weights) -> dict[str, Tensor]:
        source, target = w[""][1]
        score = layer.att(torch.cat([h[target], h[source], embedded, along], dim=1))
        return {"": softmax_rows(leaky_relu(score, 0.2), w[""][1])}

    def output(w: Weights) -> Tensor:
        weight, edge_index = w[""]
        value = layer.lin(torch.cat([h[edge_index[0]], along], dim=1))
        told = dense(weight[..., None] * value[:, None], edge_index).sum(1)
        return (told + h[:, None]).reshape(N, -1)

    return Case(layer, (x, edges, kind, edge_kind, attributes), weights, output)


def agnn() -> Case:
    layer, x, edges = randomised(AGNNConv()), features(), random_edges()
    unit = normalize(x, dim=-1)

    def weights(w: Weights) -> dict[str, Tensor]:
        source, target = w[""][1]
        return {"": softmax_rows(layer.beta * (unit[source] * unit[target]).sum(-1)[:, None], w[""][1])}

    return Case(layer, (x, edges), weights, lambda w: attend(*w[""], x[:, None]).squeeze(1))


def general() -> Case:
    layer, x, edges = randomised(GeneralConv(F, C, attention=True, heads=H)), features(), random_edges()
    u = layer.lin_msg(x).view(N, H, C)

    def weights(w: Weights) -> dict[str, Tensor]:
        return {"": softmax_rows(leaky_relu((u * layer.att_msg).sum(-1)[w[""][1][0]], 0.2), w[""][1])}

    return Case(layer, (x, edges), weights, lambda w: attend(*w[""], u).mean(1) + layer.lin_self(x))


def point_transformer() -> Case:
    layer, x, edges = randomised(PointTransformerConv(F, C)), features(), random_edges()
    position = torch.randn(N, 3, dtype=torch.double)

    def offset(edge_index: Tensor) -> Tensor:
        return layer.pos_nn(position[edge_index[1]] - position[edge_index[0]])

    def weights(w: Weights) -> dict[str, Tensor]:
        source, target = w[""][1]
        score = layer.lin_dst(x)[target] - layer.lin_src(x)[source] + offset(w[""][1])
        return {"": softmax_rows(score, w[""][1])}

    def output(w: Weights) -> Tensor:
        weight, edge_index = w[""]
        return dense(weight * (layer.lin(x)[edge_index[0]] + offset(edge_index)), edge_index).sum(1)

    return Case(layer, (x, position, edges), weights, output)


HALF = N // 2
META = (["paper", "author"], [("paper", "to", "author"), ("author", "to", "paper")])


def two_kinds() -> tuple[dict[str, Tensor], dict[tuple[str, str, str], Tensor]]:
    x = features()
    relations = {kind: random_edges(HALF, HALF, 0.5, loops=True) for kind in META[1]}
    return {"paper": x[:HALF], "author": x[HALF:]}, relations


def flat(answer: Any) -> Tensor:
    return torch.cat([answer[kind] for kind in META[0]]) if isinstance(answer, dict) else answer


def hgt() -> Case:
    layer, (x, relations) = randomised(HGTConv(F, H * C, META, heads=H)), two_kinds()
    kqv = {kind: layer.kqv_lin.lins[kind](x[kind]).view(HALF, 3, H, C) for kind in META[0]}

    def related(what: int, bank: Tensor) -> Tensor:
        parts = []
        for place, kind in enumerate(META[1]):
            matrices = torch.stack([bank[head * len(META[1]) + place] for head in range(H)])  # [H, C, C]
            parts.append(torch.einsum("nhc,hcd->nhd", kqv[kind[0]][:, what], matrices))
        return torch.cat(parts)  # [sources, H, C]

    key, value = related(0, layer.k_rel.weight), related(2, layer.v_rel.weight)
    query = torch.cat([kqv[kind][:, 1] for kind in META[0]])
    prior = torch.cat([layer.p_rel["__".join(kind)].expand(HALF, H) for kind in META[1]])

    def weights(w: Weights) -> dict[str, Tensor]:
        source, target = edge_index = w[""][1]
        score = (query[target] * key[source]).sum(-1) * prior[source] / math.sqrt(C)
        return {"": softmax_rows(score, edge_index)}

    def output(w: Weights) -> Tensor:
        told = attend(*w[""], value).reshape(N, H * C)
        parts = {"paper": told[:HALF], "author": told[HALF:]}
        return torch.cat([layer.out_lin.lins[kind](gelu(parts[kind])) for kind in META[0]])

    return Case(layer, (x, relations), weights, output)


def han() -> Case:
    layer, (x, relations) = randomised(HANConv(F, H * C, META, heads=H)), two_kinds()
    u = {kind: layer.proj[kind](x[kind]).view(HALF, H, C) for kind in META[0]}
    sites = dict(zip(["", "@1"], META[1], strict=True))

    def weights(w: Weights) -> dict[str, Tensor]:
        found = {}
        for site, kind in sites.items():
            source, target = edge_index = w[site][1]
            name = "__".join(kind)
            score = (u[kind[0]] * layer.lin_src[name]).sum(-1)[source] + (u[kind[2]] * layer.lin_dst[name]).sum(-1)[
                target
            ]
            found[site] = softmax_rows(leaky_relu(score, 0.2), edge_index, (HALF, HALF))
        return found

    def output(w: Weights) -> Tensor:  # one relation arrives at each kind, so the semantic attention is 1
        told = {kind[2]: relu(attend(*w[site], u[kind[0]], HALF)).reshape(HALF, -1) for site, kind in sites.items()}
        return torch.cat([told[kind] for kind in META[0]])

    return Case(layer, (x, relations), weights, output)


def three_layers() -> Case:
    model = GAT(F, H * C, num_layers=3, out_channels=4, heads=H, v2=False, act="elu")
    model, x, edges = randomised(model), features(), random_edges()
    sites = [f"convs.{i}" for i in range(3)]

    def run(w: Weights, own: bool) -> tuple[Tensor, dict[str, Tensor]]:
        h, seen = x, {}
        for site, conv in zip(sites, model.convs, strict=True):
            seen[site] = conv(h, edges, return_attention_weights=True)[1][1]
            weight = seen[site] if own else w[site][0]
            told = attend(weight, w[site][1], conv.lin(h).view(N, conv.heads, -1))
            h = (told.reshape(N, -1) if conv.concat else told.mean(1)) + conv.bias
            h = h if site == sites[-1] else elu(h)
        return h, seen

    return Case(model, (x, edges), lambda w: run(w, own=True)[1], lambda w: run(w, own=False)[0])


CASES: dict[str, Callable[[], Case]] = {
    "GATConv": gat,
    "GATConv-target_to_source": lambda: gat(flow="target_to_source", add_self_loops=False),
    "GATv2Conv": gatv2,
    "TransformerConv": transformer,
    "SuperGATConv": supergat,
    "RGATConv": rgat,
    "HEATConv": heat,
    "AGNNConv": agnn,
    "GeneralConv": general,
    "PointTransformerConv": point_transformer,
    "HGTConv": hgt,
    "HANConv": han,
    "models.GAT-3-layers": three_layers,
}
