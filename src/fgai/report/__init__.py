"""One file to look at: an audit or a comparison as a self-contained HTML page."""

from fgai.report.content import content
from fgai.report.page import page, save

__all__ = ["content", "page", "save"]
