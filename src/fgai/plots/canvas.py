"""Figures without matplotlib's global state: displayed in notebooks, saved as SVG or PNG."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from fgai.errors import MissingExtraError
from fgai.files import atomic_write, checked_suffix

DASHES = ("-", "--", ":", "-.")
FORMATS = (".svg", ".png")


@cache
def _figure_class() -> Any:
    """A subclass of matplotlib's Figure that notebooks display as SVG."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("figures need matplotlib; install it with: pip install 'fgai[plots]'") from error

    class Drawing(Figure):
        """A figure that notebooks display."""

        def _repr_svg_(self) -> str:
            return _render(self, "svg").decode()

    return Drawing


def canvas(rows: int, columns: int, width: float = 3.2, height: float = 3.0, **shared: Any) -> tuple[Any, Any]:
    """A figure and its axes [rows, columns], each of this width and height in inches.

    >>> figure, axes = canvas(1, 2)
    >>> axes.shape, figure._repr_svg_().startswith("<?xml")
    ((1, 2), True)
    """
    figure = _figure_class()(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def styles(panels: Mapping[str, Iterable[str]], **cycles: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """The plot style of each name, the same in all panels: its own colour, and the next value of each cycle.

    >>> styles({"cora": ["gat"], "photo": ["gt", "gat"]}, linestyle=DASHES)["gt"]
    {'color': 'C1', 'linestyle': '--'}
    """
    names = dict.fromkeys(name for panel in panels.values() for name in panel)
    return {
        name: {"color": f"C{i}", **{key: values[i % len(values)] for key, values in cycles.items()}}
        for i, name in enumerate(names)
    }


def save(figure: Any, path: str | Path) -> None:
    """Write a figure to `.svg` or `.png`. The same figure gives the same bytes."""
    path = Path(path)
    content = _render(figure, format_of(path))
    with atomic_write(path) as half:
        half.write_bytes(content)


def format_of(path: Path) -> str:
    """The format for the suffix of a file.

    >>> format_of(Path("curves.svg"))
    'svg'
    """
    return checked_suffix(path, FORMATS, "a figure").removeprefix(".")


def _render(figure: Any, kind: str) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else None
    with rc_context({"svg.hashsalt": "fgai"}):
        figure.savefig(buffer, format=kind, dpi=110, metadata=metadata)
    return buffer.getvalue()
