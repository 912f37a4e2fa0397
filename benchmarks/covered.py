"""The cases of the coverage table: each attention layer and model of PyG, in a small model and on a small graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric import nn as pyg
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.aggr.utils import InducedSetAttentionBlock, SetAttentionBlock
from torch_geometric.nn.attention import PerformerAttention, PolynormerAttention, QFormer, SGFormerAttention
from torch_geometric.nn.models.attentive_fp import GATEConv
from torch_geometric.utils import to_dense_adj, to_dense_batch

from fgai.datasets import synthetic
from fgai.datasets.split import split_graphs, split_links, split_nodes

FEATURES, HIDDEN, CLASSES, RELATIONS = 5, 8, 3, 2
Run = Callable[[Any, Tensor, Any], Tensor]  # (layer, features, graph) -> features


@dataclass(frozen=True)
class Case:
    """A layer or a model of PyG in one setting."""

    name: str
    covers: str  # the class of PyG
    build: Callable[[], nn.Module]
    data: Callable[[], Any]
    call: Callable[[nn.Module, Any], Tensor] | None = None


class TwoLayers(nn.Module):
    """Two layers of one kind for node classification."""

    def __init__(self, layer: Callable[[int, int], nn.Module], run: Run) -> None:
        super().__init__()
        self.first, self.last, self.run = layer(FEATURES, HIDDEN), layer(HIDDEN, CLASSES), run

    def forward(self, data: Data) -> Tensor:
        assert data.x is not None
        return self.run(self.last, self.run(self.first, data.x, data).relu(), data)


class Between(nn.Module):
    """A layer that keeps the width, between two linear layers, for node classification."""

    def __init__(self, layer: nn.Module, run: Run, before: Callable[[], nn.Module] | None = None) -> None:
        super().__init__()
        self.embed, self.run = nn.Linear(FEATURES, HIDDEN), run
        self.conv = before() if before else None
        self.layer, self.out = layer, nn.Linear(HIDDEN, CLASSES)

    def forward(self, data: Data) -> Tensor:
        x = self.embed(data.x).relu()
        if self.conv is not None:
            x = self.conv(x, data.edge_index).relu()
        return self.out(self.run(self.layer, x, data))


class Pooled(nn.Module):
    """A message-passing layer and a pooling for graph classification."""

    def __init__(self, pool: nn.Module, run: Run, width: int = HIDDEN, conv: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = conv or pyg.GATConv(FEATURES, HIDDEN)
        self.pool, self.run, self.out = pool, run, nn.Linear(width, 2)

    def forward(self, data: Data) -> Tensor:
        return self.out(self.run(self.pool, self.conv(data.x, data.edge_index).relu(), data))


class DenseNodes(nn.Module):
    """Global attention over the nodes of each graph of a batch, as `GPSConv` calls it."""

    def __init__(self, attention: nn.Module, masked: bool = True) -> None:
        super().__init__()
        self.attention, self.masked = attention, masked

    def forward(self, x: Tensor, batch: Tensor | None = None) -> Tensor:
        dense, mask = to_dense_batch(x, batch)
        out = self.attention(dense, mask) if self.masked else self.attention(dense)
        return out[mask]


class SelfAttention(nn.Module):
    """torch's multi-head attention over all nodes, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x[None], x[None], x[None], need_weights=False)[0][0]


class Typed(nn.Module):
    """A layer for typed graphs, and a linear layer for the nodes of type `a`."""

    def __init__(self, layer: Callable[[Any], nn.Module]) -> None:
        super().__init__()
        self.layer, self.out = layer(typed_graph().metadata()), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x_dict: dict[str, Tensor], edge_index_dict: dict[Any, Tensor]) -> Tensor:
        return self.out(self.layer(x_dict, edge_index_dict)["a"])


class LayersOfOneNode(nn.Module):
    """`JumpingKnowledge` or `DNAConv` over the outputs of two GAT layers."""

    def __init__(self, over: nn.Module, dna: bool) -> None:
        super().__init__()
        self.first, self.second = pyg.GATConv(FEATURES, HIDDEN), pyg.GATConv(HIDDEN, HIDDEN)
        self.over, self.dna, self.out = over, dna, nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        one = self.first(x, edge_index).relu()
        each = [one, self.second(one, edge_index).relu()]
        return self.out(self.over(torch.stack(each, 1), edge_index) if self.dna else self.over(each))


