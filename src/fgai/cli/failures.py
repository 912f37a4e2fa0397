"""Expected errors of a command as one sentence, with exit code 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from fgai.errors import FGAIError

OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "not enough memory")  # as torch words it


@contextmanager
def errors_in_words() -> Iterator[None]:
    """Print expected errors as one sentence without a stack trace, and exit with code 2.

    Expected are `FGAIError`, errors of the file system, and lack of memory. Anything else is a bug and is raised.
    """
    try:
        yield
    except (FGAIError, OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, BrokenPipeError) or (sentence := _error_sentence(error)) is None:
            raise
        typer.echo(f"{typer.style('fgai:', fg='red')} {sentence}", err=True)
        raise typer.Exit(2) from error


def _error_sentence(error: Exception) -> str | None:
    """The sentence of an expected error, or None."""
    if isinstance(error, FGAIError):
        return str(error)
    if isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY):
        return f"there is not enough memory ({str(error)[:200] or 'MemoryError'}); use a smaller graph, or --batch"
    if isinstance(error, OSError):
        return f"the system refused ({error}); check the permissions and the free space of that path"
    return None
