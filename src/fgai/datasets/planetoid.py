"""Cora, CiteSeer and PubMed come as Python pickles, which can run code: only files of known content are opened."""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path

from torch_geometric.datasets import Planetoid

from fgai.errors import DataError

KNOWN: dict[str, str] = json.loads(files("fgai.datasets").joinpath("planetoid-sha256.json").read_text())


class CheckedPlanetoid(Planetoid):
    """PyG's Planetoid, which refuses raw files that are not the published ones."""

    def process(self) -> None:
        """Check every raw file, then read it as PyG does."""
        for path in map(Path, self.raw_paths):
            if hashlib.sha256(path.read_bytes()).hexdigest() != KNOWN[path.name]:
                raise DataError(
                    f"{path} is not the published file (its SHA-256 differs), and as a pickle it could run code; "
                    "delete it and load the dataset again"
                )
        super().process()
