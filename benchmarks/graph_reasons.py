"""Which explanation finds the known reasons of a graph? Molecules and motifs, results/graph_reasons.json.

For each test graph that has known reasons and is predicted correctly on the clean batch: AUROC of its edges
(`mutagenicity`, `ba-2motifs`) or its nodes (`benzene`). The weight of a node is the weight of the edges out of it.
Means over graphs. Explanations of the attacked batch rank its edges and are scored on the original ones. A cell
(dataset, backbone, seed) that has run is not run again.

python benchmarks/graph_reasons.py --datasets ba-2motifs mutagenicity --backbones gat-graphs --seeds 3
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.explain.algorithm import ExplainerAlgorithm

from fgai import backbones, datasets
from fgai.adversaries import GraphInjection
from fgai.graph import locate, require, segment_sum
from fgai.large.fitting import fit_graph
from fgai.methods import FGAI, AdversarialTraining, LayerNorm, Vanilla
from fgai.metrics import measure, roc_auc
from fgai.reading import Reader, Reading, open_reader
from fgai.seeding import seeded
from fgai.trial import Trial, attacked_trial, clean_trial
from resumable import keep, rows_in

OUT = Path("results/graph_reasons.json")
ATTACK = GraphInjection()
OURS = ("tree", "last", "first")
SLOW_GRAPHS = 10  # explained at most by the slow explainers
METRICS = ("f1", "auc", "g_tvd", "overlap", "g_jsd")
KEY = ("dataset", "backbone", "seed", "method", "graph", "explanation")
PYG: Any = {
    "explanation_type": "model",
    "edge_mask_type": "object",
    "model_config": {"mode": "multiclass_classification", "task_level": "graph", "return_type": "raw"},
}


def trained(
    data: Any, backbone: str, seed: int, batch: int, epochs: int, tuned: int
) -> Iterator[tuple[str, nn.Module]]:
    """Train the models of one seed."""
    start = backbones.build(backbone, data, seed=seed)
    settings: Any = {"epochs": epochs, "lr": 0.005, "seed": seed}
    vanilla = fit_graph(Vanilla(**settings), start, data, batch=batch).model
    yield "vanilla", vanilla
    yield "fgai", fit_graph(FGAI.preset("graphs", epochs=tuned, lr=0.005, seed=seed), vanilla, data, batch=batch).model
    yield "at", fit_graph(AdversarialTraining.preset("graphs", **settings), start, data, batch=batch).model
    yield "ln", fit_graph(LayerNorm("layer", **settings), start, data, batch=batch).model


def edge_weights(reading: Reading, name: str, read: Reader, graph: Data) -> Tensor:
    """Return the weight of each edge of the graph for its own graph: the sum over the nodes; [E]."""
    attribution = reading.attribution(name, read=read, graph=graph)
    at = locate(require(graph, "edge_index"), attribution.edge_index)
    return torch.where(at >= 0, attribution.total()[at], 0.0)


def pyg_weights(model: nn.Module, algorithm: ExplainerAlgorithm, graph: Data, number: int) -> Tensor:
    """Return the weights that an explainer of PyG gives to the edges of one graph; [E], 0 elsewhere."""
    batch, edges = require(graph, "batch"), require(graph, "edge_index")
    nodes, inside = (batch == number).nonzero().flatten(), batch[edges[1]] == number
    local = torch.full_like(batch, -1).scatter(0, nodes, torch.arange(len(nodes)))[edges[:, inside]]
    explain = Explainer(copy.deepcopy(model), algorithm, **PYG)  # PyG's explainers modify a model
    explained: Any = explain(require(graph, "x")[nodes], local, batch=torch.zeros_like(nodes))
    return torch.zeros(edges.size(1)).masked_scatter(inside, explained.edge_mask.detach().float())


def score(weight: Tensor, data: Any, number: int) -> float:
    """Return the AUROC of the weights [E] of the original edges against the known reasons of one graph."""
    if "node_mask" in data:
        weight, true = segment_sum(weight, data.edge_index[0], data.num_nodes), data.node_mask
        inside = data.batch == number
    else:
        true, inside = data.edge_mask, data.batch[data.edge_index[1]] == number
    return roc_auc(torch.stack([1 - weight[inside], weight[inside]], dim=1), true[inside].long())


def explainable(data: Any, trial: Trial) -> list[int]:
    """Return the test graphs that are predicted correctly and have reasons, but not only reasons."""
    of, true = (data.batch, data.node_mask) if "node_mask" in data else (data.batch[data.edge_index[1]], data.edge_mask)
    share = segment_sum(true.double(), of, data.num_graphs) / torch.bincount(of, minlength=data.num_graphs)
    chosen = data.test_mask & (trial.now.logits.argmax(-1) == data.y) & (share > 0) & (share < 1)
    return chosen.nonzero().flatten().tolist()


def scores(trial: Trial, data: Any, graphs: list[int], seed: int) -> Iterator[dict[str, Any]]:
    """Score each explanation of the batch of a trial on the original edges."""
    at = locate(data.edge_index, require(trial.graph, "edge_index"))
    draw = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(seed))
    weights = {name: edge_weights(trial.now, name, trial.read, trial.graph)[at] for name in OURS} | {"random": draw}
    for name, weight in weights.items():
        yield _row(name, [score(weight, data, number) for number in graphs])
    slow = {"GNNExplainer": GNNExplainer(epochs=100), "integrated gradients": CaptumExplainer("IntegratedGradients")}
    for name, algorithm in slow.items():
        start = time.process_time()
        with seeded(seed):
            each = [
                score(pyg_weights(trial.read.model, algorithm, trial.graph, number)[at], data, number)
                for number in graphs[:SLOW_GRAPHS]
            ]
        yield {**_row(name, each), "cpu_seconds": round(time.process_time() - start, 2)}


def _row(name: str, aurocs: list[float]) -> dict[str, Any]:
    mean = round(sum(aurocs) / len(aurocs), 4) if aurocs else None
    return {"explanation": name, "graphs": len(aurocs), "auroc": mean}


def cell(dataset: str, backbone: str, seed: int, given: argparse.Namespace) -> None:
    """Train, attack and explain the models of one dataset and seed, and keep the rows of each model as it ends."""
    data: Any = datasets.load(dataset, seed=seed)
    for method, model in trained(data, backbone, seed, given.batch, given.epochs, given.tuned):
        with open_reader(model) as read:
            clean = clean_trial(read, data, "tree")
            graphs, rows = explainable(data, clean), []
            for graph, trial in (("clean", clean), ("attacked", attacked_trial(ATTACK, "cross-entropy", clean, seed))):
                about = {"dataset": dataset, "backbone": backbone, "seed": seed, "method": method, "graph": graph}
                values = measure(trial)
                about |= {name: round(values[name], 4) for name in METRICS}
                about["settings"] = {"batch": given.batch, "epochs": given.epochs, "tuned": given.tuned}
                rows += [{**about, **row} for row in scores(trial, data, graphs, seed)]
        keep(OUT, KEY, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["ba-2motifs", "mutagenicity", "benzene"])
    parser.add_argument("--backbones", nargs="+", default=["gat-graphs", "gatv2-graphs", "gps-graphs"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--tuned", type=int, default=10, help="epochs of FGAI")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for seed, (dataset, backbone) in product(range(given.seeds), product(given.datasets, given.backbones)):
        done = rows_in(OUT)
        if not any((row["dataset"], row["backbone"], row["seed"]) == (dataset, backbone, seed) for row in done):
            cell(dataset, backbone, seed, given)


if __name__ == "__main__":
    main()
