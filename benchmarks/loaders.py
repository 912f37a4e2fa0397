"""PyG's NeighborLoader and LinkNeighborLoader beside our Loader; results/engines.json.

FORCE_ONLY_CPU=1 pip install --no-build-isolation torch-scatter torch-sparse   # half an hour of a core, by hand
python benchmarks/loaders.py speed      # sampling alone, on graphs in memory
python benchmarks/loaders.py fit        # FGAI on Cora from each loader, several seeds
python benchmarks/loaders.py links      # FGAI on the links of a small graph, from LinkNeighborLoader
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
import typer
from torch_geometric.data import Data
from torch_geometric.loader import LinkNeighborLoader, NeighborLoader

from batch_runs import Pieces
from fgai import FGAI, Vanilla, datasets
from fgai.adversaries import NodeInjection
from fgai.backbones import build
from fgai.bench.results import Cost, read_costs, write_costs
from fgai.graph import require
from fgai.large import Loader
from fgai.metrics.base import measure
from fgai.modes import eval_mode
from fgai.reading import Reader
from fgai.trial import attacked_trial, clean_trial

COMMAND, RESULTS = "python benchmarks/loaders.py", Path("results/engines.json")
FANOUT, BATCH = (10, 10), 1_024
SIZES = {"10^5": 100_000, "10^6": 1_000_000}
ATTACK = NodeInjection(nodes=20, edges=40)
app = typer.Typer()
LOADERS: dict[str, Callable[[Data, int, int], Iterable[Data]]] = {
    "Loader": lambda data, batch, seed: Loader(data, FANOUT, batch=batch, seed=seed),
    "NeighborLoader": lambda data, batch, _: NeighborLoader(data, list(FANOUT), batch_size=batch, shuffle=True),
}


def record(costs: dict[str, float], dataset: str, model: str = "gat") -> None:
    print(dataset, costs, flush=True)
    write_costs(RESULTS, [Cost(what, dataset, model, float(f"{v:.4g}"), COMMAND) for what, v in costs.items()])


def known() -> dict[tuple[str, str], float]:
    return {(cost.what, cost.dataset): cost.value for cost in read_costs(RESULTS)}


@app.command()
def speed(count: int = 20, rounds: int = 3) -> None:
    """CPU time of sampled batches with their features, interleaved; the best of some rounds."""
    torch.set_num_threads(1)
    for name, nodes in SIZES.items():
        graph = Pieces(nodes)
        edges, x = np.concatenate([*graph.edges()], axis=1).astype(np.int64), np.concatenate([*graph.x()])
        data = Data(x=torch.from_numpy(x), edge_index=torch.from_numpy(edges))
        best = dict.fromkeys(LOADERS, float("inf"))
        for number in range(rounds):
            for which, make in LOADERS.items():
                batches = iter(make(data, BATCH, number))
                next(batches)
                start = time.process_time()
                sampled = sum(next(batches).num_edges for _ in range(count))
                best[which] = min(best[which], (time.process_time() - start) / count / BATCH)
                print(which, sampled / count / BATCH, "edges a seed node", flush=True)
        costs = {f"sampling, CPU us a seed node, {which}": 1e6 * seconds for which, seconds in best.items()}
        costs["sampling, CPU time of Loader over NeighborLoader"] = best["Loader"] / best["NeighborLoader"]
        record(costs, f"generated, {name} nodes", "-")


@app.command()
def fit(dataset: str = "cora", epochs: int = 20, seeds: int = 3) -> None:
    """FGAI from each loader: metrics of clean and attacked graphs, with mean and deviation over seeds."""
    torch.set_num_threads(1)
    what = [f"{metric}, {graph}" for graph in ("clean", "attacked") for metric in ("f1", "overlap")]
    for seed in range(seeds):
        data = datasets.load(dataset, seed=seed)
        vanilla = Vanilla(epochs=100, seed=seed).fit(build("gat", data, seed=seed), data).model
        for which, make in LOADERS.items():
            if (f"FGAI from {which}, seed {seed}: {what[0]}", dataset) in known():
                continue
            torch.manual_seed(seed)
            model = FGAI(epochs=epochs, seed=seed).fit(vanilla, make(data, 512, seed)).model
            with eval_mode(model):
                clean = clean_trial(Reader(model), data)
                trials = {"clean": clean, "attacked": attacked_trial(ATTACK, "cross-entropy", clean, seed)}
                scores = {f"{metric}, {name}": v for name, one in trials.items() for metric, v in measure(one).items()}
            record({f"FGAI from {which}, seed {seed}: {name}": scores[name] or 0.0 for name in what}, dataset)
    for which in LOADERS:
        for name in what:
            values = [known()[f"FGAI from {which}, seed {seed}: {name}", dataset] for seed in range(seeds)]
            about = f"FGAI from {which}, mean of {seeds} seeds: {name}"
            record({about: mean(values), f"{about}, deviation": stdev(values)}, dataset)


def labelled_pairs(batch: Data) -> Data:
    """Return a batch whose labels are those of its pairs, and not of its nodes."""
    batch.y = batch["edge_label"].long()
    return batch


@app.command()
def links(epochs: int = 3) -> None:
    """FGAI on links: its items are the pairs of a batch of LinkNeighborLoader."""
    torch.set_num_threads(1)
    data = datasets.synthetic(1_000, 8_000, features=16, classes=4, signal=1.0, seed=0)
    edges = require(data, "edge_index")
    settings: dict[str, Any] = {"batch_size": 1_024, "neg_sampling_ratio": 1.0, "shuffle": True}
    labels = torch.ones(edges.size(1))
    loader = LinkNeighborLoader(data, list(FANOUT), edges, labels, transform=labelled_pairs, **settings)
    run = FGAI.preset("links", epochs=epochs).fit(build("gat-links", next(iter(loader))), loader)
    first, last = (sum(run.history[number].terms.values()) for number in (0, -1))
    costs = {"steps of an epoch": len(loader), "loss of the last epoch over the first": last / first}
    named = {f"FGAI from LinkNeighborLoader: {what}": value for what, value in costs.items()}
    record(named, "generated, 10^3 nodes", "gat-links")


if __name__ == "__main__":
    app()
