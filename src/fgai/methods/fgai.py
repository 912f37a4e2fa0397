"""FGAI: re-train a model so that its predictions and explanations stay the same, also under attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from fgai.adversaries import Adversary, Gain, NodeInjection, check_adversary, gains
from fgai.attention import Attention, explaining_sites, sharpened
from fgai.cache import TensorCache
from fgai.calling import Call, call_by_signature
from fgai.certificates import Injection
from fgai.copying import copy_model
from fgai.errors import SettingError
from fgai.methods.base import METHODS, Graphs, Method
from fgai.methods.bounded import BoundedInfluence
from fgai.methods.certified import WorstCase
from fgai.methods.objective import (
    DIVERGENCES,
    MASK,
    Distance,
    attacked_margin,
    certified_margin,
    label_loss,
    lookup_of,
)
from fgai.methods.presets import PRESETS
from fgai.methods.support import support_attention
from fgai.modes import eval_mode
from fgai.reading import Reader, Reading, TrainingReader, training_reader
from fgai.settings import SEEDS, check_choice, check_numbers, check_positive, check_top, check_whole
from fgai.training.data import Batch, source
from fgai.training.loop import Fit, Schedule, Terms, train
from fgai.training.warm_start import warm_starts_for

ATTACKED = ("prediction", "explanation")  # the terms with an adversary
TERMS = ("closeness", "similarity", *ATTACKED, "labels", "certified")


@METHODS.register("fgai")
@dataclass(frozen=True)
class FGAI(Method):
    """Re-training of a trained model with weighted loss terms (see `methods.objective`).

    Terms are means over nodes, so one weight suits graphs of any size.

    Args:
        closeness: Weight of D(vanilla's predictions, the model's).
        similarity: Weight of S(vanilla's attention, the model's).
        prediction: Weight of D of the predictions under attack.
        explanation: Weight of S of the explanations under attack, and of the margin.
        labels: Weight of the cross-entropy of the labels of the training nodes, on the clean graph and under attack.
            The other terms need no labels.
        certified: Weight of the cross-entropy of the worst logits under `injection` (`methods.certified`), for two
            layers of GATConv on a whole graph. It makes predictions provable and attention flat, so it is 0 by default.
        divergence: D, one of `kl`, `tvd` and `l1` (of the logits).
        similarity_metric: S of the similarity term, one of `l1`, `kl`, `jsd`, `top-k` and `top-k of the graph`.
        stability: S of the explanation term: one of those, or `margin`, which uses the exact certificate instead.
        margin: Weight, relative to `explanation`, of `methods.objective.attacked_margin`: under attack, the top k stay
            `gap` above the other neighbours.
        gap: The margin to reach, in units of the spread of the scores.
        k: Size of the top k: a number of neighbours, or a share of them.
        sites: The attention layers that explain, by default the last one.
        target: What the similarity term compares with: `vanilla`'s attention, or attention in proportion to the
            `support` of each neighbour for the prediction of vanilla (`methods.support`).
        sharpness: Factor of the scores of the target. The order of the neighbours stays the same, and the margins
            between them grow.
        adversary: The attack of the prediction and of the explanation.
        injection: What is certified against, if `certified` is above 0.
        alternate: The attack maximises the gains of the two terms in turn, one a step, and both terms use its result.
            If False, each term has its own attack in each step, as in the paper.
        aimed: In every other place, that is for `restart_every` rounds, the attack of the prediction raises the
            probability of one class, and of the next class the next time.
        restart_every: Rounds after which a node injection draws new links and features.
        bounded: Whether to keep the first attention layer such that no features, however large, can drive its output
            far (`methods.bounded`).
        dropout: Whether closeness and similarity are computed in training mode, so with dropout. Other terms never are.
        anchor: Predictions under attack are compared with `vanilla`'s, or with the model's `own` on the clean graph.
        epochs: Number of epochs.
        lr: Learning rate of Adam, which decays along a cosine.
        weight_decay: Weight decay of Adam.
        seed: Random seed of the attack and of the training.

    >>> from fgai import backbones, datasets
    >>> data = datasets.load("synthetic")
    >>> method = FGAI(adversary=NodeInjection(2, 3, steps=1), epochs=2)
    >>> sorted(method.fit(backbones.build("gat", data), data).best.terms)
    ['closeness', 'explanation', 'prediction', 'similarity']
    """

    needs_pretrained: ClassVar[bool] = True
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS

    closeness: float = 1.0
    similarity: float = 1.0
    prediction: float = 20.0
    explanation: float = 5.0
    labels: float = 0.0
    certified: float = 0.0
    divergence: str = "kl"
    similarity_metric: str = "l1"
    stability: str = "kl"
    margin: float = 0.4
    gap: float = 0.2
    k: int | float = 5
    sites: str | tuple[str, ...] | None = None
    target: Literal["vanilla", "support"] = "vanilla"
    sharpness: float = 5.0
    adversary: Adversary = NodeInjection(nodes=20, edges=40, steps=3, step=0.1)
    injection: Injection = Injection(1, (0.0, 1.0))
    alternate: bool = True
    aimed: bool = False
    restart_every: int = 4
    bounded: bool = False
    dropout: bool = False
    anchor: Literal["vanilla", "own"] = "vanilla"
    epochs: int = 200
    lr: float = 0.01
    weight_decay: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_adversary(self.adversary)
        check_numbers(0, **{name: getattr(self, name) for name in (*TERMS, "margin")})
        check_positive(gap=self.gap, sharpness=self.sharpness)
        check_choice(DIVERGENCES, divergence=self.divergence)
        check_choice(Distance.KINDS, similarity_metric=self.similarity_metric)
        check_choice((*Distance.KINDS, "margin"), stability=self.stability)
        check_choice(("vanilla", "own"), anchor=self.anchor)
        check_choice(("vanilla", "support"), target=self.target)
        check_top(self.k)
        check_whole(1, restart_every=self.restart_every)
        if not any(getattr(self, name) > 0 for name in TERMS):
            raise SettingError(f"{', '.join(TERMS)} all have weight 0; give at least one, or keep the model")
        _ = self.schedule  # checks its settings

    @property
    def schedule(self) -> Schedule:
        """Length, learning rate and seed of the training."""
        return Schedule(self.epochs, self.lr, self.weight_decay, seed=self.seed, keep="last")

    @classmethod
    def preset(cls, name: str = "default", **settings: Any) -> Self:
        """Return FGAI with the settings of a preset.

        Args:
            name: `default`, the best settings measured; `paper`, the formulas of the paper; `released`, those of its
                released code, with edges matched correctly; `links` and `graphs`, for models that predict links or
                classify graphs; `support`, attention in proportion to what supports each prediction; `chosen-links`,
                against an attacker who prefers nodes of high degree and climbs by Adam; `bounded`, the same with a
                first layer of bounded influence; `chosen-links-labels` and `bounded-labels`, these two with dropout and
                the labels of the training nodes; `certified`, predictions that can be proved; and for ablations
                `without-similarity`, `only-prediction` and so on.
            **settings: Settings that replace those of the preset.

        >>> FGAI.preset("paper", epochs=10).divergence
        'tvd'
        """
        return super().preset(name, **settings)

    def fit(
        self, model: nn.Module, data: Graphs, *, call: Call | None = None, checkpoint: str | Path | None = None
    ) -> Fit:
        """Re-train a copy of `model`, which is trained already; see `Method.fit`."""
        batches = source(data, *(("y", MASK) if self.labels > 0 else ()))
        vanilla = copy_model(model)
        worst_case = WorstCase.of(vanilla, data, self.injection, call) if self.certified > 0 else None
        constraint = BoundedInfluence.of(model) if self.bounded else None
        names = [name for name in ATTACKED if getattr(self, name) > 0]
        seeds = {name: (self.seed + 500_009 * i) % SEEDS for i, name in enumerate(ATTACKED)}
        adversary: Any = self.adversary
        warm_starts = {
            name: warm_starts_for(replace(adversary, seed=seeds[name]), batches, self.restart_every) for name in names
        }

        def terms(read: TrainingReader, batch: Batch) -> Terms:
            task = tasks.of(batch)
            with eval_mode(read.model):
                clean = read(batch.graph).head(batch.seed_nodes)
                detached = clean.detach()
                leading = [names[batch.step % len(names)]] if self.alternate and names else names
                place = batch.step // (len(names) if self.alternate and names else 1) // self.restart_every
                attacked = {
                    name: warm_starts[name][batch.position].attack(read, batch, task.gain(name, detached, place))
                    for name in leading
                }
                loss_terms = {}
                for name in names:
                    result = attacked[name] if name in attacked else attacked[leading[0]]
                    loss_terms[name] = task.attacked_term(name, clean, result)
                if self.labels > 0:
                    readings = (clean, *attacked.values())
                    loss_terms["labels"] = self.labels * torch.stack([label_loss(one, batch) for one in readings]).sum()
                if worst_case is not None:
                    loss_terms["certified"] = self.certified * worst_case.loss(read.model, batch.step / self.epochs)
            if self.dropout:  # outside of `eval_mode`, so the model is in training mode
                clean = read(batch.graph).head(batch.seed_nodes)
            return task.clean_terms(clean) | loss_terms

        with eval_mode(vanilla), training_reader(vanilla, call or call_by_signature) as read_vanilla:
            tasks = _Tasks(self, read_vanilla)
            attacks = [warm_start for group in warm_starts.values() for warm_start in group]
            return train(
                self,
                model,
                batches,
                terms,
                call=call,
                warm_starts=attacks,
                constraint=constraint,
                checkpoint=checkpoint,
            )


class _Tasks:
    """The task of each batch; the last one is cached, since a full graph comes in each step."""

    def __init__(self, method: FGAI, vanilla: Reader) -> None:
        self._method, self._read = method, vanilla
        self._cache = TensorCache(size=1)

    def of(self, batch: Batch) -> _Task:
        tensors = [value for value in batch.graph.to_dict().values() if isinstance(value, torch.Tensor)]
        return self._cache.get("task", tensors, lambda: self._build(batch))

    def _build(self, batch: Batch) -> _Task:
        vanilla = self._read.marked(batch.graph)
        goal = {site: self._target(batch.graph, vanilla, site) for site in self._sites(vanilla)}
        goal = replace(vanilla, attention=goal).head(batch.seed_nodes).attention
        return _Task(self._method, vanilla.head(batch.seed_nodes), goal)

    def _target(self, graph: Any, vanilla: Reading, site: str) -> Attention:
        """Return the target of the similarity term at one site."""
        attention, sharpness = vanilla.attention[site], self._method.sharpness
        if self._method.target == "support":
            return support_attention(self._read, graph, site, attention, sharpness)
        return sharpened(attention, sharpness)

    def _sites(self, vanilla: Reading) -> tuple[str, ...]:
        sites = self._method.sites or explaining_sites(vanilla.attention)[-1:]
        sites = (sites,) if isinstance(sites, str) else sites
        if unknown := sorted(set(sites) - set(vanilla.attention)):
            raise SettingError(f"no attention is called {unknown}; this model has {sorted(vanilla.attention)}")
        return sites


class _Task:
    """The loss terms of one batch, with vanilla's reading of it as the reference."""

    def __init__(self, method: FGAI, vanilla: Reading, goal: Mapping[str, Attention]) -> None:
        self.method, self.vanilla, self.goal = method, vanilla, goal
        self.divergence = DIVERGENCES[method.divergence]
        self.lookup = {site: lookup_of(attention) for site, attention in goal.items()}
        self.similarity_metric = Distance(method.similarity_metric, method.k, self.lookup)
        attack_metric = "jsd" if method.stability in ("kl", "margin") else method.stability
        self.attack_distance = Distance(attack_metric, method.k, self.lookup)
        self.stability = None if method.stability == "margin" else Distance(method.stability, method.k, self.lookup)

    def gain(self, name: str, clean: Reading, place: int = 0) -> Gain:
        """Return what the attack of a term maximises: the KL of predictions, or the JSD (or L_k) of explanations.

        In every other `place`, an aimed attack maximises the probability of a class instead of the KL.
        """
        if name == "prediction" and self.method.aimed and place % 2 == 0:
            return gains.class_log_probability(clean, place // 2 % gains.binary_logits(clean).size(1))
        if name == "prediction":
            return gains.kl(self._anchor(clean))
        return lambda now: self.attack_distance(clean.attention, now)

    def clean_terms(self, clean: Reading) -> dict[str, torch.Tensor]:
        """Return the terms on the clean graph."""
        terms = {}
        if self.method.closeness > 0:
            terms["closeness"] = self.method.closeness * self.divergence(self.vanilla, clean)
        if self.method.similarity > 0:
            terms["similarity"] = self.method.similarity * self.similarity_metric(self.goal, clean)
        return terms

    def attacked_term(self, name: str, clean: Reading, attacked: Any) -> torch.Tensor:
        """Return a term on the attacked graph."""
        if name == "prediction":
            return self.method.prediction * self.divergence(self._anchor(clean), attacked)
        scored = not attacked.perturbation.weight_delta
        value = self._margin(clean, attacked)
        if self.stability is not None:
            value = value + self.stability(clean.attention, attacked, scored=scored)
        return self.method.explanation * value

    def _margin(self, clean: Reading, attacked: Reading) -> torch.Tensor:
        """Return the certified margin, or the weighted margin under attack."""
        k, gap = self.method.k, self.method.gap
        if self.stability is None:
            return torch.stack([certified_margin(clean.attention[site], k, gap) for site in self.goal]).mean()
        if self.method.margin == 0:
            return clean.logits.new_zeros(())
        margins = [
            attacked_margin(clean.attention[site], attacked.attention[site], self.lookup[site], k, gap)
            for site in self.goal
        ]
        return self.method.margin * torch.stack(margins).mean()

    def _anchor(self, clean: Reading) -> Reading:
        return self.vanilla if self.method.anchor == "vanilla" else clean