@cache
def nodes() -> Any:
    """A graph with everything that a layer may ask for."""
    data: Any = split_nodes(synthetic(24, 80, features=FEATURES, classes=CLASSES, signal=1.0, seed=0), 0, 0.4, 0.2)
    edges, draw = data.num_edges, torch.Generator().manual_seed(0)
    data.edge_attr = torch.rand(edges, 2, generator=draw)
    data.edge_type = torch.randint(RELATIONS, (edges,), generator=draw)
    data.node_type = torch.randint(RELATIONS, (24,), generator=draw)
    data.pos = torch.randn(24, 3, generator=draw)
    return data


@cache
def plain_nodes() -> Any:
    """The same graph without attributes of edges."""
    data = nodes()
    return Data.from_dict(
        {name: data[name] for name in ("x", "edge_index", "y", "train_mask", "val_mask", "test_mask")}
    )


@cache
def graphs() -> Any:
    """Twelve graphs of six to nine nodes with two classes."""
    each = []
    for number in range(12):
        draw = torch.Generator().manual_seed(number)
        size = 6 + number % 4
        ring = torch.stack([torch.arange(size), torch.arange(size).roll(1)])
        x = torch.rand(size, FEATURES, generator=draw) + number % 2
        ends = torch.cat([ring, ring.flip(0)], 1)
        attributes = torch.rand(ends.size(1), 2, generator=draw)
        each.append(Data(x=x, edge_index=ends, edge_attr=attributes, y=torch.tensor([number % 2])))
    return split_graphs(each, seed=0, train=0.5, val=0.25)


@cache
def links() -> Any:
    """Pairs of nodes to predict links for."""
    return split_links(synthetic(24, 80, features=FEATURES, classes=CLASSES, seed=0), seed=0)


@cache
def typed_graph() -> HeteroData:
    """Two types of nodes and three of edges; labels of the nodes of type `a`."""
    draw, data = torch.Generator().manual_seed(0), HeteroData()
    for kind, count in (("a", 12), ("b", 6)):
        data[kind].x = torch.randn(count, FEATURES, generator=draw)
    data["a"].y = torch.randint(CLASSES, (12,), generator=draw)
    for name, inside in (("train_mask", slice(0, 6)), ("val_mask", slice(6, 8)), ("test_mask", slice(8, 12))):
        data["a"][name] = torch.zeros(12, dtype=torch.bool)
        data["a"][name][inside] = True
    for source, target in (("a", "b"), ("b", "a"), ("a", "a")):
        sizes = [int(data[kind].num_nodes or 0) for kind in (source, target)]
        ends = [torch.randint(size, (20,), generator=draw) for size in sizes]
        data[source, "to", target].edge_index = torch.stack(ends)
    return data


def edges(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.edge_index)


def edge_features(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.edge_index, edge_attr=data.edge_attr)


def relations(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.edge_index, data.edge_type)


def types(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.edge_index, data.node_type, data.edge_type, data.edge_attr)


def features(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x)


def by_graph(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.batch)


def pooled_nodes(layer: Any, x: Tensor, data: Any) -> Tensor:
    """Pool to fewer nodes, then take the mean of each graph."""
    out = layer(x, data.edge_index, batch=data.batch)
    return global_mean_pool(out[0], out[2 if isinstance(layer, pyg.EdgePooling) else 3], int(data.num_graphs))


def pooled_then_gat(layer: Any, x: Tensor, data: Any) -> Tensor:
    """Pool to fewer nodes, then attend over the edges between them."""
    x, edge_index, _, batch, *_ = layer[0](x, data.edge_index, batch=data.batch)
    return global_mean_pool(layer[1](x, edge_index), batch, int(data.num_graphs))


def memory(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.batch)[0].mean(1)


def dot_product(model: Any, data: Any) -> Tensor:
    """The logits of pairs: the dot product of what the encoder of an autoencoder returns."""
    z = model.encode(data.x, data.edge_index)
    return (z[data.edge_label_index[0]] * z[data.edge_label_index[1]]).sum(-1)


def lpformer(model: Any, data: Any) -> Tensor:
    """LPFormer on the pairs; the walks are those of one step."""
    count = data.x.size(0)
    walk = to_dense_adj(data.edge_index, max_num_nodes=count)[0]
    walk = (walk / walk.sum(1, keepdim=True).clamp(min=1) + torch.eye(count)) / 2
    return model(data.edge_label_index, data.x, data.edge_index, walk.to_sparse())


def zero_batch(model: Any, data: Any) -> Tensor:
    """A model that asks for `batch`, on one graph."""
    return model(data.x, data.edge_index, torch.zeros(len(data.x), dtype=torch.long))


