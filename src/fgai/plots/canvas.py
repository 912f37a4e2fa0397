"""What every figure is drawn on: matplotlib without its global state, shown by notebooks, written as SVG or PNG."""

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
def _kind() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("figures need matplotlib; install it with: pip install 'fgai[plots]'") from error

    class Drawing(Figure):
        """A figure that notebooks show."""

        def _repr_svg_(self) -> str:
            return _written(self, "svg").decode()

    return Drawing


def canvas(rows: int, columns: int, width: float = 3.2, height: float = 3.0, **shared: Any) -> tuple[Any, Any]:
    """A figure and its axes [rows, columns], each of this width and height in inches.

    >>> figure, axes = canvas(1, 2)
    >>> axes.shape, figure._repr_svg_().startswith("<?xml")
    ((1, 2), True)
    """
    figure = _kind()(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def looks(panels: Mapping[str, Iterable[str]], **cycles: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """How each name is drawn in every panel that has it: a colour of its own, and the next of each cycle.

    >>> looks({"cora": ["gat"], "photo": ["gt", "gat"]}, linestyle=DASHES)["gt"]
    {'color': 'C1', 'linestyle': '--'}
    """
    names = dict.fromkeys(name for panel in panels.values() for name in panel)
    return {
        name: {"color": f"C{i}", **{part: of[i % len(of)] for part, of in cycles.items()}}
        for i, name in enumerate(names)
    }


def save(figure: Any, path: str | Path) -> None:
    """Write a figure to `.svg` or `.png`; the same figure gives the same bytes."""
    path = Path(path)
    content = _written(figure, format_of(path))
    with atomic_write(path) as half:
        half.write_bytes(content)


def format_of(path: Path) -> str:
    """The format that the name of a file asks for.

    >>> format_of(Path("curves.svg"))
    'svg'
    """
    return checked_suffix(path, FORMATS, "a figure").removeprefix(".")


def _written(figure: Any, kind: str) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    about = {"Date": None} if kind == "svg" else None
    with rc_context({"svg.hashsalt": "fgai"}):
        figure.savefig(buffer, format=kind, dpi=110, metadata=about)
    return buffer.getvalue()
