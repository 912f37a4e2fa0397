"""Whatever is registered has one line that says what it is, and an example that runs."""

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fgai
from fgai.adversaries import GAINS, ChosenInjection, Threat
from fgai.datasets.catalogue import PyGSource
from fgai.datasets.graphs import GraphSource
from fgai.datasets.typed import TypedSource
from fgai.metrics import Metric
from fgai.registry import Registry
from fgai.trial import Trial
from reports import comparison
from worlds import answers, community, model_of, small

ROOT = Path(__file__).parents[2]


def registries() -> dict[str, Registry[Any]]:
    """Every registry of the package, by its kind."""
    modules = [importlib.import_module(found.name) for found in pkgutil.walk_packages(fgai.__path__, "fgai.")]
    every = [value for module in modules for value in vars(module).values() if isinstance(value, Registry)]
    return {registry.kind: registry for registry in every}


REGISTRIES = registries()
ENTRIES = [(kind, name) for kind, registry in REGISTRIES.items() for name in registry]


def examples(entry: Any) -> list[doctest.Example]:
    """The examples in the docstring of a class or a function; pytest runs them, since they stand in the package."""
    if not (inspect.isclass(entry) or inspect.isfunction(entry)) or not entry.__module__.startswith("fgai."):
        return []
    return doctest.DocTestParser().get_examples(entry.__doc__ or "")


def skipped(example: doctest.Example) -> bool:
    return example.options.get(doctest.SKIP, False)


def computed(metric: Metric) -> None:
    graph = small()
    read, clean = answers(model_of("gat", graph), graph)
    assert isinstance(metric.compute(Trial(read, graph, clean, clean, graph.y, graph.test_mask)), float)


def written(writer: Callable[[Any], str]) -> None:
    for report in (comparison(), comparison().reports["vanilla"]):
        assert "vanilla" in writer(report)


def drawn(figure: Callable[[Path, str, str], Any]) -> None:
    pytest.importorskip("matplotlib")
    assert figure(ROOT / "results", "", "gat").axes


def described(source: PyGSource | GraphSource | TypedSource) -> None:
    """Its files are read by the tests of datasets; here they only have to be named."""
    assert callable(source.reader) and source.folder and (not isinstance(source, PyGSource) or source.part)


def threatened(threat: Threat) -> None:
    """The attack, with few steps, reaches at least what the clean graph has."""
    graph = community()
    read, clean = answers(model_of("gat", graph), graph)
    if isinstance(threat.adversary, ChosenInjection):
        threat = replace(threat, adversary=replace(threat.adversary, schedules=((2, 0.3),), adam=((2, 0.3),)))
    gain = GAINS[threat.gain](clean)
    assert float(gain(threat(read, graph).detach())) >= float(gain(clean))


# Where one example serves every entry: data without a docstring of its own, and what needs the files of `results/`.
GENERIC: dict[str, Callable[[Any], None]] = {
    "metric": computed,
    "format of a report": written,
    "figure": drawn,
    "dataset": described,
    "threat model": threatened,
}


def lacks_example(kind: str, entry: Any) -> bool:
    """Examples that are all skipped count only where the entry needs a package that may be missing."""
    own = examples(entry)
    if own:
        return all(map(skipped, own)) and "MissingExtraError" not in inspect.getsource(entry)
    return kind not in GENERIC or (kind == "dataset" and not isinstance(entry, PyGSource | GraphSource | TypedSource))


def test_the_registries_are_found():
    assert {"method", "adversary", "metric", "gain", "dataset", "backbone"} <= REGISTRIES.keys()


@pytest.mark.parametrize(("kind", "name"), ENTRIES)
def test_it_is_described_in_one_line(kind, name):
    about = REGISTRIES[kind].about(name)
    assert len(about.split()) >= 2 and "\n" not in about, f"the {kind} {name} has no description: {about!r}"


def test_it_has_an_example():
    lacking = [f"{kind} {name}" for kind, name in ENTRIES if lacks_example(kind, REGISTRIES[kind][name])]
    assert not lacking, f"write an example (>>>) into the docstring of: {', '.join(lacking)}"


@pytest.mark.parametrize(
    ("kind", "name"), [(k, n) for k, n in ENTRIES if k in GENERIC and not examples(REGISTRIES[k][n])]
)
def test_the_example_of_its_kind_runs(kind, name):
    GENERIC[kind](REGISTRIES[kind][name])


@pytest.mark.parametrize("doc", [None, "One line.", ">>> 1 + 1  # doctest: +SKIP"])
def test_what_has_no_example_is_found(doc):
    def entry(): ...

    entry.__doc__, entry.__module__ = doc, "fgai.somewhere"
    assert lacks_example("gain", entry)
