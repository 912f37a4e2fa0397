"""Metrics: how accurate and how stable the predictions and explanations of a model are."""

from fgai.deletion import f_curve, f_slope
from fgai.metrics import catalogue as catalogue
from fgai.metrics.base import METRICS, Metric, measure, metric
from fgai.metrics.explanation import (
    as_attention,
    g_jsd,
    mean_entropy,
    mean_nonuniformity,
    random_attention,
    released_g_jsd,
    released_g_tvd,
    shift,
    top_overlap,
)
from fgai.metrics.prediction import g_tvd, micro_f1, roc_auc

__all__ = [
    "METRICS",
    "Metric",
    "as_attention",
    "f_curve",
    "f_slope",
    "g_jsd",
    "g_tvd",
    "mean_entropy",
    "mean_nonuniformity",
    "measure",
    "metric",
    "micro_f1",
    "random_attention",
    "released_g_jsd",
    "released_g_tvd",
    "roc_auc",
    "shift",
    "top_overlap",
]
