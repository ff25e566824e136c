"""What a row of the map from an engine's page to aie's names is. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from aie_telemetry.catalogue import CATALOGUE, Kind

HISTOGRAM_PARTS: Final = ("_bucket", "_sum", "_count")


class Fold(StrEnum):
    """How the series of several replicas become one."""

    SUM = "sum"
    MAX = "max"


class Expected(StrEnum):
    """When a page of this engine without the row's family is worth a remark."""

    NO = "no"  # other versions, options or deployments lack it
    ALWAYS = "always"
    ONCE_SERVED = "once_served"  # it appears with the first request


@dataclass(frozen=True, slots=True)
class Term:
    """One family of the page.

    `families` are its names over the versions; the first that the page has is read. Counters stand here without `_total`: a page
    may say it or not. `subtract` takes it from the other terms. `where` takes only the series whose label (the first item) has one
    of the values (the others); a label that is not there has the value "". `observed_total` reads a histogram's `_sum` as a
    counter. `fold` is for series that differ in labels that aie does not have.
    """

    families: tuple[str, ...]
    where: tuple[str, ...] = ()
    fold: Fold = Fold.SUM
    observed_total: bool = False
    subtract: bool = False


@dataclass(frozen=True, slots=True)
class Outcomes:
    """How a label of the page says how a request ended. `values` maps it to aie's outcomes; "4xx" stands for any 4 and two more
    characters that have no entry of their own."""

    label: str
    values: Mapping[str, str]

    def of(self, value: str) -> str | None:
        """aie's outcome for the page's `value`; None for one that nobody knows."""
        return self.values.get(value) or self.values.get(f"{value[:1]}xx" if len(value) == 3 else "")


@dataclass(frozen=True, slots=True)
class Row:
    """How one metric of the catalogue is said.

    The value is the sum of the `terms` (their product with `product`), each of which the page must have, divided by `divide_by`:
    the page's unit to the catalogue's; a histogram's bounds too. `outcome` is the outcome of all of it, `outcomes` reads it from a
    label. With any of the families `unless` on the page the row is not used: another one says the same better. Nor is it without
    one of `needs`. `stepwise` is what moves with every step of the model loop while requests run, and not only when one ends.
    """

    metric: str
    terms: tuple[Term, ...]
    product: bool = False
    divide_by: float = 1.0
    outcome: str | None = None
    outcomes: Outcomes | None = None
    unless: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    expected: Expected = Expected.NO
    stepwise: bool = False

    def exposed_kind(self, term: Term) -> Kind:
        """The kind that the page must declare for the family of `term`."""
        return Kind.HISTOGRAM if term.observed_total else CATALOGUE[self.metric].kind


@dataclass(frozen=True, slots=True)
class Info:
    """A family whose labels describe the engine: pairs of the page's label and that of `aie_engine_info`."""

    family: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class HitRate:
    """A gauge of a hit rate, and the counters (any of them is enough) that say the same over any window."""

    gauge: str
    counters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SameSum:
    """A counter of tokens, and the histogram that has those of every request that ended: equal while nothing is under way. Only on
    pages with one of `needs`, which tell the versions that count so."""

    counter: str
    histogram: str
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EngineMap:
    """All that is known of one engine's page. `kind` is how aie calls the engine; a page is this engine's when a name on it begins
    with one of `prefixes`.

    For the search for engines that hang: `replica` is the label that tells replicas apart, and `alone` a label and the value that
    it has in replicas that compute by themselves (those with another compute in step, and none hangs alone); `beats` are counters
    that move with every step and are no metric, `awake` is the family, label and value of a gauge that is 0 while the engine is
    paused on purpose.

    For the lint: `same_count` pairs a counter with a histogram that the engine counts in the same breath; `same_sum`, `hit_rates`.
    """

    kind: str
    prefixes: tuple[str, ...]
    rows: tuple[Row, ...]
    info: tuple[Info, ...] = ()
    replica: str = ""
    alone: tuple[str, str] | tuple[()] = ()
    beats: tuple[str, ...] = ()
    awake: tuple[str, str, str] | tuple[()] = ()
    same_count: tuple[tuple[str, str], ...] = ()
    same_sum: tuple[SameSum, ...] = ()
    hit_rates: tuple[HitRate, ...] = ()


def exposed_names(family: str, kind: Kind) -> tuple[str, ...]:
    """The names that the lines of `family` can have, best first. A counter's line says `_total`, or does not."""
    if kind is Kind.HISTOGRAM:
        return tuple(family + part for part in HISTOGRAM_PARTS)
    return (f"{family}_total", family) if kind is Kind.COUNTER else (family,)
