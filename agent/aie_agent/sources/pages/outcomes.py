"""Counters of outcomes that begin at 0. Most engines put a line of an outcome on their page when it comes first: a counter that
appears with 1 never rose for Prometheus, and an engine that only fails has no good outcome to hold its errors against."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

from aie_agent.sources.pages.rows import EngineMap
from aie_telemetry.exposition import PageSample, Tags

ENDED: Final = "aie_engine_requests_total"
_GOOD: Final = "ok"
_MOST: Final = 1000
"""Most series that are remembered, as many as are taken of a page."""
_PARTS: Final = ("_bucket", "_sum")
"""What a histogram has beside its count."""


def outcomes_of(engine: EngineMap) -> tuple[str, ...]:
    """Those that a page of the engine can tell; none where it does not count what ended well, so that nothing is a share of it."""
    rows = [row for row in engine.rows if row.metric == ENDED]
    found = dict.fromkeys(row.outcome for row in rows if row.outcome is not None)
    found |= dict.fromkeys(each for row in rows if row.outcomes is not None for each in row.outcomes.values.values())
    return tuple(found) if _GOOD in found else ()


class Beginnings:
    """Of one endpoint: which outcomes have not come yet."""

    def __init__(self, engine: EngineMap) -> None:
        self._outcomes = outcomes_of(engine)
        self._told: frozenset[Tags] = frozenset()

    def of(self, samples: Iterable[tuple[str, Tags]], *, is_whole: bool) -> list[PageSample]:
        """What is 0 beside the series of a page in aie's names. `is_whole`: nothing of it was refused or left out, so that what is
        not there is not, as after a restart. Else only what never came is 0: a counter must not fall because it was not read."""
        if not self._outcomes:
            return []
        there: set[Tags] = set()
        models: set[str] = set()
        room = _MOST
        for name, tags in samples:
            room -= not name.endswith(_PARTS)
            models.update(value for label, value in tags if label == "model")
            if name == ENDED:
                there.add(tags)
        self._told = frozenset(there) if is_whole else self._told | there
        if len(self._told) > _MOST:
            return []
        models = {model for model in models if model} or models  # numbers of the whole engine stand beside those of its models
        begun = (PageSample(ENDED, tags, 0.0) for tags in self._all(models) if tags not in self._told)
        return list(islice(begun, max(room, 0)))  # what the page has goes before what it has not

    def _all(self, models: Iterable[str]) -> Iterator[Tags]:
        for model in sorted(models):
            for outcome in self._outcomes:
                yield (("model", model), ("outcome", outcome))
