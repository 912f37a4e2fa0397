"""The datasets of the paper by name, with its seeded splits; they load offline if the raw files exist."""

from fgai.datasets import graphs as graphs
from fgai.datasets import typed as typed
from fgai.datasets.catalogue import DATASETS, load
from fgai.datasets.features import compact, fingerprint
from fgai.datasets.reasons import true_edges
from fgai.datasets.synthetic import synthetic, synthetic_words

__all__ = ["DATASETS", "compact", "fingerprint", "load", "synthetic", "synthetic_words", "true_edges"]