def two(name: str, layer: Callable[[int, int], Any], run: Run = edges, setting: str = "") -> Case:
    return Case(f"{name}{setting and f' ({setting})'}", name, lambda: TwoLayers(layer, run), nodes)


def between(
    name: str, layer: Callable[[], Any], run: Run = edges, setting: str = "", before: Callable[[], Any] | None = None
) -> Case:
    return Case(f"{name}{setting and f' ({setting})'}", name, lambda: Between(layer(), run, before), nodes)


def pooled(
    name: str, layer: Callable[[], Any], run: Run = by_graph, setting: str = "", width: int = HIDDEN, gcn: bool = False
) -> Case:
    def build() -> nn.Module:
        return Pooled(layer(), run, width, pyg.GCNConv(FEATURES, HIDDEN) if gcn else None)

    return Case(f"{name} ({setting or 'after GATConv'})", name, build, graphs)


def _gps(conv: Callable[[], Any], kind: str) -> Callable[[], nn.Module]:
    return lambda: pyg.GPSConv(HIDDEN, conv(), heads=2, attn_type=kind)


GAT_CLASS: Any = pyg.GATConv


def _gat() -> Any:
    return pyg.GATConv(HIDDEN, HIDDEN)


def _gin() -> Any:
    return pyg.GINConv(nn.Linear(HIDDEN, HIDDEN))


def _gate() -> Any:
    return pyg.AttentionalAggregation(nn.Linear(HIDDEN, 1))


def _over_aggregations() -> Any:
    widths = {"in_channels": HIDDEN, "out_channels": HIDDEN}
    return pyg.SAGEConv(HIDDEN, HIDDEN, aggr=pyg.MultiAggregation(["mean", "max"], mode="attn", mode_kwargs=widths))


def _dense_gat(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, to_dense_adj(data.edge_index, max_num_nodes=len(x)))[0]


def _adaptive(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, x, data.edge_index)


def _hypergraph(layer: Any, x: Tensor, data: Any) -> Tensor:
    return layer(x, data.edge_index, hyperedge_attr=x)


def _encoder() -> Any:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(HIDDEN, 2, 8, batch_first=True), 2)


def _set_transformer() -> Any:
    return pyg.SetTransformerAggregation(HIDDEN)


def _polynormer(local: bool, overall: bool) -> nn.Module:
    model = pyg.Polynormer(FEATURES, HIDDEN, CLASSES, local_layers=2, global_layers=1, local_attn=local)
    model._global = overall
    return model


def _within(width: int, out: int) -> Any:
    return pyg.RGATConv(width, out, RELATIONS, attention_mechanism="within-relation")


def _by_relation(kinds: Any) -> Any:
    return pyg.HeteroConv({kind: pyg.GATConv(FEATURES, HIDDEN, add_self_loops=False) for kind in kinds[1]})


