"""The agent's own numbers: each look tells what the counts are then, whatever stood in their places before."""

from __future__ import annotations

from collections.abc import Iterable

from aie_agent.about import About
from aie_agent.samples import Count, own_tags
from aie_agent.sources.selfmetrics import SelfSource
from aie_agent.store import Store

METRIC = "aie_agent_nvml_seconds_total"


async def test_each_look_tells_the_counts_of_now() -> None:
    told: list[Count] = []

    def counts() -> Iterable[Count]:
        return told

    source = SelfSource(About("1", "host", "6.1", 0.0), Store(max_series=10, retention_s=10.0), [], [counts])
    looks: list[list[Count]] = [
        [(METRIC, ("a",), 1.0), (METRIC, ("b",), 2.0)],
        [(METRIC, ("a",), 1.0), (METRIC, ("b",), 3.0)],
        [(METRIC, ("c",), 1.0), (METRIC, ("a",), 4.0), (METRIC, ("b",), 5.0)],
        [(METRIC, ("b",), 5.0)],
    ]
    for look in looks:
        told[:] = look
        batch = await source.collect(1.0)
        found = [(point.name, point.tags, point.value) for point in batch.points if point.name == METRIC]
        assert found == [(name, own_tags(name, labels), value) for name, labels, value in look]
