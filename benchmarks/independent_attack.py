"""Node injection written anew, on plain PyG alone: is there much that fgai's `strongest` does not find?

Links go to nodes of high degree, or to a greedy cover of the graph, or to random nodes; features climb by Adam on
tanh-squashed variables, towards each class and away from the model's own answers; the worst of all restarts counts.
No attack code of fgai is used: its own loop, its own links, the model called directly. With `--hidden` the attacker
chooses the outputs of the first linear layers, of any size, not features: more than any box allows. The outputs are
those that some features give: where the weights have few directions, the attacker has as many numbers for each row.

    fgai bench chosen-links --out results/chosen-links           # keeps its models
    python benchmarks/independent_attack.py results/chosen-links/models/cora-gat-fgai-0

Rows go to results/independent.json, one per model and choice of links.
"""

import argparse
import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, pad
from torch_geometric.data import Data
from torch_geometric.nn.dense import Linear

from fgai import datasets, saved
from fgai.backbones.gt import GT
from fgai.graph import require
from resumable import keep

OUT = Path("results/independent.json")


def by_degree(edge_index: Tensor, nodes: int, count: int, draw: torch.Generator) -> Tensor:
    """The nodes of highest degree, in random order."""
    top = edge_index[1].bincount(minlength=nodes).topk(count).indices
    return top[torch.randperm(count, generator=draw)]


def by_cover(edge_index: Tensor, nodes: int, count: int, draw: torch.Generator) -> Tensor:
    """Again and again the node with most neighbours that are not covered yet, in random order."""
    near = [{node} for node in range(nodes)]  # of each node, what it would cover
    for source, target in edge_index.t().tolist():
        near[source].add(target)
    picked: dict[int, None] = {}
    covered: set[int] = set()
    while len(picked) < count:
        left = [node for node in range(nodes) if node not in picked]
        best = max(left, key=lambda node: len(near[node] - covered))
        picked[best] = None
        covered |= near[best]
    return torch.tensor(list(picked))[torch.randperm(count, generator=draw)]


def by_chance(edge_index: Tensor, nodes: int, count: int, draw: torch.Generator) -> Tensor:
    """Random nodes."""
    return torch.randperm(nodes, generator=draw)[:count]


CHOICES = {"cover": by_cover, "degree": by_degree, "chance": by_chance}


class Appended(nn.Module):
    """A linear layer that a model applies to its features: the rows of the graph are computed once.

    At each step it computes the injected rows only. The model is then called on these alone. It is otherwise PyG's own
    forward pass.
    """

    def __init__(self, linear: nn.Module, rows: Tensor) -> None:
        super().__init__()
        self.linear, self.rows = linear, rows

    def forward(self, x: Tensor) -> Tensor:
        """Return the rows of the graph and those of `x`."""
        return torch.cat([self.rows, self.linear(x)])


