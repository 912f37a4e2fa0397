"""Everything that the campaign tries, by name."""

from calls import CALLS
from campaign import Target
from commands import COMMANDS
from readers import READERS

GROUPS: dict[str, list[Target]] = {"files": READERS, "calls": CALLS, "commands": COMMANDS}
TARGETS = {target.name: target for group in GROUPS.values() for target in group}
assert len(TARGETS) == sum(map(len, GROUPS.values())), "two targets of one name"


def share(target: Target, units: float) -> int:
    """How many cases a target gets of a budget: dear ones get fewer, none goes without."""
    return max(2, round(units / target.cost))
