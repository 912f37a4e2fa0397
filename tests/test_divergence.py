import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from scipy.spatial.distance import jensenshannon

from fgai.divergence import jsd, jsd_terms, kl, kl_terms, tvd, tvd_terms
from strategies import DTYPES, ROUNDING, distribution_pairs

INDEPENDENT = {
    tvd: lambda p, q: 1 - np.minimum(p, q).sum(),
    kl: lambda p, q: scipy.stats.entropy(p, q),
    jsd: lambda p, q: jensenshannon(p, q) ** 2,
}
TERMS = {tvd: tvd_terms, kl: kl_terms, jsd: jsd_terms}
each = pytest.mark.parametrize("divergence", INDEPENDENT, ids=lambda f: f.__name__)


@each
@given(both=distribution_pairs(), dtype=DTYPES)
def test_a_divergence_equals_scipys(divergence, both, dtype):
    p, q = torch.from_numpy(both).to(dtype)
    expected = [INDEPENDENT[divergence](a, b) for a, b in zip(*both, strict=True)]
    value = divergence(p, q)
    assert value.dtype == dtype
    np.testing.assert_allclose(value.numpy(), expected, rtol=0, atol=ROUNDING[dtype])


@each
@given(both=distribution_pairs())
def test_the_terms_are_the_summands(divergence, both):
    p, q = torch.from_numpy(both)
    terms = TERMS[divergence](p, q)
    assert terms.shape == p.shape
    np.testing.assert_allclose(terms.numpy().sum(-1), divergence(p, q).numpy(), rtol=0, atol=1e-12)


@each
@given(both=distribution_pairs(), dtype=DTYPES)
def test_equal_distributions_are_exactly_zero_apart(divergence, both, dtype):
    p = torch.from_numpy(both[0]).to(dtype)
    assert not divergence(p, p.clone()).any()


@each
@given(both=distribution_pairs())
def test_a_divergence_is_not_negative_and_bounded_distances_keep_their_bound(divergence, both):
    value = divergence(*torch.from_numpy(both))
    assert bool((value >= -1e-15).all())
    assert bool((value <= {tvd: 1.0, jsd: np.log(2), kl: np.inf}[divergence] + 1e-12).all())


@pytest.mark.parametrize("divergence", [tvd, jsd], ids=["tvd", "jsd"])
@given(both=distribution_pairs())
def test_distances_are_symmetric(divergence, both):
    p, q = torch.from_numpy(both)
    torch.testing.assert_close(divergence(p, q), divergence(q, p), rtol=0, atol=1e-15)


def test_divergences_of_a_case_worked_by_hand():
    p, q = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.25, 0.5]).double()
    assert float(tvd(p, q)) == 0.5
    assert float(kl(p, q)) == pytest.approx(np.log(2))
    assert float(kl(q, p)) == np.inf
    # m = (3/8, 3/8, 1/4): KL(p | m) = log 4/3, KL(q | m) = 1/2 log 2/3 + 1/2 log 2
    assert float(jsd(p, q)) == pytest.approx((np.log(4 / 3) + np.log(2 / 3) / 2 + np.log(2) / 2) / 2)


@each
def test_gradients_agree_with_finite_differences(divergence):
    p, q = torch.tensor([[[0.2, 0.3, 0.5]], [[0.4, 0.35, 0.25]]]).double().unbind()
    assert torch.autograd.gradcheck(divergence, (p.requires_grad_(), q.requires_grad_()))
