"""Training runs that are killed."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fgai.training import loop


@contextmanager
def killed_in_epoch(number: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A block whose training must be killed in the epoch of this number, counted from 1."""
    plain, calls = loop._epoch, []

    def killed(*args):
        calls.append(1)
        if len(calls) == number:
            raise KeyboardInterrupt
        plain(*args)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(loop, "_epoch", killed)
        yield
