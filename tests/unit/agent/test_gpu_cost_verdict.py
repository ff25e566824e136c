"""What the bench of the GPU source calls a failure."""

from __future__ import annotations

import pytest
from bench.gpu_cost import Cost, failures_of, over_rounds

WELL = {
    "aie-agent": Cost(3.0, 60.0, (20, 20), 700),
    "nvitop": Cost(6.0, 60.0, (20, 20), 400),
    "gpustat": Cost(9.0, 60.0, (20, 25), 100),
}


def test_what_is_well_and_peers_that_are_not() -> None:
    assert failures_of(WELL, 4.0) == []
    assert failures_of(WELL | {"aie-agent": WELL["aie-agent"]._replace(descriptors=(21, 20))}, 4.0) == []


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({"cpu_ms": 4.01}, "4.01 ms is more than 4 ms"),
        ({"descriptors": (20, 21)}, "descriptors rose from 20 to 21"),
        ({"numbers": 400}, "400 numbers, and nvitop tells 400"),
    ],
)
def test_each_failure(own: dict[str, float], expected: str) -> None:
    assert failures_of(WELL | {"aie-agent": WELL["aie-agent"]._replace(**own)}, 4.0) == [expected]


def test_a_leak_in_the_dearer_round_is_seen() -> None:
    rounds = [Cost(3.0, 60.0, (20, 20), 700), Cost(3.5, 61.0, (20, 27), 690)]
    assert over_rounds(rounds) == over_rounds(rounds[::-1]) == Cost(3.0, 60.0, (20, 27), 690)
    assert failures_of(WELL | {"aie-agent": over_rounds(rounds)}, 4.0) == ["descriptors rose from 20 to 27"]
