"""Molecules: accuracy and attention under attack, and known reasons by explanation, results/graph_reasons.json.

A fixed sample of molecules is split 60 / 15 / 25 % by class. The same model is trained by a plain PyG loop (`plain`),
as `vanilla`, with a layer norm on the attention (`ln`), adversarially (`at`) and by FGAI (`fgai`); the last two start
from the vanilla model. Each is attacked on the test graphs. AUROC: over the test graphs that have known reasons and are
predicted correctly on the clean graph, of the bonds (`mutagenicity`, mutagens only) or the atoms (`benzene`); the
weight of an atom is that of the bonds out of it. Explanations of an attacked graph rank its edges and are scored on the
original ones. Methods that have run are not run again.

python benchmarks/graph_reasons.py --seeds 3
python benchmarks/graph_reasons.py --trials --backbones gat-graphs  # FGAI on validation graphs of seed 0
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Batch, Data
from torch_geometric.explain import CaptumExplainer, Explainer, GNNExplainer
from torch_geometric.loader import DataLoader

from fgai import backbones, datasets
from fgai.adversaries import GraphInjection
from fgai.datasets.split import split_graphs
from fgai.graph import locate, require, segment_sum
from fgai.large.fitting import f1_on_test, fit_graph
from fgai.methods import FGAI, AdversarialTraining, LayerNorm, Vanilla
from fgai.metrics import METRICS, roc_auc
from fgai.reading import Reader, Reading, open_reader
from fgai.seeding import seeded
from fgai.trial import Trial, attacked_trial, clean_trial
from resumable import keep, rows_in

OUT, TRIALS = Path("results/graph_reasons.json"), Path("results/graph_trials.json")
GRAPHS, LARGEST = 2_000, 40  # molecules of a sample, and atoms of a molecule at most
BATCH, EPOCHS, TUNED, RATE, DECAY = 64, 30, 8, 0.005, 5e-4
ATTACK = GraphInjection()
OURS = ("tree", "last", "first")
SLOW_GRAPHS = 20  # explained at most by GNNExplainer and integrated gradients, for vanilla and FGAI
MEASURED = ("f1", "auc", "g_tvd", "overlap", "g_jsd")
METHODS = ("plain", "vanilla", "fgai", "at", "ln")
KEY = ("dataset", "backbone", "seed", "method", "graph")
SETTINGS = {"graphs": GRAPHS, "atoms at most": LARGEST, "batch": BATCH, "epochs": EPOCHS, "tuned": TUNED, "lr": RATE}


_SHORT: Any = {"adversary": GraphInjection(steps=1), "weight_decay": DECAY, "sharpness": 1.0}
_CALM: Any = {**_SHORT, "prediction": 3.0}
_ALL: Any = {"sites": ("conv1", "conv2", "conv3")}
TRIED: dict[str, Any] = {  # settings that replace those of FGAI's preset
    "vanilla": {},
    "preset": {},
    "prediction 3": _CALM,
    "prediction 3, support 3, all layers": {**_CALM, **_ALL, "target": "support", "sharpness": 3.0},
    "prediction 3, support 1, all layers, similarity 5": {**_CALM, **_ALL, "target": "support", "similarity": 5.0},
    "prediction 3, first layer, sharpness 5": {**_CALM, "sites": ("conv1",), "sharpness": 5.0},
    "prediction 1, explanation 1": {**_SHORT, "prediction": 1.0, "explanation": 1.0},
    "rate .001": {**_SHORT, "lr": 0.001},
    "closeness 5": {**_SHORT, "closeness": 5.0},
    "support 3": {**_SHORT, "target": "support", "sharpness": 3.0},
    "all layers, sharpness 2, rate .002": {**_SHORT, **_ALL, "sharpness": 2.0, "lr": 0.002},
}


@cache
def sample(name: str) -> list[list[Data]]:
    """Return a fixed random sample of the molecules of a dataset, by class and in proportion to the classes."""
    data: Any = datasets.load(name)
    small, generator = torch.bincount(data.batch) <= LARGEST, torch.Generator().manual_seed(0)
    classes = []
    for label in range(int(data.y.max()) + 1):
        among = (small & (data.y == label)).nonzero().flatten()
        count = round(GRAPHS * len(among) / int(small.sum()))
        chosen = among[torch.randperm(len(among), generator=generator)[:count]]
        classes.append([_without_bond_types(data.get_example(int(number))) for number in chosen])
    return classes


def _without_bond_types(graph: Any) -> Data:
    """Return the graph without what the models do not read."""
    return Data(**{name: value for name, value in graph.to_dict().items() if name != "edge_attr"})


def load(name: str, seed: int) -> Any:
    """Return the sample of a dataset as one batch, each class split 60 / 15 / 25 %."""
    parts: list[Any] = [split_graphs(graphs, seed, train=0.6, val=0.15) for graphs in sample(name)]
    return Batch.from_data_list([graph for part in parts for graph in part.to_data_list()])


def plain_loop(start: nn.Module, data: Any, seed: int) -> nn.Module:
    """Train as PyG's examples do, and return the model of the best validation epoch."""
    torch.manual_seed(seed)
    model = copy.deepcopy(start)
    train, validation = (data.index_select(mask) for mask in (data.train_mask, data.val_mask))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=DECAY)
    best, best_state = (-1.0, 0.0), model.state_dict()
    held: Any = Batch.from_data_list(validation)
    for _ in range(EPOCHS):
        model.train()
        for batch in DataLoader(train, BATCH, shuffle=True):
            optimizer.zero_grad()
            cross_entropy(model(batch.x, batch.edge_index, batch.batch), batch.y).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            logits = model(held.x, held.edge_index, held.batch)
        reached = float((logits.argmax(-1) == held.y).double().mean()), -float(cross_entropy(logits, held.y))
        if reached > best:
            best, best_state = reached, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return model.eval()


