"""FGAI: re-train a model so that its predictions and its explanations stay what they are, also under attack."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from fgai.adversaries import Adversary, AttentionBall, Gain, NodeInjection, gains
from fgai.attention import Attention, EdgeLookup, sharpened
from fgai.cache import TensorCache
from fgai.calling import Call, call_by_signature, eval_mode
from fgai.errors import SettingError
from fgai.methods.base import METHODS, Graphs
from fgai.methods.objective import DIVERGENCES, Distance, attacked_margin, certified_margin
from fgai.reading import Reader, Reading, TrainingReader, training_reader
from fgai.settings import SEEDS, check_choice, check_numbers, check_positive, check_top, check_whole
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train
from fgai.training.warm_start import warm_starts_for

ATTACKED = ("prediction", "explanation")  # the terms that have an adversary
TERMS = ("closeness", "similarity", *ATTACKED)


@METHODS.register("fgai")
@dataclass(frozen=True)
class FGAI:
    """Four terms, weighted by name: closeness, similarity, prediction, explanation (see `methods.objective`).

    The model given to `fit` is the trained one. Terms are means over nodes: a weight means the same on any graph.

    - `divergence` of predictions: `kl`, `tvd` or `l1` of the logits;
    - `likeness` of explanations, for similarity: `l1`, `kl`, `jsd`, `top-k` or `top-k of the graph`;
    - `stability` of explanations, for the last term: one of those, or `margin`, that of the exact certificate;
    - `margin`, relative to the weight of the last term: under attack the top k stay `gap` above the others, in units of
      the spread of the scores (`methods.objective.lost_lead`);
    - `k` of the top k; `sites`, the attention layers that explain (default: the last);
    - `sharpness`: similarity is to vanilla's attention with scores so many times as large. The order of the neighbours
      is the same, the margins between them are wider;
    - `adversary` of the last two terms. They take turns in leading it, epoch by epoch, and both learn from what is
      found; with `turns=False` each has its own in every epoch, as in the paper. `fresh` rounds it keeps its links;
    - `anchor`: what predictions under attack are compared with, `vanilla`'s or the model's `own` on the clean graph.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> method = FGAI(adversary=NodeInjection(2, 3, steps=1), epochs=2)
    >>> sorted(method.fit(backbones.build("gat", data), data).best.terms)
    ['closeness', 'explanation', 'prediction', 'similarity']
    """

    needs_pretrained: ClassVar[bool] = True  # it starts from a trained model

    closeness: float = 1.0
    similarity: float = 1.0
    prediction: float = 20.0
    explanation: float = 5.0
    divergence: str = "kl"
    similarity_metric: str = "l1"
    stability: str = "kl"
    margin: float = 0.4
    gap: float = 0.2
    k: int | float = 5
    sites: str | tuple[str, ...] | None = None
    sharpness: float = 5.0
    adversary: Adversary = NodeInjection(nodes=20, edges=40, steps=3, step=0.1)
    alternate: bool = True
    restart_every: int = 4
    anchor: Literal["vanilla", "own"] = "vanilla"
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_numbers(0, **{name: getattr(self, name) for name in (*TERMS, "margin")})
        check_positive(gap=self.gap, sharpness=self.sharpness)
        check_choice(DIVERGENCES, divergence=self.divergence)
        check_choice(Distance.KINDS, similarity_metric=self.similarity_metric)
        check_choice((*Distance.KINDS, "margin"), stability=self.stability)
        check_choice(("vanilla", "own"), anchor=self.anchor)
        check_top(self.k)
        check_whole(1, restart_every=self.restart_every)
        if not any(getattr(self, name) > 0 for name in TERMS):
            raise SettingError(f"{', '.join(TERMS)} have no weight; give at least one, or take the model as it is")
        _ = self.schedule  # it checks its settings

    @property
    def schedule(self) -> Schedule:
        """How long and how fast to train."""
        return Schedule(self.epochs, self.lr, self.weight_decay, seed=self.seed, keep="last")

    @classmethod
    def preset(cls, name: str = "default", **changed: Any) -> FGAI:
        """The best that was measured; the `paper`'s formulas; what the `released` code does, but for edges it mistakes.

        `links` is for models that answer for pairs of nodes. Those of the ablation take terms out:
        `without-similarity`, `only-prediction` and so on.

        >>> FGAI.preset("paper", epochs=10).divergence
        'tvd'
        """
        if name not in PRESETS:
            raise SettingError(f"no preset is called {name!r}; there is {', '.join(PRESETS)}")
        return replace(cls(), **{**PRESETS[name], **changed})

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Make a copy of `model` faithful; the given one is left as it was."""
        calling, graphs, vanilla = call or call_by_signature, source(data), copy.deepcopy(model)
        names = [name for name in ATTACKED if getattr(self, name) > 0]
        seeds = {name: (self.seed + 500_009 * i) % SEEDS for i, name in enumerate(ATTACKED)}
        against: Any = self.adversary
        warm_starts = {
            name: warm_starts_for(replace(against, seed=seeds[name]), graphs, self.restart_every) for name in names
        }

        def terms(read: TrainingReader, part: Batch) -> Terms:
            task = tasks.of(part)
            with eval_mode(read.model):
                clean = read(part.graph).head(part.seed_nodes)
                still = clean.detach()
                leading = [names[part.step % len(names)]] if self.alternate and names else names
                hits = {
                    name: warm_starts[name][part.position].attack(read, part, task.gain(name, still))
                    for name in leading
                }
                parts = task.clean_terms(clean)
                for name in names:
                    parts[name] = task.attacked_term(name, clean, hits[name] if name in hits else hits[leading[0]])
            return parts

        every = [warm_start for some in warm_starts.values() for warm_start in some]
        with eval_mode(vanilla), training_reader(vanilla, calling) as read_vanilla:
            tasks = _Tasks(self, read_vanilla)
            return train(model, graphs, terms, calling, self.schedule, self, warm_starts=every, checkpoint=checkpoint)


