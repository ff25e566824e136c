"""The numbers of one page by the replica that says them, and what must hold of a histogram before it is added up.

A sum over replicas remembers: what is wrong in it once would be wrong until the agent is started again.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Set
from typing import NamedTuple

from aie_agent.sources.monotonic import MonotonicSum
from aie_telemetry.exposition import Tags


class Slot(NamedTuple):
    """One number to come: of a term of a row, under aie's name and labels. `series` are the labels less a bucket's bound."""

    row: int
    term: int
    name: str
    tags: Tags
    series: Tags
    is_scalar: bool


Numbers = dict[Slot, dict[Tags, float]]
Sums = Mapping[Slot, MonotonicSum[Tags]]
Series = tuple[int, Tags]
"""Of a histogram of a row: the term, and the labels less a bucket's bound."""


def unlike(numbers: Numbers) -> set[Tags]:
    """The histograms whose replicas do not have the same lines: counts of unlike buckets cannot be added up."""
    replicas: dict[Tags, int] = {}
    found = set()
    for slot, of_replicas in numbers.items():
        if not slot.is_scalar and replicas.setdefault(slot.series, len(of_replicas)) != len(of_replicas):
            found.add(slot.series)
    return found


def contradictory(numbers: Numbers, summed: Container[Slot]) -> set[Tags]:
    """The histograms that are sums over replicas of which one contradicts itself: its buckets fall, or do not end at its count."""
    buckets: dict[tuple[int, Tags, Tags], list[tuple[float, float]]] = defaultdict(list)
    for slot, of_replicas in numbers.items():
        if not slot.is_scalar and slot in summed and not slot.name.endswith("_sum"):
            # The count stands after the last bucket, and must be as high.
            bound = _bound(slot.tags) if slot.name.endswith("_bucket") else math.inf
            for replica, value in of_replicas.items():
                buckets[slot.term, slot.series, replica].append((bound, value))
    return {series for (_, series, _), of_one in buckets.items() if not _is_cumulative(of_one)}


def _bound(tags: Tags) -> float:
    try:
        return float(dict(tags).get("le", ""))
    except ValueError:
        return math.nan


def _is_cumulative(buckets: Iterable[tuple[float, float]]) -> bool:
    ordered = sorted(buckets)
    return all(
        before <= after and (lower < upper or before == after) for (lower, before), (upper, after) in itertools.pairwise(ordered)
    )


def begun_anew(numbers: Numbers, sums: Sums) -> dict[Series, Set[Tags]]:
    """The replicas of each histogram of which a line fell: they begin anew, and all of their lines count from 0. A bucket alone may
    stand higher at once than it did before."""
    found: dict[Series, set[Tags]] = defaultdict(set)
    for slot, of_replicas in numbers.items():
        if not slot.is_scalar and slot in sums:
            found[slot.term, slot.series] |= sums[slot].fallen(of_replicas)
    return dict(found)
