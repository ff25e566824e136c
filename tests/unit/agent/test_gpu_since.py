"""Since when something holds of a GPU: a gap of seconds is none, an end is one, and nothing is kept of what ended."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.outputs.gpu_since import GAP_S, Since
from aie_agent.outputs.gpus import gpus
from aie_agent.samples import Batch, Point, Tags
from aie_agent.store import Store
from aie_telemetry.api import Gpu
from aie_telemetry.catalogue import CATALOGUE

HOT: Tags = (("reason", "hw_thermal"),)


def told(since: Since, at_s: float, *, up: bool = True, hot: bool = False) -> Gpu:
    """The row of the one GPU, a moment after its source told of it."""
    store = Store(max_series=100, retention_s=300)
    points = [("aie_gpu_up", (("reason", "" if up else "lost"),), float(up)), ("aie_gpu_clock_event_active", HOT, float(hot))]
    batch = [Point(name, CATALOGUE[name].kind, (("gpu", "0"), *tags), value) for name, tags, value in points]
    store.apply(Batch("nvml", at_s, batch))
    (row,) = gpus(store, at_s, 60.0, None, since)
    return row


def test_a_gpu_that_is_well_has_no_since() -> None:
    row = told(Since(), 10.0)
    assert (row.not_up_since_s, row.clock_events_since_s) == (None, {})


def test_longer_than_the_store_remembers() -> None:
    since = Since()
    rows = [told(since, float(at_s), up=at_s < 100) for at_s in range(90, 5_000, 10)]
    assert {row.not_up_since_s for row in rows if not row.up} == {100.0}
    assert told(since, 5_010.0).not_up_since_s is None
    assert told(since, 6_000.0, up=False).not_up_since_s == 6_000.0


def test_a_throttle_that_comes_and_goes_is_one_until_it_is_gone() -> None:
    since = Since()
    for at_s in range(100, 160):
        row = told(since, float(at_s), hot=at_s % 4 == 0)
        assert row.clock_events_since_s == ({"hw_thermal": 100.0} if at_s % 4 == 0 else {})
    assert told(since, 164.0).clock_events_since_s == {}
    assert told(since, 165.0, hot=True).clock_events_since_s == {"hw_thermal": 165.0}


def test_without_a_memory_nothing_is_claimed() -> None:
    store = Store(max_series=100, retention_s=300)
    store.apply(Batch("nvml", 1.0, [Point("aie_gpu_up", CATALOGUE["aie_gpu_up"].kind, (("gpu", "0"), ("reason", "lost")), 0.0)]))
    assert gpus(store, 1.0, 60.0)[0].not_up_since_s is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.floats(0.1, 20.0)), max_size=60))
def test_as_a_plain_walk_through_the_past_has_it(steps: list[tuple[int, bool, float]]) -> None:
    """Against the definition: back from now over every moment at which it held, no gap longer than GAP_S."""
    since, now_s = Since(), 0.0
    held: dict[int, list[float]] = {}
    for gpu, holds, pause_s in steps:
        now_s += pause_s
        answer = since.of(gpu, ("x",) if holds else (), now_s)
        if not holds:
            assert answer == {}
            continue
        moments = held.setdefault(gpu, [])
        moments.append(now_s)
        first = now_s
        for moment in reversed(moments):
            if first - moment > GAP_S and _was_looked_at(steps, gpu, moment, first):
                break
            first = moment
        assert answer == {"x": first}


def _was_looked_at(steps: list[tuple[int, bool, float]], gpu: int, after_s: float, before_s: float) -> bool:
    """Whether somebody saw, more than GAP_S after the last time, that it did not hold: what nobody looked at did not end."""
    now_s = 0.0
    for seen, holds, pause_s in steps:
        now_s += pause_s
        if seen == gpu and not holds and after_s + GAP_S < now_s < before_s:
            return True
    return False
