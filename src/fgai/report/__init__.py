"""An audit or a comparison as one self-contained HTML file."""

from fgai.report.content import content
from fgai.report.page import page, save

__all__ = ["content", "page", "save"]
