"""Certified items under attack, and how many fall: results/attacked_certificates.json.

    python benchmarks/attacked_certificates.py                                   # all missing rows
    python benchmarks/attacked_certificates.py --models DIR --datasets cora --methods vanilla --items 200
    python benchmarks/attacked_certificates.py --attacks plain --items 10000     # one attack, on all test nodes
    python benchmarks/attacked_certificates.py --small 200                       # enumeration on small graphs alone

| attacker | against | what it does |
| --- | --- | --- |
| `single` | injection | `SingleTarget`: gradient ascent on the features of new neighbours of each node |
| `votes` | links | the same in each graph that votes; the new nodes are hashed into graphs whose vote they change |
| `plain` | links | `plain_attack.py`, which uses torch and PyG alone: each vote is attacked by itself |
| `random` | links | new neighbours with enlarged real features and deleted links, drawn at random |
| `enumeration` | deletions | all sets of deleted links of each node with few neighbours |
| `enumeration` | links | all sets of one and two changed links of small graphs with random models |

A violation is a certified item whose class changed, or whose top 5 lost more than was certified.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import combinations, combinations_with_replacement, product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GATv2Conv, GCNConv, TransformerConv

import plain_attack
from certified import SEEDS, real_looking
from fgai import backbones, datasets
from fgai.adversaries import SingleTarget
from fgai.adversaries.single import Union, unions
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.certificates import Deletions, Injection, Links, Voted, certify
from fgai.certificates.votes import link_groups
from fgai.files import write_json
from fgai.graph import add_nodes, delete_edges, require
from fgai.metrics import top_overlap
from fgai.metrics.explanation import TOP
from fgai.reading import open_reader, read

OUT = Path("results/attacked_certificates.json")
LINKS, DELETED, INJECTED, GROUPS = (1, 2, 5), (1, 2), (1, 2, 5), 11
FEW = {1: 40, 2: 12}  # neighbours of a node whose deletions are enumerated, by their number
HOPS, SMALL_NODES, SMALL_GROUPS = 2, 6, 5
KEY = ("dataset", "backbone", "method", "seed", "against", "groups", "budget", "attacker")
Row = dict[str, Any]


def counts(certified: Tensor, fell: Tensor, lost: Tensor | None = None) -> Row:
    """Items attacked, certified ones, violations of the class and of the top 5, and all that fell."""
    row = {"items": len(fell), "certified": int(certified.sum()), "fell": int(fell.sum())}
    return row | {
        "violations": int((certified & fell).sum()),
        "lost_members": None if lost is None else int(lost.sum()),
    }


def numbered(data: Data) -> Data:
    """The graph with the numbers of its nodes, which its parts keep."""
    graph = data.clone()
    graph.n_id = torch.arange(int(data.num_nodes or 0))
    return graph


def with_neighbours(union: Union, new: list[tuple[int, Tensor, int]]) -> Data:
    """The union with new nodes: the attacked node, the features and the number of each."""
    size = int(union.graph.num_nodes or 0)
    ends = torch.tensor([[size + place, at] for place, (at, _, _) in enumerate(new)]).reshape(-1, 2).t()
    x = require(union.graph, "x")
    rows = torch.stack([row for _, row, _ in new]) if new else torch.zeros(0, x.size(1))
    graph = add_nodes(union.graph, rows.to(x.dtype), torch.cat([ends, ends.flip(0)], dim=1))
    graph.n_id = torch.cat([require(union.graph, "n_id"), torch.tensor([number for *_, number in new]).long()])
    return graph


def attack_votes(model: nn.Module, data: Data, nodes: Tensor, steps: int) -> Iterator[Row]:
    """New neighbours that change as many votes as they can, and random changes; against links."""
    voted, graph = Voted(model, GROUPS), numbered(data)
    proof, total = certify(voted, data, against=Links(max(LINKS))), int(data.num_nodes or 0)
    votes = torch.stack([read(model, part).logits.argmax(1)[nodes] for part in voted.graphs(data)], dim=1)
    with open_reader(model) as reader:
        sweeps = [SingleTarget(steps=steps).sweep(reader, part, nodes) for part in voted.graphs(data)]
    useful = torch.stack([sweep.flipped for sweep in sweeps], dim=1) & (votes == proof.prediction[nodes, None])
    order = useful.long().argsort(dim=1, descending=True, stable=True)  # graphs in which the attack changes a vote
    numbers = torch.arange(total, total + 60 * GROUPS)
    place = {node: at for at, node in enumerate(nodes.tolist())}
    draw = torch.Generator().manual_seed(0)

    def targeted(node: int, at: int, links: int) -> list[tuple[int, Tensor, int]]:
        group = link_groups(torch.stack([torch.full_like(numbers, node), numbers]), GROUPS, voted.key)
        chosen = order[place[node], :links].tolist()
        return [(at, sweeps[g].x[place[node], 0], int(numbers[(group == g).nonzero()[0, 0]])) for g in chosen]

    def wild(node: int, at: int, links: int) -> list[tuple[int, Tensor, int]]:
        count = links if torch.rand((), generator=draw) < 0.5 else int(torch.randint(1, links + 1, (), generator=draw))
        scale = 10.0 ** torch.randint(0, 3, (count, 1), generator=draw)
        like = torch.randint(total, (1,), generator=draw).expand(count)  # copies of one real row, enlarged
        rows = scale * require(data, "x").index_select(0, like).to_dense()
        picked = torch.randperm(len(numbers), generator=draw)[:count]
        return [(at, row, int(numbers[i])) for row, i in zip(rows, picked, strict=True)]

    for links, (name, choose) in product(LINKS, {"votes": targeted, "random": wild}.items()):
        fell, attacked = [], []
        for union in unions(graph, nodes, HOPS):
            each = [choose(node, at, links) for node, at in zip(union.targets.tolist(), union.at.tolist(), strict=True)]
            now = with_neighbours(union, [one for new in each for one in new])
            if name == "random":  # what is left of the budget deletes links
                spare = torch.tensor([links - len(new) for new in each])
                now = delete_edges(now, deleted(now, union.at, random_neighbours(now, union.at, spare, total, draw)))
            fell.append(voted.votes(now).prediction[union.at] != proof.prediction[union.targets])
            attacked.append(union.targets)
        certified = proof.certified(links)[torch.cat(attacked)]
        yield {"against": "links", "groups": GROUPS, "budget": links, "attacker": name} | counts(
            certified, torch.cat(fell)
        )


def random_neighbours(graph: Data, at: Tensor, spare: Tensor, total: int, draw: torch.Generator) -> Tensor:
    """The numbers of old neighbours to delete, at random, `spare` of each attacked node; [T, L], filled with -1."""
    source, target = require(graph, "edge_index")
    numbers = require(graph, "n_id")
    rows = torch.full((len(at), max(1, int(spare.max()))), -1)
    for place, (node, count) in enumerate(zip(at.tolist(), spare.tolist(), strict=True)):
        old = numbers[source[target == node]]
        old = old[old < total]
        picked = old[torch.randperm(len(old), generator=draw)[:count]]
        rows[place, : len(picked)] = picked
    return rows


def deleted(graph: Data, at: Tensor, gone: Tensor) -> Tensor:
    """The edges between attacked node i and the nodes numbered gone[i], in both directions; [T], [T, L] -> [E]."""
    numbers = require(graph, "n_id")
    copy = torch.full_like(numbers, -1).scatter(0, at, torch.arange(len(at)))
    inside = torch.zeros(require(graph, "edge_index").size(1), dtype=torch.bool)
    for one, other in (require(graph, "edge_index"), require(graph, "edge_index").flip(0)):
        inside |= (copy[one] >= 0) & (gone[copy[one]] == numbers[other][:, None]).any(1)
    return inside


def attack_deletions(model: nn.Module, data: Data, nodes: Tensor, steps: int) -> Iterator[Row]:
    """All deletions at nodes with few neighbours, each in a copy of the node's neighbourhood."""
    proof, graph = certify(model, data, against=Deletions(max(DELETED))), numbered(data)
    source, target = require(data, "edge_index")
    beside = {node: sorted({*source[target == node].tolist()} - {node}) for node in nodes.tolist()}
    for links in DELETED:
        cases = [
            (node, gone)
            for node in beside
            if links <= len(beside[node]) <= FEW[links]
            for gone in combinations(beside[node], links)
        ]
        fallen, start = dict.fromkeys([node for node, _ in cases], False), 0
        for union in unions(graph, torch.tensor([node for node, _ in cases]), HOPS):
            gone = torch.tensor([gone for _, gone in cases[start : start + len(union.at)]])
            start += len(union.at)
            now = delete_edges(union.graph, deleted(union.graph, union.at, gone))
            changed = read(model, now).logits[union.at].argmax(1) != proof.prediction[union.targets]
            for node in union.targets[changed].tolist():
                fallen[node] = True
        attacked = torch.tensor(list(fallen)).long()
        yield {"against": "deletions", "groups": 1, "budget": links, "attacker": "enumeration"} | counts(
            proof.certified(links)[attacked], torch.tensor(list(fallen.values())).bool()
        )


