"""The paper's datasets by name, with its seeded splits; read offline where the raw files are there."""

from fgai.datasets.catalogue import DATASETS, load, load_links
from fgai.datasets.features import compact, fingerprint
from fgai.datasets.split import LinkSplit
from fgai.datasets.synthetic import synthetic

__all__ = ["DATASETS", "LinkSplit", "compact", "fingerprint", "load", "load_links", "synthetic"]
