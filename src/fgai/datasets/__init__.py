"""The paper's datasets by name, with its seeded splits; read offline where the raw files are there."""

from fgai.datasets.catalogue import DATASETS, load
from fgai.datasets.features import compact, fingerprint
from fgai.datasets.reasons import true_edges
from fgai.datasets.synthetic import synthetic

__all__ = ["DATASETS", "compact", "fingerprint", "load", "synthetic", "true_edges"]
