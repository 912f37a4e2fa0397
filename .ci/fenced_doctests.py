"""Shows doctests as code on the reference page; Markdown reads `>>>` as nested quotes and `[1, 2]` as a link."""

import re
from typing import Any

from griffe import Extension, Object

DOCTEST = re.compile(r"^>>> .*(?:\n.*\S.*)*", re.MULTILINE)


class FencedDoctests(Extension):
    """Puts each doctest of a docstring into a fenced block."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Called for each module, class, function and attribute."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", obj.docstring.value)
