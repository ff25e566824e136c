"""What the bench of the whole agent calls a failure."""

from __future__ import annotations

import pytest
from bench.agent_cost import Cycle, Scrape, failures

WELL = {"nvml": 3.0, "host": 1.0, "process": 4.0, "discovery": 0.5, "store": 3.0, "analysis": 3.5}
PAGES = {"text": Scrape(5000, 0.03, 0.04), "OpenMetrics": Scrape(5000, 0.04, 0.05)}


def test_what_is_within_every_budget() -> None:
    assert failures(Cycle(WELL, 900.0), PAGES) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"nvml": 4.01}, "NVML takes 4.01 ms a cycle, beyond 4"),
        ({"process": 5.0}, "procfs takes 6.50 ms a cycle, beyond 6"),
        ({"a part that is new": 1.0}, "the rest takes 7.50 ms a cycle, beyond 7"),
    ],
)
def test_each_part_beyond_its_budget(changed: dict[str, float], expected: str) -> None:
    assert failures(Cycle(WELL | changed, None), PAGES) == [expected]


def test_the_agent_as_a_whole() -> None:
    (first, *_) = failures(Cycle(WELL | {"analysis": 9.0}, None), PAGES)
    assert first == "the agent takes 2.05% of a core, beyond 2%"


def test_a_page_that_is_slow_in_one_format() -> None:
    slow = PAGES | {"OpenMetrics": Scrape(5000, 0.1012, 0.1)}
    assert failures(Cycle(WELL, None), slow) == ["/metrics as OpenMetrics takes 101.2 ms, beyond 100"]
