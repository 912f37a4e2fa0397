"""All metrics by name, in the order of the tables. One line here registers a function as a metric."""

from fgai.deletion import f_slope
from fgai.metrics.base import metric
from fgai.metrics.explanation import (
    TOP,
    released_g_jsd,
    released_g_tvd,
)
from fgai.metrics.prediction import g_tvd, micro_f1, roc_auc
from fgai.metrics.trials import attention_entropy, attention_nonuniformity, explanation_jsd, mean_overlap

metric("f1", "higher", "micro-F1 on the evaluated nodes", lambda t: micro_f1(t.predictions, t.labels))
metric("auc", "higher", "ROC-AUC on the evaluated nodes", lambda t: roc_auc(t.predictions, t.labels))
metric("g_tvd", "lower", "distance of the predictions from the clean ones", lambda t: g_tvd(t.clean, t.now))
metric(
    "g_jsd",
    "lower",
    "distance of the explanation from the clean one",
    explanation_jsd,
)
metric(
    "overlap",
    "higher",
    f"V_{TOP}: share of the clean top {TOP} that stays in the top {TOP}, mean over nodes",
    mean_overlap,
)
metric(
    "f_slope_plus",
    "lower",
    "slope of F+(r), deleting the most attended edges",
    lambda t: f_slope(t.curves["most"]),
)
metric(
    "f_slope_minus",
    "higher",
    "slope of F-(r), deleting the least attended edges",
    lambda t: f_slope(t.curves["least"]),
)
metric(
    "nonuniformity",
    "higher",
    "l1 distance of the attention from 1/degree",
    attention_nonuniformity,
)
metric(
    "entropy",
    "lower",
    "entropy of the attention divided by that of uniform attention",
    attention_entropy,
)
metric("g_tvd_released", "lower", "g-TVD as the released code computes it", lambda t: released_g_tvd(t.clean, t.now))
metric(
    "g_jsd_released",
    "lower",
    "g-JSD of the last layer as the released code computes it, row by row",
    lambda t: released_g_jsd(t.clean.explanation, t.now.explanation),
)
