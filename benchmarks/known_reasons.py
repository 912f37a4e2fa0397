"""Which explanation finds the true edges? GATs on graphs with known true edges, results/known_reasons.json.

For each test node that has true edges and is predicted correctly: AUROC and precision at the number of true edges, over
the edges of its computation graph. Means over nodes. Explanations of the attacked graph rank its edges, injected ones
included, and are scored on the original edges. A cell (setting, dataset, seed) that has run is not run again.

python benchmarks/known_reasons.py --seeds 5
python benchmarks/known_reasons.py --released DIR  # a clone of jordan7186/GAtt: its models on its graphs
"""

from __future__ import annotations

import argparse
import copy
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.datasets.motif_generator import HouseMotif
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.explain.algorithm import ExplainerAlgorithm
from torch_geometric.nn import GAT as PyGGAT
from torch_geometric.utils import k_hop_subgraph

from fgai import datasets
from fgai.adversaries import NodeInjection
from fgai.backbones.gat import GAT
from fgai.datasets.reasons import infection, motifs
from fgai.datasets.split import split_nodes
from fgai.explanations import explain_node
from fgai.faithfulness import truth_scores
from fgai.graph import degree, locate, require
from fgai.methods import FGAI, Vanilla
from fgai.modes import eval_mode
from fgai.reading import Reader, Reading, open_reader
from fgai.seeding import seeded
from fgai.trial import Trial, attacked_trial, clean_trial
from released_gatt import released
from resumable import keep, rows_in

