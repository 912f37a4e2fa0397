"""Cora, CiteSeer and PubMed come as Python pickles, which can run code: only files of known content are opened."""

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


def check(raw: Path, found: Mapping[str, str]) -> None:
    """Refuse raw files that are not the published ones; `found` holds their digests."""
    for name, digest in found.items():
        if name in KNOWN and digest != KNOWN[name]:
            raise DataError(
                f"{raw / name} is not the published file (its SHA-256 differs), and as a pickle it could run code; "
                "delete it and load the dataset again"
            )


class CheckedPlanetoid(Planetoid):
    """PyG's Planetoid, which refuses raw files that are not the published ones."""

    def process(self) -> None:
        """Check every raw file, then read it as PyG does."""
        found, raw = digests(Path(self.raw_dir)), Path(self.raw_dir)
        check(raw, {Path(path).name: found[Path(path).name] for path in self.raw_paths})
        super().process()
