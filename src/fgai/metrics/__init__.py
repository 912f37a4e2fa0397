"""Numbers that say how good, and how stable, a model's answers and explanations are."""

from fgai.metrics import catalogue as catalogue
from fgai.metrics.base import METRICS, Metric, Trial, metric
from fgai.metrics.deletion import f_curve, f_slope, f_slope_of
from fgai.metrics.foreign import as_attention, random_attention
from fgai.metrics.prediction import g_tvd, micro_f1, roc_auc
from fgai.metrics.released import released_g_jsd, released_g_tvd
from fgai.metrics.shape import mean_entropy, mean_nonuniformity
from fgai.metrics.stability import g_jsd, shift, top_overlap

__all__ = [
    "METRICS",
    "Metric",
    "Trial",
    "as_attention",
    "f_curve",
    "f_slope",
    "f_slope_of",
    "g_jsd",
    "g_tvd",
    "mean_entropy",
    "mean_nonuniformity",
    "metric",
    "micro_f1",
    "random_attention",
    "released_g_jsd",
    "released_g_tvd",
    "roc_auc",
    "shift",
    "top_overlap",
]
