"""Progress on the standard error: a bar on a terminal, and otherwise a plain line every few seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[str], None]
EVERY = 5.0  # seconds between two plain lines


@contextmanager
def progress(title: str, total: int) -> Iterator[Advance]:
    """Yield `advance(note)`, which counts one step and shows `note` beside it.

    Without a terminal, such as in a pipe or a log file, work of less than `EVERY` seconds prints nothing.

    >>> with progress("counting", total=2) as advance:
    ...     advance("one"), advance("two")
    (None, None)
    """
    if sys.stderr.isatty():
        with _bar(title, total) as advance:
            yield advance
    else:
        yield _plain_lines(title, total)


def _plain_lines(title: str, total: int) -> Advance:
    """Print a line at the first step after each `EVERY` seconds."""
    began = last = time.monotonic()
    done = 0

    def advance(note: str) -> None:
        nonlocal last, done
        done, now = done + 1, time.monotonic()
        if now - last >= EVERY:
            last = now
            print(f"{title}: {done} of {total} after {now - began:.0f} s; {note}", file=sys.stderr, flush=True)

    return advance


@contextmanager
def _bar(title: str, total: int) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