LAYERS = [
    two("GATConv", pyg.GATConv),
    two("GATConv", lambda i, o: pyg.GATConv(i, o, edge_dim=2), edge_features, "edge features"),
    two("GATv2Conv", pyg.GATv2Conv),
    two("TransformerConv", pyg.TransformerConv),
    two("TransformerConv", lambda i, o: pyg.TransformerConv(i, o, edge_dim=2), edge_features, "edge features"),
    between("AGNNConv", pyg.AGNNConv),
    two("SuperGATConv", pyg.SuperGATConv, setting="MX"),
    two("SuperGATConv", lambda i, o: pyg.SuperGATConv(i, o, attention_type="SD"), setting="SD"),
    two("GeneralConv", lambda i, o: pyg.GeneralConv(i, o, attention=True), setting="attention"),
    two("HEATConv", lambda i, o: pyg.HEATConv(i, o, RELATIONS, RELATIONS, 4, 2, 4, concat=False), types),
    two("RGATConv", lambda i, o: pyg.RGATConv(i, o, RELATIONS), relations, "across-relation"),
    two("RGATConv", _within, relations, "within-relation"),
    two("PointTransformerConv", pyg.PointTransformerConv, lambda layer, x, d: layer(x, d.pos, d.edge_index)),
    between("GATEConv", lambda: GATEConv(HIDDEN, HIDDEN, 2), edge_features, "of AttentiveFP"),
    two("GENConv", pyg.GENConv, setting="softmax aggregation"),
    two("SoftmaxAggregation", lambda i, o: pyg.SAGEConv(i, o, aggr="softmax"), setting="in SAGEConv"),
    between("AttentionalAggregation", lambda: pyg.SAGEConv(HIDDEN, HIDDEN, aggr=_gate()), setting="in SAGEConv"),
    between("MultiAggregation", _over_aggregations, setting="attention, after GATConv", before=_gat),
    between("DirGNNConv", lambda: pyg.DirGNNConv(_gat()), setting="of GATConv"),
    between("GPSConv", _gps(_gat, "multihead"), setting="multihead, GATConv inside"),
    between("GPSConv", _gps(_gin, "multihead"), setting="multihead, GINConv inside"),
    between("GPSConv", _gps(_gat, "performer"), setting="performer, GATConv inside"),
    between("GPSConv", _gps(_gin, "performer"), setting="performer, GINConv inside"),
    between("MultiheadAttention", SelfAttention, features, "of torch"),
    between("MultiheadAttention", SelfAttention, features, "of torch, after GATConv", _gat),
    between("TransformerEncoder", _encoder, lambda layer, x, d: layer(x[None])[0], "of torch"),
    between("QFormer", lambda: DenseNodes(QFormer(HIDDEN, 8, HIDDEN, 2, 1), masked=False), features),
    between("SetAttentionBlock", lambda: DenseNodes(SetAttentionBlock(HIDDEN, 2)), features),
    between("InducedSetAttentionBlock", lambda: DenseNodes(InducedSetAttentionBlock(HIDDEN, 3)), features),
    between("PerformerAttention", lambda: DenseNodes(PerformerAttention(HIDDEN, 2)), features),
    between("SGFormerAttention", lambda: DenseNodes(SGFormerAttention(HIDDEN, 1, HIDDEN)), features),
    between("SGFormerAttention", lambda: DenseNodes(SGFormerAttention(HIDDEN, 1, 8)), features, "after GATConv", _gat),
    between("PolynormerAttention", lambda: DenseNodes(PolynormerAttention(HIDDEN, 1, HIDDEN)), features),
    between("DenseGATConv", lambda: pyg.DenseGATConv(HIDDEN, HIDDEN), _dense_gat),
    between("DenseGATConv", lambda: pyg.DenseGATConv(HIDDEN, HIDDEN), _dense_gat, "after GATConv", _gat),
    between("FAConv", lambda: pyg.FAConv(HIDDEN), _adaptive),
    between("FAConv", lambda: pyg.FAConv(HIDDEN), _adaptive, "after GATConv", _gat),
    between("FeaStConv", lambda: pyg.FeaStConv(HIDDEN, HIDDEN, heads=2)),
    between("HypergraphConv", lambda: pyg.HypergraphConv(HIDDEN, HIDDEN, use_attention=True), _hypergraph, "attention"),
    Case("DNAConv (after GATConv)", "DNAConv", lambda: LayersOfOneNode(pyg.DNAConv(HIDDEN), dna=True), nodes),
    Case(
        "JumpingKnowledge (lstm, after GATConv)",
        "JumpingKnowledge",
        lambda: LayersOfOneNode(pyg.JumpingKnowledge("lstm", HIDDEN, 2), dna=False),
        nodes,
    ),
    Case("HANConv", "HANConv", lambda: Typed(lambda kinds: pyg.HANConv(FEATURES, HIDDEN, kinds)), typed_graph),
    Case("HGTConv", "HGTConv", lambda: Typed(lambda kinds: pyg.HGTConv(FEATURES, HIDDEN, kinds)), typed_graph),
    Case("HeteroConv (of GATConv)", "HeteroConv", lambda: Typed(_by_relation), typed_graph),
    pooled("AttentionalAggregation", _gate),
    pooled("AttentionalAggregation", _gate, setting="after GCNConv", gcn=True),
    pooled("Set2Set", lambda: pyg.Set2Set(HIDDEN, 2), width=2 * HIDDEN),
    pooled("SetTransformerAggregation", lambda: pyg.SetTransformerAggregation(HIDDEN)),
    pooled(
        "SetTransformerAggregation", lambda: pyg.SetTransformerAggregation(HIDDEN), setting="after GCNConv", gcn=True
    ),
    pooled("GraphMultisetTransformer", lambda: pyg.GraphMultisetTransformer(HIDDEN, 3)),
    pooled("PatchTransformerAggregation", lambda: pyg.PatchTransformerAggregation(HIDDEN, HIDDEN, 3, HIDDEN)),
    pooled("ASAPooling", lambda: pyg.ASAPooling(HIDDEN), pooled_nodes),
    pooled("ASAPooling", lambda: pyg.ASAPooling(HIDDEN), pooled_nodes, "after GCNConv", gcn=True),
    pooled("SAGPooling", lambda: pyg.SAGPooling(HIDDEN), pooled_nodes),
    pooled("SAGPooling", lambda: pyg.SAGPooling(HIDDEN, GNN=GAT_CLASS), pooled_nodes, "GATConv inside"),
    pooled("SAGPooling", lambda: nn.ModuleList([pyg.SAGPooling(HIDDEN), _gat()]), pooled_then_gat, "between GATConvs"),
    pooled("TopKPooling", lambda: pyg.TopKPooling(HIDDEN, min_score=0.1), pooled_nodes, "min_score, after GATConv"),
    pooled("EdgePooling", lambda: pyg.EdgePooling(HIDDEN), pooled_nodes),
    pooled("MemPooling", lambda: pyg.MemPooling(HIDDEN, HIDDEN, 2, 3), memory),
]

