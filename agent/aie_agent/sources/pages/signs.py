"""What a page says of its engine's progress, beside the metrics: see `aie_agent.progress`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aie_agent.progress import RUNNING, SIGNS, STALE, TOKENS, PageSigns, ReplicaSigns
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
    engine: EngineMap, numbers: Mapping[int, Mapping[Any, Mapping[Tags, float]]], samples: Sequence[PageSample]
) -> PageSigns:
    """`numbers` are what the rows of `engine` read, by row, number and replica. Raises nothing."""
    stepwise = frozenset(engine.rows[index].metric for index in numbers if engine.rows[index].stepwise)
    beats, is_paused = _beyond(engine, samples)
    replicas = _replicas(engine, numbers) if engine.replica else {}
    if engine.alone and replicas:
        alone = _alone(engine, engine.alone, samples)
        replicas = {name: signs for name, signs in replicas.items() if name in alone}
    return PageSigns(stepwise, beats, is_paused, replicas, _stale_s(engine, samples))


def _alone(engine: EngineMap, mark: tuple[str, str], samples: Sequence[PageSample]) -> frozenset[str]:
    """The replicas that compute by themselves: those of which a part has the `mark`, or has no such label."""
    label, value = mark
    families = {family for row in engine.rows if row.metric == RUNNING for term in row.terms for family in term.families}
    tags = (dict(sample.tags) for sample in samples if sample.name in families)
    return frozenset(each.get(engine.replica, "") for each in tags if each.get(label, value) == value)


def _stale_s(engine: EngineMap, samples: Sequence[PageSample]) -> float:
    """For how long the page may show requests running when none does any more."""
    stale = STALE.get(engine.kind)
    if stale is None:
        return 0.0
    return stale.for_s if any(sample.name in stale.families for sample in samples) else math.inf


def _beyond(engine: EngineMap, samples: Sequence[PageSample]) -> tuple[dict[tuple[str, Tags], float], bool]:
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
