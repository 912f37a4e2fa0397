import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv

from fgai import Reader, backbones, datasets
from fgai.adversaries import AttentionBall, NodeInjection, gains
from fgai.attention import Attention, EdgeLookup, log_weight, nonuniformity, sharpened
from fgai.datasets.split import split_nodes
from fgai.errors import DataError, SettingError
from fgai.graph import add_nodes
from fgai.methods import FGAI, AdversarialTraining, LayerNorm, Vanilla
from fgai.methods.layernorm import Normalised
from fgai.methods.objective import DIVERGENCES, Distance, attacked_margin, certified_margin, lookup_of
from fgai.metrics import top_overlap
from fgai.modes import eval_mode
from fgai.reading import Reading
from fgai.training.data import Batch
from fgai.training.warm_start import WarmStart
from loose import loose

DRAW = torch.Generator().manual_seed(0)


def node(*scores):
    """One node that looks at as many others as there are scores, one head."""
    score = torch.tensor(scores, dtype=torch.double)[:, None]
    ends = torch.stack([torch.arange(len(scores)), torch.zeros(len(scores), dtype=torch.long)])
    return Attention(score.softmax(0), ends, 1, score)


def reading(attention, logits=None):
    return Reading(torch.zeros(1, 2) if logits is None else logits, {"conv": attention})


def similarity_metric(kind, before, now, k=2, **settings):
    return float(Distance(kind, k, {"conv": EdgeLookup(before.edge_index)})({"conv": before}, reading(now), **settings))


def test_divergences_are_those_of_the_formulas():
    a, b = torch.randn(5, 3, generator=DRAW), torch.randn(7, 3, generator=DRAW)
    before, now = (reading(node(0.0), logits) for logits in (a, b))
    p, q = a.softmax(1), b[:5].softmax(1)
    assert float(DIVERGENCES["kl"](before, now)) == pytest.approx(float((p * (p / q).log()).sum(1).mean()), rel=1e-5)
    assert float(DIVERGENCES["tvd"](before, now)) == pytest.approx(float((p - q).abs().sum(1).mean() / 2), rel=1e-5)
    assert float(DIVERGENCES["l1"](before, now)) == pytest.approx(float((a - b[:5]).abs().sum(1).mean() / 2), rel=1e-5)