def attack_injections(model: nn.Module, data: Data, nodes: Tensor, steps: int) -> Iterator[Row]:
    """New neighbours with features by gradient ascent: the class and the top 5 of each node."""
    graph = numbered(data)
    for new, (name, features) in product(INJECTED, {"injection": "box", "injection-realistic": "realistic"}.items()):
        allowed = Injection(new) if name == "injection" else real_looking(data, new)
        proof = certify(model, data, against=allowed, k=TOP)
        with open_reader(model) as reader:
            sweep = SingleTarget(nodes=new, steps=steps, features=features).sweep(reader, data, nodes)
        lost, start = [], 0
        for union in unions(graph, nodes, HOPS):
            rows = sweep.x[start : start + len(union.at)]
            start += len(union.at)
            pairs = [(at, row, -1) for at, own in zip(union.at.tolist(), rows, strict=True) for row in own]
            before, after = (read(model, one).explanation for one in (union.graph, with_neighbours(union, pairs)))
            if proof.overlap is not None:
                remaining = top_overlap(before, after, TOP)[union.at]
                lost.append(remaining < proof.overlap[union.targets] - 1e-6)
        totals = counts(proof.certified()[nodes], sweep.flipped.cpu(), torch.cat(lost) if lost else None)
        yield {"against": name, "groups": 1, "budget": new, "attacker": "single"} | totals


