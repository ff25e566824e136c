"""What traffic looked like when its reference was recorded: sorted values of each statistic, what they were recorded of, and what
the rule does on them. Immutable: it carries the hash of all that is in it, and is never updated by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from aie_agent.analysis.drift.rule import WINDOW
from aie_agent.analysis.drift.span import hours_between

FEWEST: Final = 500
"""Requests of a reference. With fewer, its own error alone raises alarms."""

MOST: Final = 20_000
"""Requests of a reference. More tell nothing more: of a longer recording blocks are taken, spread over all of it."""

FEWEST_DISTINCT: Final = 20
"""Distinct values from which on a distribution function says something."""


class UnfitReferenceError(ValueError):
    """A reference that cannot be made or read: one sentence that says why."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a reference was recorded of. `revision` is empty where it is not known; then any of the model will do. `hours` is how
    long it was recorded, where that is known otherwise than by `recorded_from` and `recorded_to`."""

    model: str
    revision: str = ""
    quantisation: str = ""
    sampling: str = ""
    traffic_class: str = "default"
    recorded_from: str = ""
    recorded_to: str = ""
    built_at: str = ""
    hours: float | msgspec.UnsetType = msgspec.UNSET  # unset is not written: files of before keep their hash

    @property
    def span_hours(self) -> float | None:
        """How long it was recorded; None where that is not known."""
        if isinstance(self.hours, msgspec.UnsetType):
            return hours_between(self.recorded_from, self.recorded_to)
        return self.hours


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """How rare false alarms shall be: one in so many days, all statistics together, at so many requests a second that are looked
    at."""

    days: float = 30.0
    requests_per_second: float = 1.0

    @property
    def requests(self) -> float:
        """Requests in that time."""
        return self.days * 86400.0 * self.requests_per_second


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of a reference, of `m` values with this standard deviation.

    `critical` is the integer from which on a window counts, `critical_p01` the one of p < 0.01, which it is never below. `outside`
    values of a window beyond `low` and `high` (1st and 99th percentile) are too many. `deviation_low` and `deviation_high` are the
    smallest and the largest standard deviation of stretches as long as those of `output_stability`, replayed ones too. `dependence`
    is how many values tell as much as one that depends on none. `false_alarm` is the probability of five windows beyond the
    threshold. `delay_requests` is by shift in standard deviations, null where it takes more than a million. `untested` says why it
    cannot be compared, empty where it can; values that it never had are noticed all the same (bounds.py).
    """

    name: str
    m: int
    distinct: int
    largest_share: float
    deviation: float
    low: float
    high: float
    critical: int
    critical_p01: int
    outside: int
    deviation_low: float
    deviation_high: float
    dependence: Annotated[float, msgspec.Meta(ge=1.0)]
    false_alarm: float
    delay_requests: dict[str, float | None]
    untested: str = ""

    @property
    def tells(self) -> bool:
        """Whether it can say that nothing changed: by its distribution, or by being constant as ever."""
        return not self.untested or self.distinct == 1

    @property
    def threshold(self) -> float:
        """The critical distance, 0 to 1."""
        return self.critical / (self.m * WINDOW)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the values. `run_length_requests` is how many requests pass between false alarms, all statistics together;
    `replayed_requests` is how many of each statistic were replayed to find that."""

    about: About
    aim: Aim
    requests: int
    columns: tuple[Column, ...]
    run_length_requests: float
    replayed_requests: int
    warnings: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A header, and the sorted values of each of its columns."""

    header: Header
    values: Mapping[str, Sequence[float]]

    @property
    def model(self) -> str:
        """The model that it was recorded of."""
        return self.header.about.model
