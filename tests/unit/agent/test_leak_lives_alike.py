"""Which past lives of an engine are alike, live, and how they are saved."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.past_lives import PastLives
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.watch import Watch
from aie_agent.samples import Batch
from tests.fakes.leak_lives import Shape, goes_on, is_told, leaks, lives_of
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, SCALE, World


def test_lives_that_are_not_alike() -> None:
    """Twice as fast, or from another level."""
    for other in (lambda hour: 12 * GB + 2.5 * LEAK_S * HOUR * hour, lambda hour: leaks(hour) + 3 * GB):
        world = World("cpu")
        lives_of(world, leaks, 1)
        lives_of(world, other, 1)
        lives_of(world, leaks, 1, hours=1)
        assert world.found() == []


def _saved(world: World) -> dict[str, Any]:
    saved: dict[str, Any] = json.loads(json.dumps(world.analyser.dump()))["engines"]["e"]["lives"]["cpu"]
    return saved


def test_when_a_life_told_is_known_after_a_restart_of_the_agent() -> None:
    world = World("cpu")
    lives_of(world, leaks, 1, hours=15)
    world.restart_agent()
    goes_on(world, leaks, 5, since=15.0)
    lives_of(world, leaks, 1, hours=1)
    ((line, _, _, told_bins, _),) = _saved(world)["lives"][0]
    assert line == "physical"
    assert 24 <= told_bins <= 29, "half hours, of 39"


def test_a_saved_life_that_was_tampered_with() -> None:
    world = World("cpu")
    lives_of(world, leaks, 2)
    saved = _saved(world)
    assert set(saved["told"]) == {"physical"}
    lives_of(world, leaks, 1, hours=1)
    saved = _saved(world)
    settings = LeakSettings().scaled(SCALE)
    assert PastLives.restored(saved, settings).dump() == saved
    assert len(PastLives.restored(saved, settings).alike) == 2
    assert PastLives.restored({**saved, "rose_s": None}, settings).alike, "an older agent's"
    first = saved["lives"][0][0]
    assert first[2][5][0] == pytest.approx(12 * GB, abs=400 * MB)
    lives: tuple[Any, ...] = (
        5, [[]], [5], [[["physical"]]], [[["x", *first[1:]]]], [[[first[0], "x", first[2], 3]]],
        [[[*first[:3], -1]]], [[[*first[:3], float("inf")]]], [[[*first, 1]]], [[first[:2]]],
        [[[*first[:4], 5]]], [[[*first[:4], [1.0, "x"]]]], [[[*first[:4], [1.0, 0.0, 0.0]]]],
    )  # fmt: skip
    wrong = [{**saved, "lives": each} for each in lives]
    wrong += [{**saved, "told": {"x": 1}}, {**saved, "told": {"physical": "x"}}, {**saved, "warm_s": "x"}, {**saved, "rose_s": "x"}]
    for broken in (*wrong, {}, 5, "x", [5]):
        with pytest.raises((ValueError, TypeError, KeyError)):
            PastLives.restored(broken, settings)


def test_a_state_in_which_a_life_was_one_line() -> None:
    world = World("cpu")
    lives_of(world, leaks, 3)
    saved = json.loads(json.dumps(world.analyser.dump()))
    of_cpu = saved["engines"]["e"]["lives"]
    of_cpu["cpu"] = [life[0][:3] for life in of_cpu["cpu"]["lives"]]
    world.analyser.restore(saved, world.now_s)
    lives_of(world, leaks, 1, hours=1)
    assert "rose in each of 3 lives" in world.only().evidence[0].text
    of_cpu["cpu"] = [["physical", "unknown"]]
    with pytest.raises(ValueError, match="not enough values"):
        world.analyser.restore(saved, world.now_s)


def test_lives_under_other_loads_are_alike() -> None:
    """One begins with five requests in flight, one with seventy, each of which needs memory while it runs."""
    world = World("cpu")
    for base in (5.0, 70.0):

        def load(hour: float, base: float = base) -> float:
            return base + 3 * float(np.sin(2.4 * int(hour * 6)))

        lives_of(world, lambda hour, load=load: leaks(hour) + 20 * MB * load(hour), 1, load=load)  # type: ignore[misc]
    lives_of(world, lambda hour: leaks(hour) + 60 * MB, 1, hours=1)
    assert is_told(world)
    assert "rose in each of 2 lives by 3." in world.only().evidence[0].text


def _wavy(hour: float) -> float:
    return 70 + 3 * float(np.sin(2.4 * int(hour * 6)))


def _steady(_: float) -> float:
    return 70.0


@pytest.mark.parametrize(("first", "second"), [(_wavy, _steady), (_steady, _wavy), (_steady, _steady)])
@pytest.mark.parametrize(("more_bytes", "told"), [(0.0, True), (3 * GB, False)])
def test_lives_of_which_only_one_tells_what_a_request_needs(first: Shape, second: Shape, more_bytes: float, told: bool) -> None:
    """An engine whose load never changes, as a saturated one's, does not; their levels are compared all the same."""
    world = World("cpu")
    lives_of(world, lambda hour: leaks(hour) + 20 * MB * first(hour), 1, load=first)
    lives_of(world, lambda hour: leaks(hour) + 20 * MB * second(hour) + more_bytes, 1, load=second)
    lives_of(world, lambda hour: leaks(hour) + 20 * MB * second(hour), 1, hours=1, load=second)
    assert is_told(world) is told