class _Tasks:
    """The task of each part; that of a graph which comes again, as a whole graph does, is made once."""

    def __init__(self, method: FGAI, vanilla: Reader) -> None:
        self._method, self._read = method, vanilla
        self._cache = TensorCache(size=1)

    def of(self, part: Batch) -> _Task:
        tensors = [value for value in part.graph.to_dict().values() if isinstance(value, torch.Tensor)]
        return self._cache.get("task", tensors, lambda: self._task(part))

    def _task(self, part: Batch) -> _Task:
        vanilla = self._read(part.graph).detach().head(part.seed_nodes)
        goal = {site: sharpened(vanilla.attention[site], self._method.sharpness) for site in self._sites(vanilla)}
        return _Task(self._method, vanilla, goal)

    def _sites(self, vanilla: Reading) -> tuple[str, ...]:
        asked = self._method.sites or tuple(vanilla.attention)[-1:]
        sites = (asked,) if isinstance(asked, str) else asked
        if unknown := sorted(set(sites) - set(vanilla.attention)):
            raise SettingError(f"no attention is called {unknown}; in this model there is {sorted(vanilla.attention)}")
        return sites


class _Task:
    """The terms of one run: what they compare with, and where the edges of one attention lie in another."""

    def __init__(self, method: FGAI, vanilla: Reading, goal: Mapping[str, Attention]) -> None:
        self.method, self.vanilla, self.goal = method, vanilla, goal
        self.divergence = DIVERGENCES[method.divergence]
        self.lookup = {site: EdgeLookup(attention.edge_index) for site, attention in goal.items()}
        self.similarity_metric = Distance(method.similarity_metric, method.k, self.lookup)
        self.moved = Distance(
            "jsd" if method.stability in ("kl", "margin") else method.stability, method.k, self.lookup
        )
        self.stability = None if method.stability == "margin" else Distance(method.stability, method.k, self.lookup)

    def gain(self, name: str, clean: Reading) -> Gain:
        """What the adversary of a term climbs: the KL of the answers, or the JSD (or L_k) of the explanation."""
        if name == "prediction":
            return gains.kl(self._anchor(clean))
        return lambda now: self.moved(clean.attention, now)

    def clean_terms(self, clean: Reading) -> dict[str, torch.Tensor]:
        """The terms of the clean graph."""
        parts = {}
        if self.method.closeness > 0:
            parts["closeness"] = self.method.closeness * self.divergence(self.vanilla, clean)
        if self.method.similarity > 0:
            parts["similarity"] = self.method.similarity * self.similarity_metric(self.goal, clean)
        return parts

    def attacked_term(self, name: str, clean: Reading, attacked: Any) -> torch.Tensor:
        """A term of the attacked graph."""
        if name == "prediction":
            return self.method.prediction * self.divergence(self._anchor(clean), attacked)
        scored = not attacked.perturbation.weight_delta
        value = self._margin(clean, attacked)
        if self.stability is not None:
            value = value + self.stability(clean.attention, attacked, scored=scored)
        return self.method.explanation * value

    def _margin(self, clean: Reading, attacked: Reading) -> torch.Tensor:
        """The certificate's, or that under attack."""
        k, gap = self.method.k, self.method.gap
        if self.stability is None:
            return torch.stack([certified_margin(clean.attention[site], k, gap) for site in self.goal]).mean()
        if self.method.margin == 0:
            return clean.logits.new_zeros(())
        parts = [
            attacked_margin(clean.attention[site], attacked.attention[site], self.lookup[site], k, gap)
            for site in self.goal
        ]
        return self.method.margin * torch.stack(parts).mean()

    def _anchor(self, clean: Reading) -> Reading:
        return self.vanilla if self.method.anchor == "vanilla" else clean


_LITERAL: Mapping[str, Any] = {  # what the paper and its code have in common
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
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "paper": {**_LITERAL, "divergence": "tvd", "adversary": AttentionBall(radius=0.1, norm="l1", steps=10)},
    "released": {
        **_LITERAL,
        "divergence": "l1",
        "adversary": NodeInjection(nodes=20, edges=20, steps=10, step=0.05),
        "restart_every": 1,
    },
    "links": {"divergence": "tvd", "prediction": 100.0},  # answers that hold little: a KL that is hit hard drowns them
    "without-similarity": {"similarity": 0.0},
    "without-prediction": {"prediction": 0.0},
    "without-explanation": {"explanation": 0.0},
    "only-explanation": {"similarity": 0.0, "prediction": 0.0},
    "only-prediction": {"similarity": 0.0, "explanation": 0.0},
    "only-similarity": {"prediction": 0.0, "explanation": 0.0},
}