class WithEncodings(nn.Module):
    """A graph transformer with the encodings of the clean graph, and zeros for injected nodes."""

    def __init__(self, model: nn.Module, encodings: Tensor) -> None:
        super().__init__()
        self.model, self.encodings = model, encodings

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits of all nodes that the edges name."""
        added = max(len(x), int(edge_index.max()) + 1) - len(self.encodings)
        return self.model(x, edge_index, pad(self.encodings, (0, 0, 0, added)))


def shortened(model: nn.Module, x: Tensor, edge_index: Tensor) -> nn.Module | None:
    """The model with `Appended`, or None if its logits are not those of the model."""
    short = copy.deepcopy(model)
    first = first_layers(model, x)
    for name, linear in first.items():
        short.set_submodule(name, Appended(linear, linear(x)))
    new, ends = x[:2].flip(1), torch.tensor([[len(x), len(x) + 1], [0, 1]])
    edges = torch.cat([edge_index, ends], 1)
    same = bool(first) and torch.allclose(short(new, edges), model(torch.cat([x, new]), edges), rtol=1e-3, atol=1e-4)
    return short if same else None


def first_layers(model: nn.Module, x: Tensor) -> dict[str, nn.Linear | Linear]:
    """The linear layers of the features by name; GATv2 has two."""
    linear = {name: part for name, part in model.named_modules() if isinstance(part, nn.Linear | Linear)}
    return {name: part for name, part in linear.items() if part.weight.size(1) == x.size(1)}


def after_first(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    """The model whose injected rows are coordinates of the outputs of its first linear layers, and those of the graph.

    A model with one such layer of full rank takes its outputs themselves.
    """
    first, short = first_layers(model, x), copy.deepcopy(model)
    weight = torch.cat([linear.weight for linear in first.values()])
    left, size, _ = torch.linalg.svd(weight, full_matrices=False)
    rank = int((size > 1e-5 * size[0]).sum())
    basis = torch.eye(len(weight)) if rank == len(weight) else left[:, :rank]
    for (name, linear), part in zip(
        first.items(), basis.split([len(one.weight) for one in first.values()]), strict=True
    ):
        spanned = nn.Linear(part.size(1), len(part)).requires_grad_(False)
        spanned.weight.copy_(part)
        spanned.bias.copy_(torch.zeros(len(part)) if linear.bias is None else linear.bias)
        short.set_submodule(name, Appended(spanned, linear(x)))
    return short, x @ weight.t() @ basis


def attack(
    logits_of: Callable[[Tensor], Tensor],
    data: Data,
    start: Tensor,
    wanted: int | None,
    answers: Tensor,
    steps: int,
) -> tuple[float, float]:
    """The least share of `answers` that injected rows leave, over steps of Adam, and the test F1 there."""
    y, test = require(data, "y"), require(data, "test_mask")
    z = start.clone().requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1)
    worst = (1.0, 1.0)
    for _ in range(steps):
        optimiser.zero_grad()
        logits = logits_of(z)[: len(y)]
        same = logits.argmax(1) == answers
        right = (logits.argmax(1) == y)[test].float().mean()
        worst = min(worst, (float(same.float().mean()), float(right)))
        if wanted is None:
            loss = -cross_entropy(logits, answers)
        else:
            loss = cross_entropy(logits, torch.full_like(answers, wanted))
        loss.backward()
        optimiser.step()
    return worst


def attack_all(folder: Path, args: argparse.Namespace) -> None:
    """Attack a saved model with each choice of links, towards each class and away from its answers; save the worst."""
    loaded = saved.load(folder)
    seed, model = loaded.manifest["seed"], loaded.model.requires_grad_(False)
    data = datasets.load(loaded.manifest["data"], seed=seed)
    x, y, edge_index = (require(data, name) for name in ("x", "y", "edge_index"))
    data.x = x = x.to_dense() if x.is_sparse else x
    if loaded.manifest["backbone"] == "gt":
        model = WithEncodings(model, require(GT.prepare(data), "pe"))
    answers = model(x, edge_index).argmax(1)
    clean = float((answers == y)[require(data, "test_mask")].float().mean())
    short, rows = after_first(model, x) if args.hidden else (shortened(model, x, edge_index), x)

    def logits_of(edges: Tensor, z: Tensor) -> Tensor:
        if short is None:
            return model(torch.cat([x, z.tanh()]), edges)
        return short(z if args.hidden else z.tanh(), edges)

    for name in args.links:
        start, worst = time.process_time(), (1.0, clean)
        for restart in range(args.restarts):
            draw = torch.Generator().manual_seed(seed + restart)
            hubs = CHOICES[name](edge_index, len(x), args.nodes * args.edges, draw)
            new = torch.arange(len(x), len(x) + args.nodes).repeat_interleave(args.edges)
            edges = torch.cat([edge_index, torch.stack([new, hubs]), torch.stack([hubs, new])], 1)
            for aim in (None, *range(int(y.max()) + 1)):
                if args.hidden:
                    first = rows[torch.randperm(len(x), generator=draw)[: args.nodes]]
                else:
                    first = 0.1 * torch.randn(args.nodes, x.size(1), generator=draw)
                worst = min(worst, attack(partial(logits_of, edges), data, first, aim, answers, args.steps))
        links = f"{name}, hidden" if args.hidden else name
        about = {"model": folder.name, "links": links, "steps": args.steps, "restarts": args.restarts}
        figures = {"clean": clean, "kept": worst[0], "f1": worst[1], "seconds": time.process_time() - start}
        keep(OUT, ("model", "links"), [about | {key: round(value, 4) for key, value in figures.items()}])


def main() -> None:
    """Attack the models in the folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="saved models that are called with x and edge_index")
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--edges", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--hidden", action="store_true", help="rows of any size after the first linear layers instead")
    parser.add_argument("--links", nargs="+", choices=CHOICES, default=list(CHOICES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in args.folders:
        attack_all(folder, args)


if __name__ == "__main__":
    main()
