"""Settings of FGAI by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fgai.adversaries import AttentionBall, GraphInjection, NodeInjection
from fgai.methods.adversarial import BY_DEGREE

_LITERAL: Mapping[str, Any] = {  # settings that the paper and its released code share
    "similarity": 1e5,
    "prediction": 0.8,
    "explanation": 1e5,
    "similarity_metric": "top-k of the graph",
    "stability": "top-k of the graph",
    "k": 0.5,
    "sharpness": 1.0,
    "margin": 0.0,
    "alternate": False,
    "anchor": "own",
    "weight_decay": 5e-4,
}
_SUPPORT: Mapping[str, Any] = {"target": "support", "sharpness": 1.5, "similarity_metric": "kl", "similarity": 20.0}
_CHOSEN_LINKS: Mapping[str, Any] = {"adversary": BY_DEGREE, "aimed": True}
# A bounded layer starts far from the given one, so closeness and the learning rate are higher.
_BOUNDED: Mapping[str, Any] = {
    **_CHOSEN_LINKS,
    "bounded": True,
    "similarity": 0.0,  # these two terms cost F1 under attack, and the layer itself keeps the explanation
    "explanation": 0.0,
    "closeness": 20.0,
    "prediction": 100.0,
    "lr": 0.03,
    "weight_decay": 5e-4,
}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "paper": {**_LITERAL, "divergence": "tvd", "adversary": AttentionBall(radius=0.1, norm="l1", steps=10)},
    "released": {
        **_LITERAL,
        "divergence": "l1",
        "adversary": NodeInjection(nodes=20, edges=20, steps=10, step=0.05),
        "restart_every": 1,
    },
    "links": {"divergence": "tvd", "prediction": 100.0},  # KL is unbounded and would outweigh the other terms
    "graphs": {"adversary": GraphInjection(steps=3)},
    "support": _SUPPORT,
    "chosen-links": _CHOSEN_LINKS,
    "chosen-links-labels": {**_CHOSEN_LINKS, "dropout": True, "labels": 5.0},
    "bounded": _BOUNDED,
    "bounded-labels": {**_BOUNDED, "dropout": True, "labels": 100.0},
    "certified": {  # the terms under attack would keep the attention sharp, and then next to nothing is certified
        "certified": 1.0,
        "similarity": 0.0,
        "prediction": 0.0,
        "explanation": 0.0,
        "weight_decay": 0.0,
    },
    "without-similarity": {"similarity": 0.0},
    "without-prediction": {"prediction": 0.0},
    "without-explanation": {"explanation": 0.0},
    "only-explanation": {"similarity": 0.0, "prediction": 0.0},
    "only-prediction": {"similarity": 0.0, "explanation": 0.0},
    "only-similarity": {"prediction": 0.0, "explanation": 0.0},
}
