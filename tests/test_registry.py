import pytest

from fgai.backbones import BACKBONES
from fgai.datasets import DATASETS
from fgai.errors import DataError, FGAIError, UnknownNameError
from fgai.methods import METHODS
from fgai.registry import Registry, import_from_cwd


def shapes():
    registry = Registry("shape")

    @registry.register("square")
    class Square:
        """Four equal sides.

        And more.
        """

    registry.add("circle", object(), "One side.")
    return registry, Square


def test_what_is_registered_is_found_by_its_name_in_the_order_of_its_coming():
    registry, square = shapes()
    assert registry["square"] is square
    assert list(registry) == ["square", "circle"]
    assert len(registry) == 2


def test_a_line_about_an_entry_is_given_or_the_first_of_its_docstring():
    registry, _ = shapes()
    assert registry.about("square") == "Four equal sides."
    assert registry.about("circle") == "One side."


def test_an_unknown_name_is_answered_with_the_nearest_and_all_there_are():
    registry, _ = shapes()
    for ask in (registry.__getitem__, registry.about):
        with pytest.raises(UnknownNameError) as caught:
            ask("sqare")
        hint = "did you mean 'square'? Registered: square, circle"
        assert str(caught.value) == f"no shape is called 'sqare'; {hint}"


def test_a_name_like_no_other_is_answered_without_a_guess():
    with pytest.raises(UnknownNameError, match=r"no shape is called 'xyz'; Registered: square, circle"):
        shapes()[0]["xyz"]


def test_an_unknown_name_is_a_key_error_so_that_get_and_in_work():
    registry, _ = shapes()
    assert issubclass(UnknownNameError, FGAIError)
    assert registry.get("sqare") is None
    assert "sqare" not in registry


def test_a_name_is_given_once_and_the_first_entry_stays():
    registry, square = shapes()
    with pytest.raises(ValueError, match="a shape called 'square' is already registered"):
        registry.add("square", object())
    assert registry["square"] is square


@pytest.mark.parametrize("registry", [DATASETS, BACKBONES, METHODS], ids=lambda registry: registry.kind)
def test_every_registered_thing_says_what_it_is(registry):
    assert registry
    assert all(registry.about(name) for name in registry)


@pytest.mark.parametrize("name", ["", ".", "../x"])
def test_a_module_without_a_name_is_refused(name):
    with pytest.raises(DataError, match="no name of a module"):
        import_from_cwd(name)
