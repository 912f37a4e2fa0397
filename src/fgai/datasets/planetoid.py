"""Cora, CiteSeer and PubMed are Python pickles, which can run code: only files with a known SHA-256 are opened."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from torch_geometric.datasets import Planetoid

from fgai.datasets.cache import digests
from fgai.errors import DataError
from fgai.readers import parse_json

KNOWN: dict[str, str] = parse_json(
    files("fgai.datasets").joinpath("planetoid-sha256.json").read_bytes(), "planetoid-sha256.json", "install fgai again"
)


def check(raw: Path, known: Mapping[str, str]) -> None:
    """Raise `DataError` if a raw file is not the published one; `known` holds the digests of the files."""
    for name, digest in known.items():
        if name in KNOWN and digest != KNOWN[name]:
            raise DataError(
                f"{raw / name} is not the published file (its SHA-256 differs), and as a pickle it could run code; "
                "delete it and load the dataset again"
            )


class CheckedPlanetoid(Planetoid):
    """PyG's Planetoid with a check that the raw files are the published ones."""

    def process(self) -> None:
        """Check all raw files, then read them as PyG does."""
        known, raw = digests(Path(self.raw_dir)), Path(self.raw_dir)
        check(raw, {Path(path).name: known[Path(path).name] for path in self.raw_paths})
        super().process()