MODELS = [
    Case("GAT", "GAT", lambda: pyg.GAT(FEATURES, HIDDEN, 2, CLASSES), plain_nodes),
    Case("GAT (v2)", "GAT", lambda: pyg.GAT(FEATURES, HIDDEN, 2, CLASSES, v2=True), plain_nodes),
    Case("GAT (3 layers, jk)", "GAT", lambda: pyg.GAT(FEATURES, HIDDEN, 3, CLASSES, jk="cat", heads=2), plain_nodes),
    Case("Polynormer (local attention)", "Polynormer", lambda: _polynormer(True, False), plain_nodes, zero_batch),
    Case(
        "Polynormer (local and global attention)",
        "Polynormer",
        lambda: _polynormer(True, True),
        plain_nodes,
        zero_batch,
    ),
    Case("Polynormer (global attention)", "Polynormer", lambda: _polynormer(False, True), plain_nodes, zero_batch),
    Case("SGFormer", "SGFormer", lambda: pyg.SGFormer(FEATURES, HIDDEN, CLASSES), plain_nodes, zero_batch),
    between("DeepGCNLayer", lambda: pyg.DeepGCNLayer(_gat(), nn.LayerNorm(HIDDEN), nn.ReLU()), setting="of GATConv"),
    between(
        "GroupAddRev",
        lambda: pyg.GroupAddRev(pyg.GATConv(HIDDEN // 2, HIDDEN // 2), num_groups=2, disable=True),
        setting="of GATConv",
    ),
    Case("GAE (GAT encoder)", "GAE", lambda: pyg.GAE(pyg.GAT(FEATURES, HIDDEN, 2)), links, dot_product),
    Case("LPFormer", "LPFormer", lambda: pyg.LPFormer(FEATURES, HIDDEN), links, lpformer),
    Case("AttentiveFP", "AttentiveFP", lambda: pyg.AttentiveFP(FEATURES, HIDDEN, 2, 2, 2, 1), graphs),
    Case("AttentiveFP (2 timesteps)", "AttentiveFP", lambda: pyg.AttentiveFP(FEATURES, HIDDEN, 2, 2, 2, 2), graphs),
]
CASES = [*LAYERS, *MODELS]

# Classes whose source names attention or a softmax, and that do not attend over nodes.
OTHERS = {
    **dict.fromkeys(("GCN", "GIN", "GraphSAGE", "EdgeCNN", "PNA"), "attends over layers only, if jk='lstm'"),
    **dict.fromkeys(("SAGEConv", "PNAConv", "DegreeScalerAggregation"), "attends only with an aggregation that does"),
    **dict.fromkeys(("GraphUNet", "PANPooling"), "keeps the nodes with the largest scores, without a softmax"),
    "ClusterPooling": "the softmax is over the ends of an edge, to choose which edges to contract",
    "CuGraphGATConv": "needs RAPIDS and a GPU",
    "DiffGroupNorm": "the softmax assigns nodes to groups",
    "DMoNPooling": "the softmax assigns nodes to clusters",
    "FusedGATConv": "needs dgNN and a GPU",
    "HeteroJumpingKnowledge": "attends over layers only, as JumpingKnowledge does",
    "MemPooling": "the softmax assigns nodes to clusters",
    "NeuralFingerprint": "the softmax is over the columns of the output",
    "RENet": "the softmax is over the classes",
    "SignedGCN": "the softmax is over the classes",
    "TopKPooling": "scales nodes by a score; its SelectTopK has a softmax if min_score is set",
    "ViSNet": "gates messages without normalising them, and is for regression",
}
