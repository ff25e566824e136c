"""What a page says of its engine's progress, beside the metrics: see `aie_agent.progress`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from aie_agent.progress import RUNNING, SIGNS, TOKENS, PageSigns, ReplicaSigns
from aie_agent.sources.pages.rows import EngineMap, exposed_names
from aie_telemetry.catalogue import Kind
from aie_telemetry.exposition import PageSample, Tags

_SIGNS: Final = frozenset(SIGNS)


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
    beats = {}
    is_paused = False
    for sample in samples:
        if sample.name in names:
            beats[sample.name, sample.tags] = sample.value
        elif awake and sample.name == awake[0] and awake[1:] in sample.tags:
            is_paused |= sample.value == 0
    return beats, is_paused


def _replicas(engine: EngineMap, numbers: Mapping[int, Mapping[Any, Mapping[Tags, float]]]) -> dict[str, ReplicaSigns]:
    running: dict[str, float] = {}
    tokens: dict[str, float] = {}
    signs: dict[str, dict[tuple[Any, Tags], float]] = {}
    stepwise = set()
    for index, of_row in numbers.items():
        row = engine.rows[index]
        if row.metric != RUNNING and row.metric not in _SIGNS:
            continue
        for slot, of_replicas in of_row.items():
            for tags, value in of_replicas.items():
                name = next((value for label, value in tags if label == engine.replica), None)
                if name is None or slot.name.endswith(("_bucket", "_sum")):
                    continue
                if row.metric == RUNNING:
                    running[name] = running.get(name, 0.0) + value
                    continue
                signs.setdefault(name, {})[slot, tags] = value
                if row.metric == TOKENS:
                    tokens[name] = tokens.get(name, 0.0) + value
                if row.stepwise:
                    stepwise.add(name)
    return {name: ReplicaSigns(running[name], tokens.get(name, 0.0), signs.get(name, {}), name in stepwise) for name in running}
