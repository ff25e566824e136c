"""Histories by which the board of objectives is held, and what it must say of them, by an oracle that only adds.

In each minute another share is bad, so that no two windows have the same answer. Beside the replicas that count stand those that
must not: of another job, engine or model, without a bucket at the bound, or with nothing asked of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

Rows = dict[tuple[str, str], float]
"""By engine and model."""

_BEGIN: Final = 10_000_000
"""What counters begin with: rates are extrapolated to no earlier than where a counter was 0."""
_OUTCOMES: Final = ("ok", "error", "timeout", "cancelled", "rejected")
_WELL: Final = frozenset({"ok"})
_COUNTED: Final = frozenset({"ok", "error", "timeout"})


class Replica(NamedTuple):
    """One engine on one host. `bound` is how its page writes that of the objective, if it has it; `outcomes` are those that it
    ever told; `restarts` a moment before the end, when its counters begin anew; `heard_min` how long ago it was heard of, last and
    first."""

    instance: str
    engine: str
    model: str
    bound: str | None = "first"
    outcomes: tuple[str, ...] = _OUTCOMES
    job: str = "aie"
    idle: bool = False
    restarts: bool = False
    heard_min: tuple[float, float] = (0.0, float("inf"))


REPLICAS: Final = (
    Replica("h", "e", "m", "first", restarts=True),
    Replica("i", "e", "m", "second"),
    Replica("j", "e", "m", None),  # of the same engine and model, and not measured
    Replica("h", "f", "m", None, ("error", "rejected")),  # on the host of one that is
    Replica("i", "f", "m", "third", ("error", "timeout")),  # nothing of it ever ended well
    Replica("h", "e", "n", None),  # of the engine of one that is
    Replica("i", "e", "n", "first", ("ok", "timeout", "cancelled")),
    Replica("i", "g", "m", "second", idle=True),
    Replica("h", "t", "m", None, ("timeout",)),
    Replica("h", "r", "m", None, ("error",)),
    Replica("h", "e", "m", "first", job="b"),
    *(
        Replica("h", f"left {window}", "m", outcomes=("error", "timeout"), heard_min=heard)
        for window, heard in (("5m", (3.0, 5.0)), ("1h", (50.0, 60.0)), ("6h", (310.0, 360.0)), ("30d", (42_500.0, 43_200.0)))
    ),
)
"""The last ones are gone since the oldest part of a window."""


class Pace(NamedTuple):
    """How far apart samples are, and how many there are. All is asked half a step after the last."""

    step_min: int
    samples: int

    @property
    def at_s(self) -> int:
        """When it is asked."""
        return 60 * self.step_min * (self.samples - 1) + 30 * self.step_min

    def heard(self, replica: Replica, step: int) -> bool:
        """Whether there is a sample of it."""
        least, most = replica.heard_min
        return step >= 0 and least < self.step_min * (self.samples - step - 0.5) < most

    def within(self, window_min: int) -> range:
        """The steps by which counters rose within the window: from its first sample to the last."""
        return range(self.samples - window_min // self.step_min + 1, self.samples)


MINUTES: Final = Pace(1, 366)
QUARTERS_OF_DAYS: Final = Pace(360, 122)


def _grows(place: int, number: int, step: int) -> int:
    """By how much in a step: so that each differs from all others."""
    return (
        (1000 + (7 * step + 130 * place) % 230, 3 + step % (4 + place), 2 + (step + place) % 5, 40 + step % 9, 70 + step % 7)[
            number
        ]
        if step
        else 0
    )


def _counter(place: int, replica: Replica, number: int, pace: Pace) -> str:
    """As promtool takes it. A restart is two steps before the end."""
    value, values = _BEGIN, []
    for step in range(pace.samples):
        if replica.restarts and step == pace.samples - 2:
            value = 0
        value += 0 if replica.idle else _grows(place, number, step)
        values.append(str(value) if pace.heard(replica, step) else "_")
    return " ".join(values)


def _labels(replica: Replica, **more: str) -> str:
    labels = {"job": replica.job, "instance": replica.instance, "engine": replica.engine, "model": replica.model, **more}
    return ", ".join(f'{name}="{value}"' for name, value in labels.items())


def histogram(metric: str, bounds: Mapping[str, str], pace: Pace) -> Iterator[tuple[str, str]]:
    """Series of observations: the first number of `_grows` within the bound, the second between it and a bound that all have."""
    for place, replica in enumerate(REPLICAS):
        within = _counter(place, replica, 0, pace)
        every = _counter(place, replica, 1, pace)
        total = " ".join(
            one if one == "_" else str(int(one) + int(other)) for one, other in zip(within.split(), every.split(), strict=True)
        )
        if replica.bound is not None:
            yield f"{metric}_bucket{{{_labels(replica, le=bounds[replica.bound])}}}", within
        yield f"{metric}_bucket{{{_labels(replica, le='2560')}}}", total
        yield f"{metric}_count{{{_labels(replica)}}}", total
        yield f"{metric}_sum{{{_labels(replica)}}}", within


def outcomes(metric: str, pace: Pace) -> Iterator[tuple[str, str]]:
    """Series of requests that ended."""
    for place, replica in enumerate(REPLICAS):
        for outcome in replica.outcomes:
            yield f"{metric}{{{_labels(replica, outcome=outcome)}}}", _counter(place, replica, _OUTCOMES.index(outcome), pace)


def _rises(pace: Pace, window_min: int, place: int, number: int) -> int:
    replica = REPLICAS[place]
    steps = (step for step in pace.within(window_min) if pace.heard(replica, step) and pace.heard(replica, step - 1))
    return sum(_grows(place, number, step) for step in steps)


def share_within(pace: Pace, window_min: int) -> Rows:
    """Of observations within the bound, of those replicas that tell it."""
    parts = (
        ((each.engine, each.model), _rises(pace, window_min, place, 0), _rises(pace, window_min, place, 1))
        for place, each in _counted()
        if each.bound is not None
    )
    return _shares((key, within, within + beyond) for key, within, beyond in parts)


def share_well(pace: Pace, window_min: int) -> Rows:
    """Of requests that ended well, of those that count."""
    return _shares(
        ((each.engine, each.model), rise * (outcome in _WELL), rise)
        for place, each in _counted()
        for outcome in _COUNTED & set(each.outcomes)
        for rise in (_rises(pace, window_min, place, _OUTCOMES.index(outcome)),)
    )


def _counted() -> Iterator[tuple[int, Replica]]:
    return ((place, each) for place, each in enumerate(REPLICAS) if each.job == "aie" and not each.idle)


def _shares(parts: Iterable[tuple[tuple[str, str], int, int]]) -> Rows:
    sums: dict[tuple[str, str], list[int]] = {}
    for key, part, whole in parts:
        of = sums.setdefault(key, [0, 0])
        of[0] += part
        of[1] += whole
    return {key: part / whole for key, (part, whole) in sums.items() if whole}
