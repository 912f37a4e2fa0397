"""Attention as sparse matrix products: what gathering a message per edge and head computes, several times faster."""

from fgai.kernels.features import product
from fgai.kernels.masks import thinned
from fgai.kernels.narrow import Narrow
from fgai.kernels.order import EdgeOrder
from fgai.kernels.products import aggregate, dot_scores
from fgai.kernels.rows import RowByRow, Rows, Stay, rows_of
from fgai.kernels.scores import summed_scores, weighed_scores
from fgai.kernels.softmax import segmented_softmax

__all__ = [
    "EdgeOrder",
    "Narrow",
    "RowByRow",
    "Rows",
    "Stay",
    "aggregate",
    "dot_scores",
    "product",
    "rows_of",
    "segmented_softmax",
    "summed_scores",
    "thinned",
    "weighed_scores",
]
