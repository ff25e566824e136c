"""What a page says of its engine's progress, beside the metrics: see `aie_agent.progress`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from aie_agent.progress import RUNNING, SIGNS, TOKENS, PageSigns, ReplicaSigns
from aie_agent.sources.pages.rows import EngineMap, Row, exposed_names
from aie_telemetry.catalogue import Kind
from aie_telemetry.exposition import PageSample, Tags

MAX_REPLICAS: Final = 256
MAX_BEATS: Final = 256
"""Most of each that are followed on one page."""

_SIGNS: Final = frozenset(SIGNS)
_RANK: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
"""How engines number their replicas; anything else on a page is no replica."""


def signs_of(
    engine: EngineMap, numbers: Mapping[int, Mapping[Any, Mapping[Tags, float]]], samples: Iterable[PageSample]
) -> PageSigns:
    """`numbers` are what the rows of `engine` read, by row, number and replica. Raises nothing."""
    stepwise = frozenset(engine.rows[index].metric for index in numbers if engine.rows[index].stepwise)
    beats, is_paused = _beyond(engine, samples)
    return PageSigns(stepwise, beats, is_paused, _replicas(engine, numbers) if engine.replica else {})


def _beyond(engine: EngineMap, samples: Iterable[PageSample]) -> tuple[dict[tuple[str, Tags], float], bool]:
    """What the page says in families that are no metrics of ours."""
    names = {name for family in engine.beats for name in exposed_names(family, Kind.COUNTER)}
    awake = engine.awake
    if not names and not awake:
        return {}, False
    beats: dict[tuple[str, Tags], float] = {}
    is_paused = False
    for sample in samples:
        if sample.name in names and len(beats) < MAX_BEATS:
            beats[sample.name, sample.tags] = sample.value
        elif awake and sample.name == awake[0] and awake[1:] in sample.tags:
            is_paused |= sample.value == 0
    return beats, is_paused


class _Told(NamedTuple):
    """One number of one replica."""

    replica: str
    row: Row
    key: tuple[Any, Tags]
    value: float


def _replicas(engine: EngineMap, numbers: Mapping[int, Mapping[Any, Mapping[Tags, float]]]) -> dict[str, ReplicaSigns]:
    replicas: dict[str, ReplicaSigns] = {}
    signs: dict[str, dict[tuple[Any, Tags], float]] = {}
    for replica, row, key, value in _told_apart(engine, numbers):
        before = replicas.get(replica)
        if before is None:
            if len(replicas) >= MAX_REPLICAS:
                continue
            before = ReplicaSigns(0.0, 0.0, signs.setdefault(replica, {}), False)
        replicas[replica] = before._replace(
            running=before.running + (value if row.metric == RUNNING else 0.0),
            tokens=before.tokens + (value if row.metric == TOKENS else 0.0),
            is_stepwise=before.is_stepwise or row.stepwise,
        )
        if row.metric != RUNNING:
            signs[replica][key] = value
    return replicas


def _told_apart(engine: EngineMap, numbers: Mapping[int, Mapping[Any, Mapping[Tags, float]]]) -> Iterator[_Told]:
    """The numbers that say which replica they are of; of a histogram only its count, which moves with all the rest."""
    for index, of_row in numbers.items():
        row = engine.rows[index]
        if row.metric != RUNNING and row.metric not in _SIGNS:
            continue
        for slot, of_replicas in of_row.items():
            if not slot.name.endswith(("_bucket", "_sum")):
                for tags, value in of_replicas.items():
                    name = next((value for label, value in tags if label == engine.replica), "")
                    if _RANK.fullmatch(name):
                        yield _Told(name, row, (slot, tags), value)
