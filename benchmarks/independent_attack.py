"""Node injection written anew, on plain PyG alone: is there much that fgai's `strongest` does not find?

Links go to nodes of high degree, or to a greedy cover of the graph, or to random nodes; features climb by Adam on
tanh-squashed variables, towards each class and away from the model's own answers; the worst of all restarts counts.
No attack code of fgai is used: its own loop, its own links, the model called directly.

    fgai bench chosen-links --out results/chosen-links           # keeps its models
    python benchmarks/independent_attack.py results/chosen-links/models/cora-gat-fgai-0

Rows go to results/independent.json, one per model and choice of links.
"""

import argparse
import copy
import time
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

    def __init__(self, linear: nn.Module, x: Tensor) -> None:
        super().__init__()
        self.linear, self.rows = linear, linear(x)

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
    linear = {name: part for name, part in short.named_modules() if isinstance(part, nn.Linear | Linear)}
    first = [name for name, part in linear.items() if part.weight.size(1) == x.size(1)]  # GATv2 has two
    if not first:
        return None
    new, ends = x[:2].flip(1), torch.tensor([[len(x), len(x) + 1], [0, 1]])
    edges = torch.cat([edge_index, ends], 1)
    for name in first:
        short.set_submodule(name, Appended(linear[name], x))
    same = torch.allclose(short(new, edges), model(torch.cat([x, new]), edges), rtol=1e-3, atol=1e-4)
    return short if same else None


def attack(
    model: nn.Module,
    data: Data,
    hubs: Tensor,
    wanted: int | None,
    answers: Tensor,
    args: argparse.Namespace,
    draw: torch.Generator,
    short: nn.Module | None = None,
) -> tuple[float, float]:
    """The least share of `answers` that 20 injected nodes leave, over `steps` steps of Adam, and the test F1 there."""
    x, y, edge_index, test = (require(data, name) for name in ("x", "y", "edge_index", "test_mask"))
    nodes = x.size(0)
    new = torch.arange(nodes, nodes + args.nodes).repeat_interleave(args.edges)
    edges = torch.cat([edge_index, torch.stack([new, hubs]), torch.stack([hubs, new])], 1)
    z = (0.1 * torch.randn(args.nodes, x.size(1), generator=draw)).requires_grad_()
    optimiser = torch.optim.Adam([z], lr=0.1)
    worst = (1.0, 1.0)
    for _ in range(args.steps):
        optimiser.zero_grad()
        logits = (model(torch.cat([x, z.tanh()]), edges) if short is None else short(z.tanh(), edges))[:nodes]
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
    answers, short = model(x, edge_index).argmax(1), shortened(model, x, edge_index)
    clean = float((answers == y)[require(data, "test_mask")].float().mean())
    for name in args.links:
        start, worst = time.process_time(), (1.0, clean)
        for restart in range(args.restarts):
            draw = torch.Generator().manual_seed(seed + restart)
            hubs = CHOICES[name](edge_index, x.size(0), args.nodes * args.edges, draw)
            for aim in (None, *range(int(y.max()) + 1)):
                worst = min(worst, attack(model, data, hubs, aim, answers, args, draw, short))
        about = {"model": folder.name, "links": name, "steps": args.steps, "restarts": args.restarts}
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
    parser.add_argument("--links", nargs="+", choices=CHOICES, default=list(CHOICES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in args.folders:
        attack_all(folder, args)


if __name__ == "__main__":
    main()
