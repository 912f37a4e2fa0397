"""Sentences of generated pages, wrapped as the pages are."""

from __future__ import annotations

import textwrap


def paragraphs(*texts: str) -> str:
    """Return each text wrapped at 120 characters and never at a hyphen; a text that begins with `- ` is a list item."""
    wrapped = (
        textwrap.fill(
            text, 120, subsequent_indent="  " * text.startswith("- "), break_on_hyphens=False, break_long_words=False
        )
        for text in texts
    )
    return "\n".join(wrapped) + "\n"
