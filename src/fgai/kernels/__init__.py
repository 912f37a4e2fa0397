"""Attention as sparse matrix products, several times faster than gathering a message per edge and head, as PyG does.

- `csr`: the order of a graph's edges as entries of a sparse matrix;
- `ops`: scores, softmax, sums, sparse features and dropout on edges in that order, with gradients;
- `incremental`: row-wise operations that recompute only rows that changed; `subset`: attention likewise;
- `pyg`: what is known of PyG's layers, and `accelerated`, which makes them use all this.

Only `fgai.reading` opens the kernels for a model; everything above reads models with `open_reader`.
"""

from fgai.kernels.csr import EdgeOrder
from fgai.kernels.incremental import Rows, incremental, rows_of
from fgai.kernels.ops import aggregate, dot_scores, fast_dropout, gat_scores, gatv2_scores, sparse_linear
from fgai.kernels.subset import EdgeSubset, segmented_softmax

__all__ = [
    "EdgeOrder",
    "EdgeSubset",
    "Rows",
    "aggregate",
    "dot_scores",
    "fast_dropout",
    "gat_scores",
    "gatv2_scores",
    "incremental",
    "rows_of",
    "segmented_softmax",
    "sparse_linear",
]
