"""Shares certified against an attacker of the graph, with their baselines: results/certified.json.

    python benchmarks/certified.py                                    # all missing rows; trains missing models
    python benchmarks/certified.py --models DIR --datasets cora --backbones gat --methods vanilla,fgai
    python benchmarks/certified.py --models DIR --against deletions,injection --again  # rows that exist, computed again

A run that was stopped goes on where it was: rows are written as soon as they are known. `dropped-links` is plain
training on a random share of the links in each epoch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import groupby, product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.bench.models import ModelStore
from fgai.bench.plan import Cell
from fgai.calling import call_by_signature
from fgai.certificates import Deletions, Injection, Links, Proof, Voted, certify
from fgai.files import write_json
from fgai.graph import degree, delete_edges, require
from fgai.methods import Vanilla
from fgai.metrics.explanation import TOP
from fgai.settings import check_choice

OUT = Path("results/certified.json")
SEEDS = {
    "cora": 3,
    "citeseer": 3,
    "pubmed": 3,
    "amazon-photo": 3,
    "amazon-computers": 3,
    "coauthor-cs": 3,
    "coauthor-physics": 1,
}
ATTACKERS = ("links", "deletions", "injection", "injection-realistic")
BACKBONES, METHODS, DROPPED = ("gat", "gatv2", "gt"), ("vanilla", "fgai"), "dropped-links"
GROUPS, LINKS, DELETED, INJECTED = (5, 11, 25, 51), (1, 2, 5, 10), (1, 2), (1, 2, 5)
WHOLE_BOX = (-1.0, 1.0)
Row = dict[str, Any]


@dataclass(frozen=True)
class DroppedLinks:
    """Call a model on a random share of the links while it trains, between `least` and all, log-uniform."""

    least: float = 1 / 25

    def __call__(self, model: nn.Module, data: Data) -> Tensor:
        """Return the logits; in evaluation mode the share is the geometric mean, and the links are always the same."""
        links = require(data, "edge_index")
        generator = None if model.training else torch.Generator().manual_seed(0)
        draw = float(torch.rand((), generator=generator)) if model.training else 0.5
        keep = _by_pair(torch.rand(int(data.num_nodes or 0), 2, generator=generator), links) < self.least**draw
        return call_by_signature(model, delete_edges(data, ~keep))


def _by_pair(noise: Tensor, links: Tensor) -> Tensor:
    """Return a uniform number for each link, the same in both directions; [2, E] -> [E]."""
    first, second = links.amin(0), links.amax(0)
    return (noise[first, 0] + noise[second, 1]) % 1.0


def model_of(cell: Cell, data: Data, models: Path) -> nn.Module:
    """The model of a cell, from the folder of models or trained now."""
    folder = models / cell.name
    if cell.method == DROPPED and not folder.exists():
        start = backbones.build(cell.backbone, data, seed=cell.seed)
        fit = Vanilla(seed=cell.seed).fit(start, data, call=DroppedLinks())
        saved.save(folder, fit.model, backbone=cell.backbone, method={"name": DROPPED}, **backbones.shape_for(data))
    return saved.load(folder).model if cell.method == DROPPED else ModelStore(models).trained(cell, data).model


def real_looking(data: Data, nodes: int) -> Injection:
    """Injected nodes with features in the range of the data, and no more ones than the fullest row has."""
    x = require(data, "x")
    values, sums = (x.coalesce().values(), torch.sparse.sum(x, 1).to_dense()) if x.is_sparse else (x, x.sum(1))
    low, high = min(0.0, float(values.min())), float(values.max())
    ones = math.ceil(float((sums.double() - low * x.size(1)).max()) / (high - low))
    return Injection(nodes, (low, high), ones=ones)


def all_rows() -> Iterator[tuple[str, int, int]]:
    """Yield the attacker, the number of groups and the budget of each row of a model."""
    yield from (("links", groups, budget) for groups in GROUPS for budget in LINKS)
    yield from (("deletions", 1, budget) for budget in DELETED)
    yield from ((name, 1, budget) for name in ("injection", "injection-realistic") for budget in INJECTED)


def proof_of(model: nn.Module, data: Data, name: str, groups: int, budget: int) -> Proof:
    """The proof against one attacker; it holds for smaller budgets, too."""
    if name == "links":
        return certify(Voted(model, groups, fixed=("pe",)), data, against=Links(budget))
    if name == "deletions":
        return certify(model, data, against=Deletions(budget))
    allowed = Injection(budget, WHOLE_BOX) if name == "injection" else real_looking(data, budget)
    return certify(model, data, against=allowed, k=TOP)


def rows_of(cell: Cell, model: nn.Module, data: Data, missing: list[tuple[str, int, int]]) -> Iterator[Row]:
    """Yield the missing rows of a model. One proof serves all budgets, unless the overlap depends on them."""
    about = {"dataset": cell.dataset, "backbone": cell.backbone, "method": cell.method, "seed": cell.seed}
    for (name, groups), rows in groupby(missing, key=lambda row: row[:2]):
        budgets = [budget for *_, budget in rows]
        each = name.startswith("injection")
        proofs = {size: proof_of(model, data, name, groups, size) for size in (budgets if each else [max(budgets)])}
        for budget in budgets:
            proof = proofs.get(budget, proofs[max(proofs)])
            figures = {"how": proof.how, **proof.shares(budget), "overlap": contested_overlap(proof, data)}
            figures |= on_validation(proof, data, budget) if name == "links" else {}
            yield about | {"against": name, "groups": groups, "budget": budget} | figures


def contested_overlap(proof: Proof, data: Data) -> float | None:
    """The mean of the certified V_5 over nodes with 5 neighbours or more, themselves included: others lose nothing."""
    if proof.overlap is None:
        return None
    return float(proof.overlap[degree(require(data, "edge_index")[1], len(proof.overlap)) + 1 >= TOP].mean())


def on_validation(proof: Proof, data: Data, budget: int) -> Row:
    """The share certified and right, and the accuracy, of the validation nodes: T is chosen by them."""
    shares = replace(proof, test=require(data, "val_mask")).shares(budget)
    return {"validation": shares["certified_and_right"], "validation_accuracy": shares["accuracy"]}


def is_whole(row: Row) -> bool:
    """Whether a row has all its entries."""
    return row["against"] != "links" or "validation" in row


def key(row: Row) -> tuple[Any, ...]:
    """What a row is about."""
    return tuple(row[part] for part in ("dataset", "backbone", "method", "seed", "against", "groups", "budget"))


def main(
    names: Annotated[str, typer.Option("--datasets", help="Separated by commas.")] = ",".join(SEEDS),
    kinds: Annotated[str, typer.Option("--backbones", help="Separated by commas.")] = ",".join(BACKBONES),
    methods: Annotated[str, typer.Option(help=f"Separated by commas; {DROPPED} is one more.")] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(help="At most so many seeds of each dataset.")] = 3,
    against: Annotated[str, typer.Option(help="Attackers, separated by commas.")] = ",".join(ATTACKERS),
    models: Annotated[Path, typer.Option(help="A folder of saved models.")] = Path("models"),
    again: Annotated[bool, typer.Option(help="Compute rows again that exist.")] = False,
) -> None:
    torch.set_num_threads(1)
    for name in against.split(","):
        check_choice(ATTACKERS, against=name)
    rows = {key(row): row for row in json.loads(OUT.read_text())} if OUT.exists() else {}
    for dataset, backbone, method in product(names.split(","), kinds.split(","), methods.split(",")):
        for seed in range(min(seeds, SEEDS[dataset])):
            cell = Cell(dataset, backbone, method, seed)
            about = (dataset, backbone, method, seed)
            complete = {at for at, row in rows.items() if is_whole(row)}
            wanted = [row for row in all_rows() if row[0] in against.split(",")]
            missing = [row for row in wanted if again or (*about, *row) not in complete]
            if not missing:
                continue
            data = datasets.compact(datasets.load(dataset, seed=seed))
            data = backbones.BACKBONES[backbone].prepare(data)
            for row in rows_of(cell, model_of(cell, data, models), data, missing):
                rows[key(row)] = row
                write_json(OUT, [rows[at] for at in sorted(rows)])
                print(row, flush=True)


if __name__ == "__main__":
    typer.run(main)
