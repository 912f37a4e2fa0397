"""Laws of the tap, over every attention layer: it reads what acted, changes nothing unasked, and leaves no trace."""

import pytest
import torch
from layers import CASES, flat
from torch_geometric.nn import MessagePassing

from fgai.errors import TapError
from fgai.seeding import seeded
from fgai.tap import Tap
from loose import loose


@pytest.fixture(params=CASES, name="case")
def _case(request):
    with seeded(7):
        return CASES[request.param]()


def tapped(case, **plus):
    with Tap(case.layer).open(**plus) as caught:
        answer = flat(case.layer(*case.inputs))
    return answer, caught.attention


def state(model):
    """Everything that a tap could leave behind: classes, attributes, hooks."""
    return {
        name: (
            type(module),
            sorted(vars(module)),
            *(len(v) for k, v in sorted(vars(module).items()) if "hooks" in k),
        )
        for name, module in model.named_modules()
    }


def as_weights(attention):
    return {site: (a.weight, a.edge_index) for site, a in attention.items()}


def test_the_weights_read_are_the_layers_own(case):
    _, attention = tapped(case)
    expected = case.weights(as_weights(attention))
    assert list(attention) == list(expected)
    for site, a in attention.items():
        torch.testing.assert_close(a.weight, expected[site], rtol=0, atol=1e-12)


def test_an_open_tap_changes_nothing(case):
    assert torch.equal(tapped(case)[0], flat(case.layer(*case.inputs)))


def test_weights_sum_to_one_and_are_the_softmax_of_the_scores(case):
    for a in tapped(case)[1].values():
        total = torch.zeros(a.num_targets, a.heads, dtype=torch.double).index_add(0, a.target, a.weight)
        torch.testing.assert_close(total[a.degree > 0], torch.ones_like(total[a.degree > 0]))
        for i in a.target.unique():
            torch.testing.assert_close(a.weight[a.target == i], a.score[a.target == i].softmax(0))


def test_perturbed_weights_act_by_the_formula(case):
    _, attention = tapped(case)
    with seeded(1):
        delta = {site: 0.1 * torch.randn_like(a.weight) for site, a in attention.items()}
    moved, now = tapped(case, weight_delta=delta)
    torch.testing.assert_close(moved, case.output(as_weights(now)), rtol=0, atol=1e-10)
    first = next(iter(attention))
    torch.testing.assert_close(now[first].weight, attention[first].weight + delta[first])


def test_perturbed_scores_go_through_the_softmax(case):
    _, attention = tapped(case)
    site = next(iter(attention))
    with seeded(2):
        delta = torch.randn_like(loose(attention[site].score))
    now = tapped(case, score_delta={site: delta})[1][site]
    for i in now.target.unique():
        at = now.target == i
        torch.testing.assert_close(now.weight[at], (attention[site].score + delta)[at].softmax(0))


@pytest.mark.parametrize("where", ["weight_delta", "score_delta"])
def test_gradients_reach_perturbations(case, where):
    _, attention = tapped(case)
    sites = list(attention)
    start = tuple(torch.full_like(a.weight, 0.01).requires_grad_() for a in attention.values())

    def answer(*deltas):
        return tapped(case, **{where: dict(zip(sites, deltas, strict=True))})[0]

    assert torch.autograd.gradcheck(answer, start, fast_mode=True)


def test_gradients_reach_the_parameters(case):
    answer, attention = tapped(case)
    loss = answer.pow(2).sum() + sum(a.weight.pow(2).sum() for a in attention.values())
    gradients = torch.autograd.grad(loss, list(case.layer.parameters()), allow_unused=True)
    assert sum(g is not None and bool(g.abs().sum() > 0) for g in gradients) >= 1


def test_an_exception_inside_forward_leaves_no_trace(case):
    before, plain = state(case.layer), flat(case.layer(*case.inputs))
    layers = [m for m in case.layer.modules() if isinstance(m, MessagePassing)]
    handle = layers[-1].register_aggregate_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), Tap(case.layer).open():
        case.layer(*case.inputs)
    handle.remove()
    assert state(case.layer) == before
    assert torch.equal(flat(case.layer(*case.inputs)), plain)


def test_a_perturbation_of_the_wrong_shape_is_refused_before_it_acts(case):
    before, (_, attention) = state(case.layer), tapped(case)
    site = next(iter(attention))
    with pytest.raises(TapError, match="one row per edge"):
        tapped(case, weight_delta={site: attention[site].weight[:-1]})
    assert state(case.layer) == before


def test_an_unknown_site_is_refused_with_the_names_there_are(case):
    with pytest.raises(TapError, match="there is"):
        tapped(case, weight_delta={"frist": torch.zeros(1)})
