"""The finding that the store refuses series of an engine: while it does, and never else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.causes import ENGINE_CAUSES
from aie_agent.analysis.findings import Limits, View, find
from aie_agent.analysis.series_refused import CAUSE, series_refused
from aie_agent.samples import Batch, Point
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import Kind

RUNNING = "aie_engine_requests_running"


def look(store: Store, now_s: float, engine: str = "e") -> Finding | None:
    view = View(store, ["e", "f"], lambda _: "up", lambda _: [], lambda _: None, Limits())
    found = series_refused(view, engine, now_s)
    assert [each for each in find(view, ENGINE_CAUSES, now_s) if each.subject == engine] == ([] if found is None else [found])
    return found


def page(engine: str, count: int, time_s: float) -> Batch:
    points = [Point(RUNNING, Kind.GAUGE, (("engine", engine), ("model", f"m{at}")), 0.0) for at in range(count)]
    return Batch(f"scrape:{engine}", time_s, points)


def test_a_page_with_more_than_its_share() -> None:
    store = Store(max_series=1000, retention_s=300.0)
    store.apply(page("e", 300, 10.0))
    store.apply(page("f", 50, 10.0))
    found = look(store, 11.0)
    assert found is not None
    assert (found.cause, found.severity, found.since_s) == (CAUSE, "warning", 10.0)
    assert "page_share" in found.summary
    assert found.evidence[0].text == "the store holds 300 series, 250 of them from scrape:e (share 250), and refused more"
    assert look(store, 11.0, "f") is None
    assert look(store, 16.0) is None, "it has not refused any for longer than a page stays current"


def test_a_full_store() -> None:
    store = Store(max_series=100, retention_s=300.0)
    for engine in ("a", "b", "c", "d"):
        store.apply(page(engine, 25, 10.0))
    store.apply(page("e", 1, 10.0))
    found = look(store, 10.0)
    assert found is not None
    assert "series_limit" in found.summary


@given(st.lists(st.tuples(st.sampled_from("ef"), st.integers(0, 250)), max_size=20))
def test_nothing_is_found_where_nothing_was_refused(pages: list[tuple[str, int]]) -> None:
    store = Store(max_series=1000, retention_s=300.0)
    for second, (engine, count) in enumerate(pages):
        store.apply(page(engine, count, 100.0 + second))
        assert sum(store.refused.values()) == 0
        assert look(store, 100.0 + second) is None