OUT = Path("results/known_reasons.json")
ATTACK = NodeInjection(nodes=10, edges=10, steps=20, box=None)  # adds 1 edge in 20
TRAINING_ATTACK = NodeInjection(nodes=10, edges=20, steps=3, box=None)
NODES, SLOW_NODES = 100, 10  # explained at most: by the fast, and by the slow explainers
OURS = ("tree", "last", "first", "leave-one-out")
KEY = ("setting", "dataset", "seed", "method", "graph", "explanation")
Mask = Callable[[int], Tensor]  # from a node to the weights of all edges
Case = tuple[int, Tensor, Tensor]  # a node, the edges that are scored [E], which of them are true
PYG: Any = {
    "explanation_type": "model",
    "edge_mask_type": "object",
    "model_config": {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
}


@dataclass(frozen=True)
class Setting:
    """Models of one kind, their graphs, and which edges are scored."""

    build: Callable[[int, int], nn.Module]  # from features and classes
    load: Callable[[str, int], Data]  # from a dataset and a seed
    datasets: tuple[str, ...]
    complete: tuple[str, ...]  # datasets with FGAI and the attacked graph
    vanilla: Vanilla
    induced: bool  # all edges between nodes up to L hops away are scored, else those on paths of L hops to the node


def as_gatt(dataset: str, seed: int) -> Data:
    """Generate a graph like those that GAtt is published with: 80 houses, or 5,000 nodes and labels up to 3 hops."""
    if dataset == "infection":
        data = infection(nodes=5000, infected=100, mean_degree=2.0, far=3, seed=seed)
    else:
        data = motifs(HouseMotif(), links=3, seed=seed)
        degrees = degree(require(data, "edge_index")[1], int(data.num_nodes or 0)).clamp(max=49)
        data.x = nn.functional.one_hot(degrees, 50).float()
    return split_nodes(data, seed, train=0.8, val=0.1)


SETTINGS = {
    "2 layers": Setting(
        lambda features, classes: GAT(features, classes, hidden=16, heads=4, dropout=0.0),
        lambda dataset, seed: datasets.load(dataset, seed=seed),
        ("ba-shapes", "infection", "ba-grids", "ba-cycles"),
        complete=("ba-shapes", "infection"),
        vanilla=Vanilla(epochs=300, patience=300),
        induced=False,
    ),
    "3 layers, as GAtt": Setting(
        lambda features, classes: PyGGAT(features, 16 if features > 2 else 8, 3, classes, heads=1, act="elu"),
        as_gatt,
        ("ba-shapes", "infection"),
        complete=(),
        vanilla=Vanilla(epochs=1000, patience=1000, weight_decay=0.0),
        induced=True,
    ),
}


def models(setting: Setting, data: Any, seed: int, complete: bool) -> Iterator[tuple[str, nn.Module]]:
    """Train the models of one seed."""
    with seeded(seed):
        model = setting.build(data.num_features, int(data.y.max()) + 1)
    model = replace(setting.vanilla, seed=seed).fit(model, data).model
    yield "vanilla", model
    if complete:
        yield "fgai", FGAI(adversary=TRAINING_ATTACK, seed=seed).fit(model, data).model


def masks(model: nn.Module, graph: Any, reading: Reading, read: Reader, seed: int) -> dict[str, Mask]:
    """Return for each explanation a function from a node to a mask over the edges of the graph."""

    def ours(name: str) -> Mask:
        ready = reading.attribution(name, read=read, graph=graph)
        return lambda node: explain_node(ready, node).mask(graph.edge_index)

    def pygs(algorithm: ExplainerAlgorithm) -> Mask:
        explain = Explainer(copy.deepcopy(model), algorithm, **PYG)  # PyG's explainers modify a model

        def mask(node: int) -> Tensor:
            """Explain the node on its subgraph of L hops, outside of which no edge affects it."""
            near, edges, at, inside = k_hop_subgraph(
                node, len(reading.attention), graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes
            )
            explained: Any = explain(graph.x[near], edges, index=int(at))
            return torch.zeros(graph.num_edges).masked_scatter(inside, explained.edge_mask.detach().float())

        return mask

    generator = torch.Generator().manual_seed(seed)
    return {
        **{name: ours(name) for name in OURS},
        "GNNExplainer": pygs(GNNExplainer(epochs=100)),
        "integrated gradients": pygs(CaptumExplainer("IntegratedGradients")),
        "random": lambda _: torch.rand(graph.num_edges, generator=generator),
    }


def cases(reading: Reading, data: Any, right: Tensor, seed: int, induced: bool) -> list[Case]:
    """Return up to NODES of the test nodes that are `right` and have true edges, in random order."""
    chosen = (right & data.test_mask).nonzero().flatten()
    order = chosen[torch.randperm(len(chosen), generator=torch.Generator().manual_seed(seed))]
    candidates = [(node, *inside(reading, data, node, induced)) for node in order.tolist()]
    return [case for case in candidates if 0 < int(case[2].sum()) < len(case[2])][:NODES]


def inside(reading: Reading, data: Any, node: int, induced: bool) -> tuple[Tensor, Tensor]:
    """Return the edges that are scored for a node, and which of them are true."""
    hop = hops(reading, data.edge_index, node)
    near = hop > 0
    if induced:
        *_, near = k_hop_subgraph(node, len(reading.attention), data.edge_index, num_nodes=data.num_nodes)
    return near, datasets.true_edges(data, node, hop)[near]


def hops(reading: Reading, edge_index: Tensor, node: int) -> Tensor:
    """Return the hop of each edge, 1 for edges into the node, 0 outside its computation graph; [E]."""
    explained = reading.explain(node, "tree")
    return torch.cat([explained.hop, explained.hop.new_zeros(1)])[locate(edge_index, explained.edge_index)]


def nearest_first(hop: Tensor) -> Tensor:
    """Return weights that rank edges by their hop, the nearest first; [E]."""
    return torch.where(hop > 0, 1 / hop.clamp(min=1), 0.0)


def scores(trial: Trial, known: list[Case], original: Tensor, seed: int) -> list[dict[str, Any]]:
    """Score each explanation of the graph of a trial on the original edges."""
    model, graph, rows = trial.read.model, trial.graph, []
    at = locate(original, require(graph, "edge_index"))
    with eval_mode(model):
        for explanation, mask in masks(model, graph, trial.now, trial.read, seed).items():
            start = time.process_time()
            explained_cases = known if explanation in (*OURS, "random") else known[:SLOW_NODES]
            with seeded(seed):
                each = [truth_scores(mask(node)[at][near], true) for node, near, true in explained_cases]
            rows.append(
                {
                    "explanation": explanation,
                    "nodes": len(explained_cases),
                    "auroc": round(sum(one.auroc for one in each) / len(each), 4),
                    "precision": round(sum(one.precision for one in each) / len(each), 4),
                    "cpu_seconds": round(time.process_time() - start, 2),
                }
            )
    return rows


def cell(name: str, dataset: str, seed: int) -> list[dict[str, Any]]:
    """Train, attack and explain the models of one setting, dataset and seed."""
    setting, rows = SETTINGS[name], []
    data: Any = setting.load(dataset, seed)
    complete = dataset in setting.complete
    for method, model in models(setting, data, seed, complete):
        with open_reader(model) as read:
            trials = {"clean": clean_trial(read, data)}
            if complete:
                trials["attacked"] = attacked_trial(ATTACK, "cross-entropy", trials["clean"], seed)
            clean = trials["clean"].now
            known = cases(clean, data, clean.logits.argmax(-1) == data.y, seed, setting.induced)
            for graph, trial in trials.items():
                right = trial.now.logits[: len(data.y)].argmax(-1) == data.y
                about = {"setting": name, "dataset": dataset, "seed": seed, "method": method, "graph": graph}
                about["accuracy"] = round(float(right[data.test_mask].double().mean()), 4)
                rows += [{**about, **row} for row in scores(trial, known, data.edge_index, seed)]
    return rows


def nearest(name: str, dataset: str, seed: int) -> list[dict[str, Any]]:
    """Score a ranking of the edges by their hop, the nearest first: what the graph gives away without a model."""
    setting = SETTINGS[name]
    data: Any = setting.load(dataset, seed)
    with open_reader(setting.build(data.num_features, int(data.y.max()) + 1)) as read:
        reading = read.checked(data)
    known = cases(reading, data, data.y >= 0, seed, setting.induced)
    each = [truth_scores(nearest_first(hops(reading, data.edge_index, node))[near], true) for node, near, true in known]
    about = {"setting": name, "dataset": dataset, "seed": seed, "method": "none", "graph": "clean"}
    return [
        {
            **about,
            "explanation": "nearest",
            "nodes": len(each),
            "auroc": round(sum(one.auroc for one in each) / len(each), 4),
            "precision": round(sum(one.precision for one in each) / len(each), 4),
        }
    ]


def released_rows(folder: Path) -> list[dict[str, Any]]:
    """Score attention on the released models of GAtt, in the setting of their authors.

    All edges between nodes up to L hops away are scored, for all nodes whose true edges the authors give.
    """
    rows = []
    for one in released(folder):
        with open_reader(one.model) as read:
            reading = read.checked(Data(x=one.x, edge_index=one.edge_index, y=one.y))
        ready = {name: reading.attribution(name) for name in ("tree", "last", "first")}
        weights = torch.stack([a.weights_at(one.edge_index).mean(1) for a in reading.attention.values()])
        aurocs: dict[str, list[float]] = defaultdict(list)
        difference = 0.0
        for node, true in one.true_edges():
            *_, near = k_hop_subgraph(node, len(weights), one.edge_index, num_nodes=len(one.x))
            if 0 < int(true[near].sum()) < int(near.sum()):
                masks = {name: explain_node(row, node).mask(one.edge_index) for name, row in ready.items()}
                difference = max(difference, float((masks["tree"] - gatt(reading, one.edge_index, node)).abs().max()))
                masks["mean of the layers"] = weights.mean(0)
                masks["nearest"] = nearest_first(hops(reading, one.edge_index, node))
                for name, mask in masks.items():
                    aurocs[name].append(truth_scores(mask[near], true[near]).auroc)
        about = {"setting": f"released, {len(weights)} layers", "dataset": one.dataset, "seed": 0, "method": "vanilla"}
        about |= {"graph": "clean", "accuracy": round(float((reading.logits.argmax(-1) == one.y).double().mean()), 4)}
        for name, values in aurocs.items():
            row = {**about, "explanation": name, "nodes": len(values), "auroc": round(sum(values) / len(values), 4)}
            rows.append({**row, "difference": difference} if name == "tree" else row)
    return rows


def gatt(reading: Reading, edge_index: Tensor, node: int) -> Tensor:
    """Return GAtt's weights of these edges by its definition: layer by layer, from the node backwards; [E]."""
    arriving = torch.zeros(len(reading.logits), dtype=torch.double)  # attention on all paths from here to the node
    arriving[node] = 1.0
    total = torch.zeros(edge_index.size(1), dtype=torch.double)
    for attention in reversed(list(reading.attention.values())):
        total += arriving[edge_index[1]] * attention.weights_at(edge_index).double().mean(1)
        passed = arriving[attention.target] * attention.weight.double().mean(1)
        arriving = torch.zeros_like(arriving).index_add(0, attention.source, passed)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--released", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.released:
        return keep(OUT, KEY, released_rows(given.released))
    for seed in range(given.seeds):
        for name, setting in SETTINGS.items():
            for dataset, run in product(setting.datasets, (cell, nearest)):
                done = rows_in(OUT)
                cell_rows = [
                    row for row in done if (row["setting"], row["dataset"], row["seed"]) == (name, dataset, seed)
                ]
                if not any((row["method"] == "none") == (run is nearest) for row in cell_rows):
                    keep(OUT, KEY, run(name, dataset, seed))
    return None


if __name__ == "__main__":
    main()