def attack_plainly(model: nn.Module, data: Data, nodes: Tensor, steps: int) -> Iterator[Row]:
    """The attacker that uses nothing of fgai; against links."""
    voted, x = Voted(model, GROUPS), require(data, "x")
    proof = certify(voted, data, against=Links(max(LINKS)))
    x = x.to_dense() if x.is_sparse else x
    outcome = plain_attack.attack(model, x, require(data, "edge_index"), nodes, GROUPS, voted.key)
    if not torch.equal(outcome.prediction, proof.prediction[nodes]):
        raise RuntimeError("the independent votes and those of fgai differ on the clean graph")
    for links in LINKS:
        yield {"against": "links", "groups": GROUPS, "budget": links, "attacker": "plain"} | counts(
            proof.certified(links)[nodes], outcome.falls(links)
        )


Attack = Callable[[nn.Module, Data, Tensor, int], Iterator[Row]]
ATTACKS: dict[str, tuple[Attack, str, str]] = {  # with what and by whom its last row is
    "votes": (attack_votes, "links", "random"),
    "plain": (attack_plainly, "links", "plain"),
    "deletions": (attack_deletions, "deletions", "enumeration"),
    "injections": (attack_injections, "injection-realistic", "single"),
}


class Small(nn.Module):
    """Two layers with random weights."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.one, self.two = layer(4, 8), layer(8, 3)
        for parameter in self.parameters():
            parameter.data += torch.randn_like(parameter)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Return the logits; [N, 3]."""
        return self.two(self.one(x, edge_index).relu(), edge_index)