def test_a_state_in_which_lives_had_their_load_still() -> None:
    """As older agents wrote it: what a request needs was not saved with it."""

    def shape(hour: float) -> float:
        return leaks(hour) + 50 * MB * _wavy(hour)

    world = World("cpu")
    lives_of(world, shape, 1, load=_wavy)
    standing = world.analyser.dump()["engines"]["e"]["watches"]["cpu"]["lines"]["physical"]["standing"]
    lives_of(world, shape, 1, load=_wavy)
    saved = json.loads(json.dumps(world.analyser.dump()))
    saved["engines"]["e"]["lives"]["cpu"] = [["physical", "unknown", standing]]
    world.analyser.restore(saved, world.now_s)
    lives_of(world, shape, 1, hours=1, load=_wavy)
    assert is_told(world)
    assert "rose in each of 2 lives by " in world.only().evidence[0].text


def test_two_lines_of_the_same_memory_whichever_rises_faster() -> None:
    """What the driver counts and what is beyond the allocator's are one leak on two lines."""
    settings = LeakSettings()
    watch, lives = Watch(settings), PastLives(settings)
    random, now_s = np.random.default_rng(0), 0.0
    for share in (0.95, 1.05):
        for minute in range(20 * 60):
            now_s += 60.0
            leaked = 2.8 * MB * minute
            physical, driver = (10.5 * GB + of * leaked + float(random.normal(0, 30 * MB)) for of in (1.0, share))
            watch.add(Sample(now_s, physical, 9 * GB, 10 * GB, driver, 3.0, requests=5.0 * minute))
            lives.pass_by(watch, now_s)
        assert [each.line.name for each in watch.found()] == sorted(("driver", "outside"), reverse=share < 1)
        lives.ended(watch, now_s)
        watch.restart()
    assert [each.line.name for each in lives.alike] == ["driver"] * 2


def test_two_devices_are_one_finding_the_worst_first() -> None:
    world = World("cuda:0")
    for hours in (20.0, 20.0, 1.0):
        world.tgids = [each + 10 for each in world.tgids]
        for second in range(int(hours * HOUR)):
            beside = world.gauge("aie_engine_memory_physical_bytes", 12 * GB + LEAK_S * second + world.noise(), device="cuda:1")
            world.store.apply(Batch("scrape:other", world.now_s + 1.0, beside))
            world.tick(physical=12 * GB + 2 * LEAK_S * second + world.noise())
    assert is_told(world)
    finding = world.only()
    assert finding.device == "cuda:0"
    assert [each.text.split(" rose")[0] for each in finding.evidence] == [f"physical memory on cuda:{index}" for index in (0, 1)]
    assert "in each of 2 lives by 6." in finding.evidence[0].text
    assert "in each of 2 lives by 3." in finding.evidence[1].text
