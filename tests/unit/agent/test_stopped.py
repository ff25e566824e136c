"""An engine whose process is stopped, before it counts as hanging; and a debugger that looks in."""

from __future__ import annotations

import pytest

from aie_agent.analysis.causes import ENGINE_CAUSES
from aie_agent.analysis.findings import Limits, ProcessState, View, find
from aie_agent.analysis.stopped import CAUSE, engine_stopped
from aie_agent.store import Store
from aie_telemetry.api import Finding

LIMIT_S = 30.0


def view(*processes: ProcessState, state: str = "up") -> View:
    return View(
        store=Store(max_series=100, retention_s=300.0),
        engines=["e"],
        state=lambda _: state,  # type: ignore[arg-type,return-value]
        processes=lambda _: processes,
        unanswered_since_s=lambda _: None,
        limits=Limits(LIMIT_S),
    )


def at(letter: str, stopped_s: float, state: str = "up") -> Finding | None:
    return engine_stopped(view(ProcessState(10, letter, 1000.0, 0.0), state=state), "e", 1000.0 + stopped_s)


@pytest.mark.parametrize(("letter", "says"), [("T", "is stopped"), ("t", "is held by a debugger")])
def test_after_three_seconds(letter: str, says: str) -> None:
    assert at(letter, 2.9) is None
    found = at(letter, 3.0)
    assert found is not None
    assert (found.cause, found.severity, found.since_s) == (CAUSE, "warning", 1000.0)
    assert found.summary == f"process 10 of engine e {says}"
    assert found.evidence[0].text.endswith("for 3 s (limit 3 s)")
    assert "10" in found.advice


def test_silent_on_what_is_normal() -> None:
    for second in range(1, 60):
        assert at("t", 1.0) is None, "a debugger for a second, again and again"
        for letter in "RSDIZ":
            assert at(letter, float(second)) is None
    assert at("T", 10.0, state="down") is None


def test_the_hang_takes_its_place() -> None:
    seen = view(ProcessState(10, "T", 1000.0, 0.0), ProcessState(11, "S", 900.0, 0.0))
    causes = [[each.cause for each in find(seen, ENGINE_CAUSES, 1000.0 + second)] for second in (0, 3, 29, 30, 31)]
    assert causes == [[], [CAUSE], [CAUSE], ["engine_hung"], ["engine_hung"]]
