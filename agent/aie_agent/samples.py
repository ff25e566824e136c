"""What flows from the sources to the store: points, in batches. The only thing that the two know of each other."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from aie_telemetry.api import Event
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.exemplars import Exemplar

Tags = tuple[tuple[str, str], ...]
"""Labels as (name, value) pairs, sorted by name."""


class Point(NamedTuple):
    """One value of a counter or gauge.

    A `delta` is added to what the store holds (StatsD counts so); otherwise a counter's value is its total since its owner
    began, which may fall back when the owner restarts.
    """

    name: str
    kind: Kind
    tags: Tags
    value: float
    delta: bool = False


class HistogramPoint(NamedTuple):
    """The state of a histogram: observations per bucket (not cumulative; one more than `bounds`, the last above them all) and
    the sum of all observed values. `delta` as in `Point`. `exemplars` are observations with their traces, by the bucket's index."""

    name: str
    tags: Tags
    bounds: tuple[float, ...]
    counts: tuple[float, ...]
    total: float
    delta: bool = False
    exemplars: tuple[tuple[int, Exemplar], ...] = ()


class Values(NamedTuple):
    """Single observations of a histogram, in the order in which they came, beside its buckets; `lost` are how many more."""

    name: str
    tags: Tags
    values: tuple[float, ...]
    lost: int = 0


class Hello(NamedTuple):
    """A process said that it belongs to an engine. `tgid` is its pid as the agent sees it; None when that cannot be known."""

    engine: str
    tgid: int | None


class Found(NamedTuple):
    """An engine that the scan for known engines found: what it would be called, its processes (the one that was started first), and
    where its page can be read from here. `note` says why it cannot, `hint` what may be the reason if nothing is there. `place` is
    what it would be called by where it serves, whatever name it was given. `pod` is the UID of its Kubernetes pod."""

    name: str
    kind: str
    tgids: tuple[int, ...]
    url: str | None
    container: str | None = None
    note: str | None = None
    hint: str | None = None
    place: str | None = None
    pod: str | None = None


@dataclass(slots=True)
class Batch:
    """All that one collection of one source brought, taken at one time (seconds since the epoch).

    `period_s` is how long until the next one is due: what counts as current depends on it. `found` is all that a scan found, and
    None where nobody looked. `whole` are metrics of which this batch has every series there is: others are not current any more.
    """

    source: str
    time_s: float
    points: list[Point] = field(default_factory=list)
    histograms: list[HistogramPoint] = field(default_factory=list)
    hellos: list[Hello] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    values: list[Values] = field(default_factory=list)
    found: list[Found] | None = None
    whole: tuple[str, ...] = ()
    period_s: float = 1.0


@functools.lru_cache(maxsize=4096)
def own_tags(name: str, values: tuple[str, ...]) -> Tags:
    """The labels of a metric of the catalogue, from their values in its order: the same at each collection."""
    return tuple(sorted(zip(CATALOGUE[name].labels, values, strict=True)))


Count = tuple[str, tuple[str, ...], float]
"""A number that a part of the agent counts of itself: a metric, its label values in the catalogue's order, the value."""


def labelled(name: str, counts: Mapping[str, float]) -> Iterable[Count]:
    """A metric with one label, from a mapping of its values."""
    for value, count in counts.items():
        yield name, (value,), float(count)
