"""Everything that the package returns prints in one line, or in a few short ones."""

import pytest
import torch

import fgai
from fgai import datasets
from fgai.adversaries import gains
from fgai.certificates import Links
from fgai.reading import Reader
from reports import ATTACK, comparison
from worlds import community, model_of, trained


def returned():
    """One of each public result."""
    graph, model = community(), trained()
    reading = fgai.read(model, graph)
    attacked = ATTACK(Reader(model), graph, gains.cross_entropy(reading))
    proof = fgai.certify(model, graph, k=3, radius=0.01)
    audited = comparison().reports["vanilla"]
    yield from (
        reading,
        reading.explanation,
        reading.attribution(),
        reading.explain(3),
        attacked,
        attacked.perturbation,
    )
    yield from (proof, proof.beta2, fgai.certify(model, graph, against=Links(1)))
    yield from (audited, audited.worst(3), audited.grades, audited.curves, audited.views[0], audited.attacked["f1"])
    yield from (audited.faithfulness, audited.faithfulness.necessity, comparison(), comparison().agreement["other"])
    yield fgai.Vanilla(epochs=3).fit(model_of("gat", graph), graph)


def test_a_result_prints_in_a_few_short_lines():
    for one in returned():
        text = repr(one)
        assert "tensor(" not in text and len(text) < 500 and text.count("\n") < 10, text[:300]


def test_what_is_printed_names_what_is_inside():
    reading = fgai.read(trained(), community())
    logits, heads = list(reading.logits.shape), reading.explanation.heads
    assert repr(reading).startswith(f"Reading(logits=Tensor{logits}, attention={{")
    assert repr(reading.explanation).startswith(f"Attention(weight=Tensor[{len(reading.explanation.weight)}, {heads}]")
    change = fgai.Perturbation(x=torch.ones(2, 3))
    assert repr(change) == "Perturbation(x=Tensor[2, 3], added=Tensor[2, 0], dropped=Tensor[2, 0])"


def test_a_fit_says_which_epoch_its_weights_are_from():
    data = datasets.load("synthetic")
    fit = fgai.Vanilla(epochs=3).fit(model_of("gat", data), data)
    best = max(fit.history, key=lambda epoch: epoch.val_f1 or 0)
    assert repr(fit) == f"Fit(GAT, epoch {fit.best.number} of 3, validation F1 {best.val_f1:.3f})"


@pytest.mark.parametrize("count", [1, 3])
def test_the_worst_nodes_are_told_apart(count):
    text = repr(comparison().reports["vanilla"].worst(count))
    assert text.count("NodeShift(node ") == count
