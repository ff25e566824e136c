"""An engine that ended while the agent was restarted is gone; one that is found again is not, nor is one that was never there."""

from __future__ import annotations

import pytest
from fakes.cause_world import BEGIN_S, CauseWorld

from aie_agent.analysis.engine_causes.gone import engine_down
from aie_agent.identity import Engines, Home, Origin
from aie_agent.recalled import SETTLED_S, Recalled

NOW = 1_700_000_000.0


def _engines(alive: dict[int, int]) -> Engines:
    engines = Engines(alive.get)
    engines.configure("chat", Home.HERE)
    return engines


def _after_restart(alive: dict[int, int], last_s: float = NOW - 60.0) -> tuple[Engines, Recalled]:
    """An agent that knew `chat`, and `found` by the scan, when it ended."""
    before = _engines({1: 5, 2: 6})
    before.declare("chat", Origin.CONFIG, 1)
    before.declare("found", Origin.SCAN, 2)
    state = Recalled(None, last_s).dump(before, last_s)
    return _engines(alive), Recalled(state, NOW)


def test_an_engine_that_is_not_found_again_is_down_since_it_was_last_seen() -> None:
    engines, recalled = _after_restart({})
    recalled.update(engines, NOW + SETTLED_S - 1)
    assert engines.state("chat") == "unknown", "engines are still being found"
    recalled.update(engines, NOW + SETTLED_S)
    assert {name: (engines.state(name), engines.down_since_s(name)) for name in engines.names()} == {
        "chat": ("down", NOW - 60.0),
        "found": ("down", NOW - 60.0),
    }
    assert recalled.gone == {"chat", "found"}
    assert Recalled(recalled.dump(engines, NOW + 40), NOW + 50).dump(engines, NOW + 60)["chat"] == NOW - 60.0


def test_an_engine_that_is_found_again_is_up() -> None:
    engines, recalled = _after_restart({7: 9})
    engines.declare("chat", Origin.CONFIG, 7)
    recalled.update(engines, NOW + SETTLED_S)
    assert engines.state("chat") == "up"
    assert recalled.gone == {"found"}


def test_one_that_comes_later_is_no_longer_recalled_and_not_down_a_second_time() -> None:
    alive: dict[int, int] = {}
    engines, recalled = _after_restart(alive)
    recalled.update(engines, NOW + SETTLED_S)
    alive[7] = 9
    engines.declare("chat", Origin.CONFIG, 7)
    recalled.update(engines, NOW + SETTLED_S + 1)
    assert (engines.state("chat"), recalled.gone) == ("up", {"found"})


def test_what_never_had_a_process_or_is_elsewhere_by_now_stays_unknown() -> None:
    engines = Engines({}.get)
    engines.configure("never", Home.HERE)
    engines.configure("moved", Home.ELSEWHERE)
    state = Recalled(None, NOW).dump(engines, NOW)
    assert state == {}
    recalled = Recalled({"moved": NOW - 5.0}, NOW)
    recalled.update(engines, NOW + SETTLED_S)
    assert [engines.state(name) for name in engines.names()] == ["unknown", "unknown"]
    assert recalled.gone == frozenset()


def test_one_that_was_only_discovered_is_forgotten_an_hour_after_it_was_last_seen() -> None:
    engines, recalled = _after_restart({}, last_s=NOW - 2 * Engines.FORGET_DOWN_AFTER_S)
    recalled.update(engines, NOW + SETTLED_S)
    engines.prune(NOW + SETTLED_S)
    assert engines.names() == ["chat"], "the configuration names it: it should be there"


@pytest.mark.parametrize("state", [None, 3, "x", [], {"chat": None}, {"chat": "soon"}, {3: 4.0}, {"chat": float("nan")}])
def test_a_state_that_is_none_recalls_nothing(state: object) -> None:
    engines = _engines({})
    recalled = Recalled(state, NOW)
    recalled.update(engines, NOW + SETTLED_S)
    assert engines.state("chat") == "unknown"


def test_a_time_that_is_yet_to_come_is_now() -> None:
    engines = _engines({})
    recalled = Recalled({"chat": NOW + 1e6}, NOW)
    recalled.update(engines, NOW + SETTLED_S)
    assert engines.down_since_s("chat") == NOW


def test_the_finding_says_that_the_agent_was_away() -> None:
    for recalled, text in (({"e"}, "since the agent was restarted; it last had one 2 min ago"), ((), "no process for 2 min")):
        world = CauseWorld(
            state="down", down_since_s=lambda _: BEGIN_S - 120.0, configured=frozenset({"e"}), recalled=frozenset(recalled)
        )
        found = world.engine(engine_down)
        assert found is not None
        assert found.severity == "warning"
        assert text in found.evidence[0].text
        assert found.not_visible
