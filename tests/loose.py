"""What the type checker cannot know of a value, it shall not ask."""

from typing import Any


def loose(value: Any) -> Any:
    """The value itself: PyG types what a `Data` holds as Optional, torch the attributes of a module as a union."""
    return value
