"""Node injection written anew, on plain PyG alone: is there much that fgai's `strongest` does not find?

Links go to nodes of high degree, or to a greedy cover of the graph, or to random nodes; features climb by Adam on
tanh-squashed variables, towards each class and away from the model's own answers; the worst of all restarts counts.
No attack code of fgai is used: its own loop, its own links, the model called directly.

    python benchmarks/independent_attack.py cora --epochs 100
    python benchmarks/independent_attack.py cora --model gat.pt   # a state_dict of the backbone, trained before
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data

from fgai import backbones, datasets
from fgai.graph import require
from fgai.methods import Vanilla


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


def attack(
    model: nn.Module,
    data: Data,
    hubs: Tensor,
    wanted: int | None,
    answers: Tensor,
    args: argparse.Namespace,
    draw: torch.Generator,
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
        logits = model(torch.cat([x, z.tanh()]), edges)[:nodes]
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


def main() -> None:
    """Print the worst of each choice of links, and of all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--model", type=Path, help="a state_dict of the backbone, instead of training")
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--edges", type=int, default=40)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--links", nargs="+", choices=CHOICES, default=list(CHOICES))
    args = parser.parse_args()
    data = datasets.load(args.dataset, seed=args.seed)
    x, y, edge_index = (require(data, name) for name in ("x", "y", "edge_index"))
    data.x = x = x.to_dense() if x.is_sparse else x
    model = backbones.build("gat", data, seed=args.seed)
    if args.model is None:
        model = Vanilla(epochs=args.epochs, seed=args.seed).fit(model, data).model
    else:
        model.load_state_dict(torch.load(args.model, weights_only=True))
    model.eval().requires_grad_(False)
    answers = model(x, edge_index).argmax(1)
    print(f"clean F1 {float((answers == y)[require(data, 'test_mask')].float().mean()):.3f}")
    results = []
    for name in args.links:
        start, each, choose = time.process_time(), [], CHOICES[name]
        for restart in range(args.restarts):
            draw = torch.Generator().manual_seed(args.seed + restart)
            hubs = choose(edge_index, x.size(0), args.nodes * args.edges, draw)
            aims = (None, *range(int(y.max()) + 1))
            each += [attack(model, data, hubs, aim, answers, args, draw) for aim in aims]
        results += each
        same, right = min(each)
        print(f"{name:8s} answers kept {same:.3f}, F1 {right:.3f}, {time.process_time() - start:.0f} CPU s")
    print(f"worst of all: answers kept {min(results)[0]:.3f}, F1 {min(results)[1]:.3f}")


if __name__ == "__main__":
    main()
