"""Randomised message interception (Scholten et al., NeurIPS 2022) beside votes: results/interception.json.

    python benchmarks/interception.py --released CLONE        # their GAT on Cora-ML, from a clone of their repository
    python benchmarks/interception.py --models DIR            # our GAT on Cora

Written anew after the paper. A smoothed classifier predicts the class that the model predicts most often on random
graphs: each edge is deleted with probability p_d, the features of each node are replaced by a learned token with p_a.

| attacker | statement |
| --- | --- |
| `features` | controls the features of m nodes that lead to the node, not the node itself; the edges do not change |
| `links` | e links anywhere, in both directions, and any new nodes: what votes are certified against |

For `features` a message of source s arrives with probability at most (1 - p_a) (1 - prod over paths (1 - (1 - p_d)^l))
(Theorem 2), of m sources with Delta = 1 - prod (1 - .) over the m largest (Theorem 3). For `links`, a changed link
matters only if it is not deleted, so Delta = 1 - p_d^e; both directions of a link share one coin. The class stays if
lower(p_1) - Delta > upper(p_2) + Delta, with Clopper-Pearson bounds, which hold with a probability of 1 - ALPHA for
each node; votes hold always. p_d = 1 - 1/T keeps as many links of a graph as T groups do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import beta
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai import datasets
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.certificates import Links, Voted, certify
from fgai.graph import edge_keys, require
from released_gatt import conv_parameters, load_tensors
from resumable import Row, keep, rows_in

OUT = Path("results/interception.json")
KEY = ("dataset", "model", "method", "against", "groups", "budget")
PRE_SAMPLES, SAMPLES, ALPHA = 1_000, 3_000, 0.01  # as in their demo
DELETED, ABLATED = 0.361449, 0.794  # as in their demo
NODES, LINKS, GROUPS = (1, 2, 3, 5, 10), (1, 2, 5, 10), (11, 25)
LINK_PRE_SAMPLES, LINK_SAMPLES = 250, 1_000
HIDDEN = 8  # heads and channels


class GAT(nn.Module):
    """Two GATConv layers; with `skip` the logits of the graph without links are added, as in their models."""

    def __init__(self, features: int, classes: int, skip: bool) -> None:
        super().__init__()
        self.conv1: Any = GATConv(features, HIDDEN, heads=HIDDEN)  # its projection is replaced below
        self.conv2 = GATConv(HIDDEN * HIDDEN, classes)
        self.skip = skip

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, C]."""
        logits = self.layers(self.conv1.lin(x), edge_index)
        return logits + self.own(self.conv1.lin(x)) if self.skip else logits

    def layers(self, z: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of projected features; [N, H C] -> [N, C]."""
        first = self.conv1
        lin, first.lin = first.lin, nn.Identity()
        try:
            hidden = first(z, edge_index)
        finally:
            first.lin = lin
        return self.conv2(nn.functional.elu(hidden), edge_index)

    def own(self, z: Tensor) -> Tensor:
        """Return the part of the logits that no link and no ablation changes; [N, C]."""
        none = torch.zeros(2, 0, dtype=torch.long)
        alone = (z + self.conv1.bias).relu()
        return self.conv2(alone, none)


@dataclass(frozen=True)
class Task:
    """A model, its graph with `y` and `test_mask`, and the token of an ablated node, if the model has one."""

    dataset: str
    name: str
    model: GAT
    data: Data
    token: Tensor | None = None


def their_task(folder: Path) -> Task:
    """The published GAT, the graph Cora-ML, and the test nodes of their demo."""
    loaded = load_tensors(folder / "data/pretrained_models/pretrained_GAT_cora_ml.pt").state["_modules"]
    parts = {
        f"{name}.{key}": value for name in ("conv1", "conv2") for key, value in conv_parameters(loaded[name]).items()
    }
    stored = np.load(folder / "data/graphs/cora_ml.npz")
    y = torch.tensor(stored["y"]).long()
    x = torch.zeros(len(y), int(stored["X"][1].max()) + 1)
    x[stored["X"][0], stored["X"][1]] = 1.0
    model = GAT(x.size(1), int(y.max()) + 1, skip=True)
    model.load_state_dict({name: value for name, value in parts.items() if not name.endswith("att_edge")})
    data = Data(x=x, edge_index=torch.tensor(stored["A"]).long(), y=y, test_mask=their_test_nodes(stored["y"]))
    return Task("cora-ml", "published GAT", model, data, loaded["ablate"].state["_parameters"]["token"])


def their_test_nodes(y: np.ndarray, seed: int = 42, each: int = 20) -> Tensor:
    """A tenth of the nodes that are left after `each` training and validation nodes of each class; [N]."""
    draw = np.random.RandomState(seed)
    used = [draw.permutation(np.flatnonzero(y == c))[: 2 * each] for c in range(int(y.max()) + 1)]
    left = np.setdiff1d(np.arange(len(y)), np.concatenate(used))
    mask = torch.zeros(len(y), dtype=torch.bool)
    mask[left[np.random.RandomState(seed).permutation(len(left))[: -(-len(left) // 10)]]] = True
    return mask


def our_task(models: Path) -> Task:
    """The vanilla GAT on Cora."""
    data = datasets.load("cora", seed=0)
    fitted = ModelStore(models).trained(Cell("cora", "gat", "vanilla", 0), datasets.compact(data)).model
    x = require(data, "x")
    data.x = x.to_dense() if x.is_sparse else x
    model = GAT(data.x.size(1), int(require(data, "y").max()) + 1, skip=False)
    model.load_state_dict(fitted.state_dict())
    return Task("cora", "vanilla GAT", model, data)


@torch.no_grad()
def sampled(task: Task, deleted: float, ablated: float, samples: int, both_ways: bool, draw: torch.Generator) -> Tensor:
    """The predictions of random graphs, counted; [N, C]."""
    edges, z = require(task.data, "edge_index"), task.model.conv1.lin(require(task.data, "x"))
    token = None if task.token is None else task.model.conv1.lin(task.token[None])
    own = task.model.own(z) if task.model.skip else 0.0
    ends = torch.stack([edges.amin(0), edges.amax(0)])
    coin = edge_keys(ends, len(z)).unique(return_inverse=True)[1] if both_ways else torch.arange(edges.size(1))
    counts, rows = torch.zeros(len(z), len(task.model.conv2.bias), dtype=torch.long), torch.arange(len(z))
    for _ in range(samples):
        remains = torch.rand(int(coin.max()) + 1, generator=draw)[coin] >= deleted
        gone = torch.rand(len(z), 1, generator=draw) < ablated
        features = z if token is None else torch.where(gone, token, z)
        counts[rows, (task.model.layers(features, edges[:, remains]) + own).argmax(1)] += 1
    return counts


@dataclass(frozen=True)
class Smoothed:
    """The prediction of a smoothed classifier with bounds of the probabilities of its first and second class; [N]."""

    prediction: Tensor
    lower: Tensor
    upper: Tensor

    @classmethod
    def of(cls, first: Tensor, counts: Tensor) -> Smoothed:
        """Take the classes from one set of samples, and the bounds from another."""
        best, second = first.topk(2).indices.t()
        samples, level = counts.sum(1), ALPHA / counts.size(1)  # Bonferroni over classes
        hits, others = (counts.gather(1, at[:, None])[:, 0] for at in (best, second))
        lower = np.nan_to_num(beta.ppf(level, hits, samples - hits + 1), nan=0.0)
        upper = np.nan_to_num(beta.ppf(1 - level, others + 1, samples - others), nan=1.0)
        return cls(best, torch.tensor(lower), torch.tensor(upper))

    def certified(self, delta: float | Tensor) -> Tensor:
        """Where the class stays if random graphs differ with probability `delta` at most; [N]."""
        return self.lower - delta > self.upper + delta


def deltas(task: Task, distance: int) -> Tensor:
    """The probability that the features of m nodes at this distance or more arrive, m = 1, 2, ...; [tests, sources].

    Paths have at most two edges, as the model has two layers.
    """
    edges, nodes = require(task.data, "edge_index"), int(task.data.num_nodes or 0)
    edges = edges[:, edges[0] != edges[1]]
    direct = torch.zeros(nodes, nodes)
    direct[edges[0], edges[1]] = 1.0
    tests = require(task.data, "test_mask").nonzero().flatten()
    one, two = direct[:, tests], direct @ direct[:, tests]
    two[tests, torch.arange(len(tests))] = 0.0  # the node itself is not a source
    if distance == 2:
        one, two = torch.zeros_like(one), two.masked_fill(one > 0, 0.0)
    keep_edge = 1 - DELETED
    arrives = (1 - ABLATED) * (1 - DELETED**one * (1 - keep_edge**2) ** two)
    return 1 - (1 - arrives.sort(dim=0, descending=True).values.double()).cumprod(0).t()


def against_features(task: Task, draw: torch.Generator) -> Iterator[Row]:
    """Rows of interception against an attacker of features."""
    first, counts = (sampled(task, DELETED, ABLATED, n, False, draw) for n in (PRE_SAMPLES, SAMPLES))
    smoothed, test = Smoothed.of(first, counts), require(task.data, "test_mask")
    for distance in (1, 2):
        delta = deltas(task, distance)
        for nodes in (0, *NODES):
            certified = torch.zeros_like(test)
            at_most = 0.0 if nodes == 0 else delta[:, nodes - 1]
            certified[test] = replace(smoothed, lower=smoothed.lower[test], upper=smoothed.upper[test]).certified(
                at_most
            )
            name = f"features at distance {distance} or more"
            passes = PRE_SAMPLES + SAMPLES
            yield shares(task, "interception", name, 0, nodes, passes, smoothed.prediction, certified)


def against_links(task: Task, groups: int, draw: torch.Generator) -> Iterator[Row]:
    """Rows of interception and of votes against changed links."""
    deleted, samples = 1 - 1 / groups, (LINK_PRE_SAMPLES, LINK_SAMPLES)
    smoothed = Smoothed.of(*(sampled(task, deleted, 0.0, count, True, draw) for count in samples))
    proof = certify(Voted(task.model, groups), task.data, against=Links(max(LINKS)))
    for links in (0, *LINKS):
        certified = smoothed.certified(1 - deleted**links)
        yield shares(task, "interception", "links", groups, links, sum(samples), smoothed.prediction, certified)
        yield shares(task, "votes", "links", groups, links, groups, proof.prediction, proof.certified(links))


def shares(
    task: Task,
    method: str,
    against: str,
    groups: int,
    budget: int,
    passes: int,
    prediction: Tensor,
    certified: Tensor,
) -> Row:
    """The accuracy, and the shares certified, and certified and right, of the test nodes."""
    test = require(task.data, "test_mask")
    right = (prediction == require(task.data, "y"))[test]
    about = {"dataset": task.dataset, "model": task.name, "method": method, "against": against, "groups": groups}
    sure = certified[test]
    return about | {
        "budget": budget,
        "items": len(right),
        "passes": passes,
        "accuracy": float(right.double().mean()),
        "certified": float(sure.double().mean()),
        "certified_and_right": float((sure & right).double().mean()),
    }


def main(
    released: Annotated[Path | None, typer.Option(help="A clone of yascho/interception_smoothing.")] = None,
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
) -> None:
    torch.set_num_threads(1)
    task, draw = our_task(models) if released is None else their_task(released), torch.Generator().manual_seed(0)
    task.model.eval()
    with torch.no_grad():
        logits = task.model(require(task.data, "x"), require(task.data, "edge_index"))
        test = require(task.data, "test_mask")
        print(f"plain accuracy {float((logits.argmax(1) == require(task.data, 'y'))[test].double().mean()):.3f}")
    done = {(row["dataset"], row["against"], row["groups"]) for row in rows_in(OUT)}
    if task.token is not None and not any(about[0] == task.dataset and about[2] == 0 for about in done):
        keep(OUT, KEY, list(against_features(task, draw)))
    for groups in GROUPS:
        if (task.dataset, "links", groups) not in done:
            keep(OUT, KEY, list(against_links(task, groups, draw)))


if __name__ == "__main__":
    typer.run(main)