def test_likenesses_are_those_of_the_formulas():
    before, now = node(1.0, 0.0, -1.0), node(0.0, 1.0, -1.0)
    p, q = before.weight[:, 0], now.weight[:, 0]
    m = (p + q) / 2
    assert similarity_metric("kl", before, now) == pytest.approx(float((p * (p / q).log()).sum()))
    halves = float(((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2)
    assert similarity_metric("jsd", before, now) == pytest.approx(halves)
    assert similarity_metric("l1", before, now) == pytest.approx(float((p - q).abs().sum()))
    swapped = float(2 * (p[0] - p[1]))  # both tops hold the first two, which changed places
    assert similarity_metric("top-k", before, now) == pytest.approx(2 * swapped / (2 * 2))
    assert similarity_metric("top-k of the graph", before, now) == pytest.approx(2 * swapped / (2 * 2))


def test_edges_are_matched_by_their_ends_and_new_ones_take_their_share():
    before = node(0.0, 0.0)
    ends = torch.tensor([[7, 1, 0], [0, 0, 0]])  # an injected node looks on, and the order is another
    score = torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.double)
    now = Attention(score.softmax(0), ends, 1, score)
    left = float(score.softmax(0)[1])
    assert similarity_metric("l1", before, now) == pytest.approx(2 * (0.5 - left))
    assert similarity_metric("kl", before, now) == pytest.approx(float(torch.tensor(0.5 / left).log()))


def test_a_captured_node_still_teaches():
    """Where an injected node has taken all attention, JSD has no gradient and KL of the scores has."""
    before = node(0.0, 0.0)
    ends = torch.tensor([[0, 1, 7], [0, 0, 0]])
    slopes = {}
    for kind in ("kl", "jsd"):
        score = torch.tensor([[0.0], [0.0], [200.0]], requires_grad=True)
        now = Attention(score.softmax(0), ends, 1, score)
        value = Distance(kind, 2, {"conv": EdgeLookup(before.edge_index)})({"conv": before}, reading(now))
        slopes[kind] = float(torch.autograd.grad(value, score)[0].abs().max())
    assert slopes["kl"] == pytest.approx(1.0) and slopes["jsd"] < 1e-30


def test_pushed_weights_are_not_taken_for_the_softmax_of_their_scores():
    before = node(0.0, 0.0)
    pushed = replace(before, weight=before.weight + torch.tensor([[0.1], [-0.1]]))
    assert similarity_metric("kl", before, pushed) == pytest.approx(0.0)
    assert similarity_metric("kl", before, pushed, scored=False) > 0.01


def test_log_weights_are_the_logarithms_of_the_weights():
    attention = node(3.0, 1.0, -2.0)
    torch.testing.assert_close(log_weight(attention), attention.weight.log())
    torch.testing.assert_close(log_weight(replace(attention, score=None)), attention.weight.log())


def test_sharpened_attention_keeps_the_order_and_widens_the_margins():
    data = datasets.load("synthetic")
    look = Reader(backbones.build("gat", data).eval())(data).detach().explanation
    sharp = sharpened(look, 3.0)
    assert float(top_overlap(look, sharp, 3).nanmean()) == 1.0
    assert float(nonuniformity(sharp).mean()) > 1.5 * float(nonuniformity(look).mean())
    torch.testing.assert_close(sharpened(look, 1.0).weight, look.weight)


def test_parallel_edges_are_one_neighbour():
    once, now = node(2.0, 1.0, 0.0, -1.0), node(0.5, 1.0, 2.0, 0.0)

    def twice(one):
        """The first edge as two, each with half of its weight."""
        rows = torch.tensor([0, 1, 2, 3, 0])
        halved = torch.tensor([0.5, 1, 1, 1, 0.5], dtype=torch.double)[:, None]
        return Attention(one.weight[rows] * halved, one.edge_index[:, rows], 1, one.score[rows] + halved.log())

    clean, lookup = twice(once), lookup_of(twice(once))
    for kind in Distance.KINDS:
        distance = Distance(kind, 2, {"conv": lookup})
        assert float(distance({"conv": clean}, reading(clean))) == pytest.approx(0, abs=1e-12)
        expected = similarity_metric(kind, once, now)
        assert float(distance({"conv": clean}, reading(twice(now)))) == pytest.approx(expected) and expected > 0.01
    margins = [float(attacked_margin(*pair, lookup_of(pair[0]), 2, 0.5)) for pair in ((once, now), (clean, twice(now)))]
    assert margins[0] == pytest.approx(margins[1]) and margins[0] > 0


def test_the_lost_margin_is_that_of_the_certificate():
    attention = replace(node(0.0, 0.0), weight=torch.tensor([[0.52], [0.48]], dtype=torch.double))
    assert float(certified_margin(attention, 1, 0.1)) == pytest.approx((0.1 - 2 * 0.04) / 0.1)
    assert float(certified_margin(attention, 1, 0.05)) == 0.0


def test_what_is_narrow_under_attack_is_worked_by_hand():
    """Three neighbours with clean scores 2, 1, 0; under attack 1.5, 1, 0 and an injected one with 1.2."""
    clean = node(2.0, 1.0, 0.0)
    score = torch.tensor([[1.2], [1.5], [1.0], [0.0]], dtype=torch.double)
    attacked = Attention(score.softmax(0), torch.tensor([[9, 0, 1, 2], [0, 0, 0, 0]]), 1, score)
    spread = (2 / 3) ** 0.5
    lookup = EdgeLookup(clean.edge_index)
    assert float(attacked_margin(clean, attacked, lookup, 1, 0.5)) == pytest.approx(max(0.5 - 0.3 / spread, 0))
    assert float(attacked_margin(clean, attacked, lookup, 2, 0.5)) == pytest.approx(0.5 + 0.2 / spread)
    assert float(attacked_margin(clean, attacked, lookup, 3, 0.5)) == pytest.approx(0.5 + 1.2 / spread)
    assert float(attacked_margin(clean, clean, lookup, 3, 0.5)) == 0.0  # nobody else is there
    first, second = (replace(a, score=2 * loose(a).score) for a in (clean, attacked))
    assert float(attacked_margin(first, second, lookup, 2, 0.5)) == pytest.approx(0.5 + 0.2 / spread)


SMALL = NodeInjection(nodes=2, edges=3, steps=1, step=0.5)


@pytest.fixture(scope="module", name="vanilla")
def _vanilla():
    data = split_nodes(datasets.synthetic(120, 500, features=12, seed=1), seed=1)
    return data, Vanilla(epochs=15).fit(backbones.build("gat", data), data).model


@pytest.mark.parametrize("preset", ["default", "links", "paper", "released", "support"])
def test_presets_run_with_all_four_terms(vanilla, preset):
    data, model = vanilla
    changed = {"epochs": 2} | ({} if preset == "paper" else {"adversary": replace(SMALL, steps=2)})
    fit = FGAI.preset(preset, **changed).fit(model, data)
    assert sorted(fit.best.terms) == ["closeness", "explanation", "prediction", "similarity"]


OFF = [off for n in (1, 2, 3) for off in itertools.combinations(("similarity", "prediction", "explanation"), n)]


@pytest.mark.parametrize("off", OFF)
def test_a_term_of_weight_zero_is_left_out(vanilla, off):
    data, model = vanilla
    fit = replace(FGAI(epochs=2, adversary=SMALL), **dict.fromkeys(off, 0.0)).fit(model, data)
    assert set(fit.best.terms) == {"closeness", "similarity", "prediction", "explanation"} - set(off)


def test_the_margin_can_be_trained_on(vanilla):
    data, model = vanilla
    fit = FGAI(epochs=12, adversary=SMALL, stability="margin", k=2, closeness=0.1, similarity=0, prediction=0.1)
    history = fit.fit(model, data).history
    assert history[-1].terms["explanation"] < history[0].terms["explanation"]


def test_rho_after_the_softmax_trains_nothing():
    """METHOD, section 2: L_k(v, v + rho) depends on rho alone, so its gradient in v is zero."""
    score = torch.tensor([[1.0], [0.0], [-1.0]], requires_grad=True)
    v = node(1.0, 0.0, -1.0)
    v = replace(v, weight=score.softmax(0), score=score)
    pushed = replace(v, weight=v.weight + torch.tensor([[-0.3], [0.3], [0.0]]))
    value = Distance("top-k", 2, {"conv": EdgeLookup(v.edge_index)})({"conv": v}, reading(pushed), scored=False)
    assert float(torch.autograd.grad(value, score)[0].abs().max()) < 1e-7


def test_settings_that_are_not_there_are_refused(vanilla):
    data, model = vanilla
    with pytest.raises(SettingError, match="default, paper, released"):
        FGAI.preset("papre")
    with pytest.raises(SettingError, match="no attention is called"):
        FGAI(sites=("conv9",)).fit(model, data)
    with pytest.raises(SettingError, match="similarity_metric"):
        FGAI(similarity_metric="l7").fit(model, data)
    with pytest.raises(SettingError, match="divergence"):
        FGAI(divergence="l7").fit(model, data)


@pytest.mark.parametrize("adam", [False, True])
def test_an_opponent_goes_on_from_where_it_was(vanilla, adam):
    data, model = vanilla
    read = Reader(model.eval())
    gain = gains.kl(read(data).detach())
    warm_start = WarmStart(replace(SMALL, step=0.05, adam=adam), restart_every=100)
    values = [float(gain(warm_start.attack(read, Batch(data, data.num_nodes), gain)).detach()) for _ in range(8)]
    assert values[-1] > 1.5 * values[0]
    alone = replace(SMALL, step=0.05, steps=8, adam=adam)
    x = alone.climb(read, alone.place(data), alone.start(alone.place(data)), gain)
    assert values[-1] == pytest.approx(float(gain(alone.place(data).read(read, x)).detach()), rel=1e-6)


def test_a_restored_opponent_has_the_state_of_adam(vanilla):
    data, model = vanilla
    read, batch = Reader(model.eval()), Batch(data, data.num_nodes)
    gain = gains.kl(read(data).detach())
    whole, again = (WarmStart(replace(SMALL, adam=True), restart_every=100) for _ in range(2))
    for _ in range(3):
        whole.attack(read, batch, gain)
    state = whole.state()
    again.restore(state)
    x = [one.attack(read, batch, gain).perturbation.x for one in (whole, again)]
    assert x[0] is not None and x[1] is not None and torch.equal(x[0], x[1])
    wrong = {"adam_steps": torch.tensor(-1), "adam_mean": torch.zeros(2, 2), "adam_square": torch.tensor(1)}
    for name, value in wrong.items():
        for damaged in (None, value):
            with pytest.raises(DataError, match="no state of a warm-started attack"):
                again.restore({**state, name: damaged})


def test_another_adversary_starts_anew(vanilla):
    data, model = vanilla
    read = Reader(model.eval())
    hit = WarmStart(AttentionBall(radius=0.1, steps=1), restart_every=1).attack(
        read, Batch(data, data.num_nodes), gains.kl(read(data).detach())
    )
    assert list(hit.perturbation.weight_delta) == ["conv2"]


@pytest.mark.parametrize("kind", ["rows", "layer"])
@pytest.mark.parametrize("stored", ["dense", "sparse"])
def test_normalised_features_are_those_of_the_formula(kind, stored):
    x = torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0], [2.0, 2.0, 0.0]])
    expected = torch.tensor([[0.25, 0, 0.75], [0, 0, 0], [0.5, 0.5, 0]])
    if kind == "layer":
        expected = (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    model = Normalised(nn.Identity(), kind)
    found = model.normal(x.to_sparse() if stored == "sparse" else x)
    torch.testing.assert_close(found.to_dense(), expected)
    data = Data(x=x.to_sparse() if stored == "sparse" else x, edge_index=torch.tensor([[0, 1], [1, 0]]))
    wide = loose(add_nodes(data, torch.tensor([[1.0, 1.0, 2.0]]), torch.tensor([[3], [0]])))
    torch.testing.assert_close(model.normal(wide.x).to_dense()[:3], expected)


def test_fgai_holds_where_vanilla_falls():
    """On a graph with a little signal in each of many features, as bags of words have."""
    data = split_nodes(datasets.synthetic(300, 1_500, features=64, seed=0), seed=0)
    attack = NodeInjection(nodes=8, edges=15, steps=20, step=0.2, seed=99)
    vanilla = Vanilla(epochs=60).fit(backbones.build("gat", data), data).model
    own = replace(attack, steps=2, seed=0)
    faithful = FGAI(epochs=60, adversary=own).fit(vanilla, data).model
    f1, moved = {}, {}
    for name, model in (("vanilla", vanilla), ("faithful", faithful)):
        read = Reader(model)
        with eval_mode(model):
            clean = read(data).detach()
            hit = attack(read, data, gains.cross_entropy(clean)).detach()
            f1[name] = float((hit.logits[:300].argmax(1) == data.y).double()[data.test_mask].mean())
            look = attack(read, data, gains.attention_divergence(clean)).detach()
            moved[name] = float(gains.attention_divergence(clean)(look))
    assert f1["faithful"] > f1["vanilla"] + 0.05
    assert moved["faithful"] < 0.5 * moved["vanilla"]


class TwoTowers(nn.Module):
    """A user's own model: two attention layers with two heads each, and a head of its own."""

    def __init__(self):
        super().__init__()
        self.first, self.second = GATConv(12, 4, heads=2), GATConv(8, 4, heads=2)
        self.answer = nn.Linear(8, 4)

    def forward(self, x, edge_index):
        return self.answer(self.second(self.first(x, edge_index).relu(), edge_index).relu())


@pytest.mark.parametrize("method", [FGAI(epochs=2, adversary=SMALL, sites=("first", "second")),
                                    AdversarialTraining(epochs=2, adversary=SMALL), LayerNorm(epochs=2)])  # fmt: skip
def test_a_users_own_model_with_several_heads_and_sites(vanilla, method):
    data, _ = vanilla
    fit = method.fit(TwoTowers(), data)
    assert len(fit.history) == 2


class TwiceInTraining(TwoTowers):
    """Doubles its logits in training, in place of dropout, whose masks are random."""

    def forward(self, x, edge_index):
        return (2 if self.training else 1) * super().forward(x, edge_index)


def test_dropout_is_in_the_terms_on_the_clean_graph_alone(vanilla):
    data, _ = vanilla
    torch.manual_seed(0)
    model = TwiceInTraining().eval()
    method = FGAI(epochs=1, adversary=SMALL)
    without, terms = (replace(method, dropout=on).fit(model, data).best.terms for on in (False, True))
    with torch.no_grad():
        logits = model(data.x, data.edge_index)
    before, now = logits.log_softmax(1), (2 * logits).log_softmax(1)
    assert terms["closeness"] == pytest.approx(float((before.exp() * (before - now)).sum(1).mean()), rel=1e-4)
    assert without["closeness"] == pytest.approx(0.0, abs=1e-6)
    assert all(terms[name] == without[name] for name in ("prediction", "explanation"))


def test_the_term_of_the_labels_is_the_cross_entropy_of_both_graphs(vanilla):
    data, _ = vanilla
    torch.manual_seed(0)
    model = TwoTowers().eval()
    attack = replace(SMALL, steps=0)
    term = FGAI(epochs=1, adversary=attack, labels=3.0).fit(model, data).best.terms["labels"]
    with eval_mode(model), torch.no_grad():
        read = Reader(model)
        readings = read(data), attack(read, data, lambda reading: reading.logits.sum())
    chosen, log_probs = data.train_mask, [reading.logits[: len(data.y)].log_softmax(1) for reading in readings]
    losses = [-float(rows[chosen, data.y[chosen]].mean()) for rows in log_probs]
    assert term == pytest.approx(3 * sum(losses), rel=1e-4)


def test_labels_are_asked_for_only_with_a_term_of_labels(vanilla):
    data, model = vanilla
    unlabelled = data.clone()
    del unlabelled.y, unlabelled.val_mask
    FGAI(epochs=1, adversary=SMALL).fit(model, unlabelled)
    with pytest.raises(DataError, match="`y`"):
        FGAI(epochs=1, adversary=SMALL, labels=1.0).fit(model, unlabelled)
