"""Share certified against an attacker of the graph, and accuracy: results/certified.json.

python benchmarks/certified.py                                     # all missing cells; trains missing models
python benchmarks/certified.py --datasets cora --methods vanilla   # selected cells

`vanilla` is plain training; `dropped-links` trains on a random share of the links in each epoch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn
from torch_geometric.data import Data

from fgai import backbones, datasets, saved
from fgai.calling import Call, call_by_signature
from fgai.certificates import Deletions, Links, Voted, certify
from fgai.files import write_json
from fgai.graph import delete_edges, require
from fgai.methods import Vanilla

OUT, MODELS = Path("results/certified.json"), Path("results/cells/models")
GROUPS, LINKS, DELETED = (5, 11, 25, 51), (1, 2, 5, 10), (1, 2)
BACKBONE, SEED = "gat", 0
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


METHODS: dict[str, Call | None] = {"vanilla": None, "dropped-links": DroppedLinks()}


def trained(dataset: str, method: str, data: Data) -> nn.Module:
    folder = MODELS / f"{dataset}-{BACKBONE}-{method}-{SEED}"
    if not (folder / "manifest.json").exists():
        fit = Vanilla(seed=SEED).fit(backbones.build(BACKBONE, data, seed=SEED), data, call=METHODS[method])
        shape = {"features": require(data, "x").size(1), "classes": int(require(data, "y").max()) + 1}
        saved.save(folder, fit.model, backbone=BACKBONE, method=method, seed=SEED, **shape)
    return saved.load(folder).model


def all_cells() -> Iterator[tuple[str, int, int]]:
    """Yield the threat, the number of groups and the budget of each cell."""
    yield from (("links", groups, budget) for groups in GROUPS for budget in LINKS)
    yield from (("deletions", 1, budget) for budget in DELETED)


def cells(model: nn.Module, data: Data, missing: list[tuple[str, int, int]]) -> Iterator[Row]:
    """Yield a row for each missing cell; one proof serves all budgets."""
    for (against, groups), group in groupby(missing, key=lambda cell: cell[:2]):
        if against == "links":
            proof = certify(Voted(model, groups), data, against=Links(max(LINKS)))
        else:
            proof = certify(model, data, against=Deletions(max(DELETED)))
        for *_, budget in group:
            yield {"against": against, "groups": groups, "budget": budget, "how": proof.how, **proof.shares(budget)}


def main(
    names: Annotated[str, typer.Option("--datasets", help="Separated by commas.")] = "amazon-photo,cora",
    methods: Annotated[str, typer.Option(help="Separated by commas.")] = ",".join(METHODS),
) -> None:
    torch.set_num_threads(1)
    key = ("dataset", "backbone", "method", "seed", "against", "groups", "budget")
    rows = {tuple(row[part] for part in key): row for row in json.loads(OUT.read_text())} if OUT.exists() else {}
    for dataset in names.split(","):
        data = datasets.compact(datasets.load(dataset, seed=SEED))
        for method in methods.split(","):
            about = {"dataset": dataset, "backbone": BACKBONE, "method": method, "seed": SEED}
            missing = [cell for cell in all_cells() if (*about.values(), *cell) not in rows]
            for cell in cells(trained(dataset, method, data), data, missing) if missing else ():
                row = about | {name: _finite(value) for name, value in cell.items()}
                rows[tuple(row[part] for part in key)] = row
                write_json(OUT, [rows[at] for at in sorted(rows)])
                print(row, flush=True)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    typer.run(main)