@torch.no_grad()
def small(layer: Any, graphs: int) -> Iterator[Row]:
    """All sets of one and two changed links, self-loops included, of small graphs; against links."""
    torch.manual_seed(0)
    pairs = list(combinations_with_replacement(range(SMALL_NODES), 2))
    totals = {budget: torch.zeros(4, dtype=torch.long) for budget in (1, 2)}
    for _ in range(graphs):
        voted, x = Voted(Small(layer), SMALL_GROUPS), torch.randn(SMALL_NODES, 4)
        links = {pair for pair in pairs if torch.rand(()) < 0.7}
        clean = voted.votes(Data(x=x, edge_index=both_ways(links)))
        for budget in totals:
            changed = [both_ways(links ^ {*change}) for change in combinations(pairs, budget)]
            joint = torch.cat([one + i * SMALL_NODES for i, one in enumerate(changed)], dim=1)
            n_id = torch.arange(SMALL_NODES).repeat(len(changed))
            predictions = voted.votes(Data(x=x.repeat(len(changed), 1), edge_index=joint, n_id=n_id)).prediction
            fell = (predictions.view(-1, SMALL_NODES) != clean.prediction).any(0)
            row = counts(clean.budget >= budget, fell)
            totals[budget] += torch.tensor([row[name] for name in ("items", "certified", "fell", "violations")])
    about = {"dataset": "small graphs", "backbone": layer.__name__, "method": "random", "seed": 0}
    for budget, sums in totals.items():
        figures = dict(zip(("items", "certified", "fell", "violations"), sums.tolist(), strict=True))
        attacker = {"against": "links", "groups": SMALL_GROUPS, "budget": budget, "attacker": "enumeration"}
        yield about | attacker | figures | {"lost_members": None}


def both_ways(links: set[tuple[int, int]]) -> Tensor:
    """The edges of links in both directions; [2, E]."""
    ends = torch.tensor(sorted(links)).reshape(-1, 2).t()
    return torch.cat([ends, ends.flip(0)], dim=1)


def main(
    names: Annotated[str, typer.Option("--datasets", help="Separated by commas.")] = ",".join(SEEDS),
    methods: Annotated[str, typer.Option(help="Separated by commas; `fgai:bounded` is a preset.")] = "vanilla,fgai",
    backbone: Annotated[str, typer.Option(help="One backbone.")] = "gat",
    seeds: Annotated[int, typer.Option(help="At most so many seeds of each dataset.")] = 3,
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    items: Annotated[int, typer.Option(help="Number of test nodes, drawn at random.")] = 1_000,
    steps: Annotated[int, typer.Option(help="Steps of gradient ascent.")] = 40,
    attacks: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(ATTACKS),
    graphs: Annotated[int, typer.Option("--small", help="Small graphs of each layer, instead of datasets.")] = 0,
) -> None:
    torch.set_num_threads(1)
    rows = {tuple(row[part] for part in KEY): row for row in json.loads(OUT.read_text())} if OUT.exists() else {}

    def keep(row: Row) -> None:
        rows[tuple(row[part] for part in KEY)] = row
        write_json(OUT, [rows[at] for at in sorted(rows)])
        print(row, flush=True)

    if graphs:
        for layer in (GATConv, GATv2Conv, GCNConv, TransformerConv):
            for row in small(layer, graphs):
                keep(row)
        return
    for dataset, method in product(names.split(","), methods.split(",")):
        for seed in range(min(seeds, SEEDS[dataset])):
            name, _, preset = method.partition(":")
            cell = Cell(dataset, backbone, name, seed, preset or "default")
            about = {"dataset": dataset, "backbone": backbone, "method": method, "seed": seed}
            done = {(key[4], key[7]) for key in rows if key[:4] == tuple(about.values())}
            missing = [
                attack for name in attacks.split(",") for attack, *last in [ATTACKS[name]] if (*last,) not in done
            ]
            if not missing:
                continue
            data = backbones.BACKBONES[backbone].prepare(datasets.compact(datasets.load(dataset, seed=seed)))
            model = ModelStore(models).trained(cell, data).model.eval()
            test = require(data, "test_mask").nonzero().flatten()
            nodes = test[torch.randperm(len(test), generator=torch.Generator().manual_seed(seed))[:items]].sort().values
            for attack in missing:
                for row in attack(model, data, nodes, steps):
                    keep(about | row)


if __name__ == "__main__":
    typer.run(main)
