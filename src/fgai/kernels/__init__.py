"""Attention as sparse matrix products, several times faster than PyG's messages per edge and head.

- `csr`: the order of a graph's edges as entries of a sparse matrix
- `ops`: scores, softmax, sums, sparse features and dropout on edges in that order, with gradients
- `incremental`: row-wise operations that recompute only changed rows
- `subset`: attention that recomputes only the edges that changed rows reach
- `trim`: edges that a layer can skip in a sampled batch
- `pyg`: PyG's layers on these kernels, with `accelerated`

Inside the library only `fgai.reading` opens the kernels for a model. Modules above it use `open_reader`.
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