def trained(method: str, start: nn.Module, vanilla: nn.Module, data: Any, seed: int, **settings: Any) -> nn.Module:
    """Train one model; `settings` replace those of FGAI's preset."""
    shared: Any = {"epochs": EPOCHS, "lr": RATE, "seed": seed}
    short: Any = {**shared, "epochs": TUNED}
    if method == "ln":
        return fit_graph(LayerNorm("layer", **shared), start, data, batch=BATCH).model
    if method == "at":
        return fit_graph(AdversarialTraining.preset("graphs", **short), vanilla, data, batch=BATCH).model
    return fit_graph(FGAI.preset("graphs", **{**short, **settings}), vanilla, data, batch=BATCH).model


def edge_weights(reading: Reading, name: str, read: Reader, graph: Data) -> Tensor:
    """Return the weight of each edge of the graph for its own graph: the sum over the nodes; [E]."""
    attribution = reading.attribution(name, read=read, graph=graph)
    at = locate(require(graph, "edge_index"), attribution.edge_index)
    return torch.where(at >= 0, attribution.total()[at], 0.0)


class Answers(nn.Module):
    """The sum of the logits of the predicted classes of all graphs of a batch: its gradient is that of each graph."""

    def __init__(self, model: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.model, self.labels = model, labels

    def forward(self, x: Tensor, edge_index: Tensor, batch: Tensor) -> Tensor:
        """Return the sum; [1, 1]."""
        return self.model(x, edge_index, batch).gather(1, self.labels[:, None]).sum().view(1, 1)


def pyg_weights(name: str, model: nn.Module, graph: Data, graphs: Sequence[int]) -> Tensor:
    """Return the weights that an explainer of PyG gives to the edges of these graphs, all at once; [E], 0 elsewhere.

    The graphs have no edge in common. So one run of GNNExplainer explains all, if its penalty on the sum of the mask is
    divided by the number of graphs, as its loss, a mean over graphs, is.
    """
    batch, edges = require(graph, "batch"), require(graph, "edge_index")
    number = torch.full((int(batch.max()) + 1,), -1).scatter(0, torch.tensor(graphs), torch.arange(len(graphs)))
    nodes = number[batch].sort(stable=True).indices[int((number[batch] < 0).sum()) :]
    inside, model = number[batch[edges[1]]] >= 0, copy.deepcopy(model)  # PyG's explainers modify a model
    local = torch.full_like(batch, -1).scatter(0, nodes, torch.arange(len(nodes)))[edges[:, inside]]
    x, of = require(graph, "x")[nodes], number[batch[nodes]]
    about: Any = {"explanation_type": "model", "edge_mask_type": "object"}
    config: Any = {"task_level": "graph", "return_type": "raw", "mode": "multiclass_classification"}
    if name == "GNNExplainer":
        algorithm: Any = GNNExplainer(epochs=100, edge_size=0.005 / len(graphs))
    else:
        with torch.no_grad():
            model = Answers(model, model(x, local, of).argmax(-1))
        algorithm, config = CaptumExplainer("IntegratedGradients"), {**config, "mode": "regression"}
    explained: Any = Explainer(model, algorithm, **about, model_config=config)(x, local, batch=of)
    return torch.zeros(edges.size(1)).masked_scatter(inside, explained.edge_mask.detach().float())


def score(weight: Tensor, data: Any, graphs: Sequence[int]) -> float | None:
    """Return the mean AUROC of the weights [E] of the original edges against the known reasons of these graphs."""
    atoms = "node_mask" in data
    of, true = (data.batch, data.node_mask) if atoms else (data.batch[data.edge_index[1]], data.edge_mask)
    weight = segment_sum(weight, data.edge_index[0], data.num_nodes) if atoms else weight
    both = torch.stack([1 - weight, weight], dim=1)
    each = [roc_auc(both[of == number], true[of == number].long()) for number in graphs]
    return round(sum(each) / len(each), 4) if each else None


def explainable(data: Any, trial: Trial) -> list[int]:
    """Return the graphs that are predicted correctly and have reasons, but not only reasons."""
    atoms = "node_mask" in data
    of, true = (data.batch, data.node_mask) if atoms else (data.batch[data.edge_index[1]], data.edge_mask)
    share = segment_sum(true.double(), of, data.num_graphs) / torch.bincount(of, minlength=data.num_graphs)
    chosen = (trial.now.logits.argmax(-1) == data.y) & (share > 0) & (share < 1)
    chosen &= (data.y == 0) | atoms  # the groups of Mutagenicity are reasons for class 0, mutagens
    return chosen.nonzero().flatten().tolist()


def scores(trial: Trial, data: Any, graphs: list[int], seed: int) -> dict[str, float | None]:
    """Return the AUROC of the attention of a trial, and of random weights, on the original edges."""
    at = locate(data.edge_index, require(trial.graph, "edge_index"))
    draw = torch.rand(data.num_edges, generator=torch.Generator().manual_seed(seed))
    weights = {name: edge_weights(trial.now, name, trial.read, trial.graph)[at] for name in OURS} | {"random": draw}
    return {name: score(weight, data, graphs) for name, weight in weights.items()}


def slow_scores(model: nn.Module, graph: Data, data: Any, graphs: list[int], seed: int) -> dict[str, float | None]:
    """Return the AUROC of PyG's explainers on some graphs, and of nothing if there is none."""
    at, first, aurocs = locate(data.edge_index, require(graph, "edge_index")), graphs[:SLOW_GRAPHS], {}
    for name in ("GNNExplainer", "integrated gradients") if first else ():
        with seeded(seed):
            aurocs[name] = score(pyg_weights(name, model, graph, first)[at], data, first)
    return aurocs


def measured(model: nn.Module, test: Any, seed: int, slow: bool) -> Iterator[dict[str, Any]]:
    """Yield the figures of a model on the clean and on the attacked test graphs."""
    with open_reader(model) as read:
        clean = clean_trial(read, test, "tree")
        graphs = explainable(test, clean)
        trials = {"clean": clean, "attacked": attacked_trial(ATTACK, "cross-entropy", clean, seed)}
        rows: list[dict[str, Any]] = [
            {"graph": name}
            | {metric: round(METRICS[metric].compute(trial), 4) for metric in MEASURED}
            | {"explained": len(graphs), "auroc": scores(trial, test, graphs, seed)}
            for name, trial in trials.items()
        ]
    for row in rows:
        if slow:
            row["auroc"] |= slow_scores(model, trials[row["graph"]].graph, test, graphs, seed)
        yield row


def cell(dataset: str, backbone: str, seed: int, methods: Sequence[str]) -> None:
    """Train, attack and explain the models of one dataset, backbone and seed; keep the rows of each as it ends."""
    data = load(dataset, seed)
    start, test = backbones.build(backbone, data, seed=seed), Batch.from_data_list(data.index_select(data.test_mask))
    vanilla = start
    for method in dict.fromkeys(("vanilla", *methods)):
        begin = time.process_time()
        if method == "vanilla":
            vanilla = fit_graph(Vanilla(epochs=EPOCHS, lr=RATE, seed=seed), start, data, batch=BATCH).model
        about = {"dataset": dataset, "backbone": backbone, "seed": seed, "method": method, "settings": SETTINGS}
        if method == "plain":
            model = plain_loop(start, data, seed)
            rows = [{"graph": "clean", "f1": round(f1_on_test(model, data), 4)}]
        elif method in methods:
            model = vanilla if method == "vanilla" else trained(method, start, vanilla, data, seed)
            rows = list(measured(model, test, seed, slow=method in ("vanilla", "fgai")))
        else:
            continue
        seconds = round(time.process_time() - begin, 1)
        keep(OUT, KEY, [{**about, **row, "cpu_seconds": seconds} for row in rows])


def try_settings(dataset: str, backbone: str) -> None:
    """Train FGAI with each of the settings of `TRIED`; keep the figures on the validation graphs of seed 0."""
    data = load(dataset, 0)
    start = backbones.build(backbone, data)
    val: Any = Batch.from_data_list(data.index_select(data.val_mask))
    val["test_mask"] = val["val_mask"]
    vanilla = fit_graph(Vanilla(epochs=EPOCHS, lr=RATE), start, data, batch=BATCH).model
    done = {(row["dataset"], row["backbone"], row["trial"]) for row in rows_in(TRIALS)}
    for name, settings in TRIED.items():
        if (dataset, backbone, name) not in done:
            begin = time.process_time()
            model = trained("fgai", start, vanilla, data, 0, **settings) if name != "vanilla" else vanilla
            seconds = round(time.process_time() - begin, 1)
            about = {"dataset": dataset, "backbone": backbone, "trial": name, "settings": SETTINGS}
            rows = [{**about, **row, "cpu_seconds": seconds} for row in measured(model, val, 0, slow=False)]
            keep(TRIALS, ("dataset", "backbone", "trial", "graph"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datasets", nargs="+", default=["mutagenicity", "benzene"])
    parser.add_argument("--backbones", nargs="+", default=["gat-graphs", "gatv2-graphs", "gps-graphs"])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", action="store_true", help="FGAI's settings on validation graphs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cells = [(dataset, backbone) for backbone, dataset in product(given.backbones, given.datasets)]
    for dataset, backbone in cells if given.trials else ():
        try_settings(dataset, backbone)
    for seed, (dataset, backbone) in () if given.trials else product(range(given.seeds), cells):
        key = dataset, backbone, seed
        done = [row["method"] for row in rows_in(OUT) if tuple(row[name] for name in KEY[:3]) == key]
        if missing := [method for method in given.methods if method not in done]:
            cell(*key, missing)


if __name__ == "__main__":
    main()
