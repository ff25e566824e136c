"""Whether the runs that a canary's level is learnt from are of one model.

One model gives the same number again, but for noise; a model that is changed while it is learnt gives two levels, one after the
other, and a limit that spans both would hide every change of their size. So learning begins anew with the later level: as soon as
`LATER` runs, however long the earlier ones were, lie together and all others are apart from all of these, by more than the floor
and `APART` times what they scatter. Where the last runs, fewer than that, may be the beginning of another level, the end of
learning waits for them.

False alarms: a wrong "begun anew" costs a few more runs and says what is not so. It raises no finding, and those that come later
are as rare as without it. Noise within the floor never does it, in whatever spells it comes: the floor is what batches may do to a
run. Of noise beyond the floor, independent from run to run, so many learnings begin anew wrongly (`make bench-drift`): normal 1 in
500, Laplace 1 in 200, Student's t with three degrees of freedom 1 in 140, two values by turns 1 in 12.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LATER: Final = 5
"""Runs that are a level."""

APART: Final = 3.0
"""Times what a level's runs scatter."""


def step_in(runs: Sequence[float], floor: float) -> int | None:
    """The index at which runs, finite, stepped to another level; None where they did not. `floor` in nats."""
    for at in range(len(runs) - LATER, 0, -1):
        if _are_apart(runs[:at], runs[at:], floor):
            return at
    return None


def may_step(runs: Sequence[float], floor: float) -> bool:
    """Whether the last runs may be the first of another level, and are too few to tell."""
    return any(_are_apart(runs[-count:], runs[:-count], floor) for count in range(1, min(LATER, len(runs) - LATER + 1)))


def _are_apart(others: Sequence[float], level: Sequence[float], floor: float) -> bool:
    low, high = min(level), max(level)
    margin = max(floor, APART * (high - low))
    return all(each < low - margin or each > high + margin for each in others)
