"""How grave a live leak is, and what becomes of what is remembered: configuration, engines that go, saved state."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aie_agent.analysers import leak_settings
from aie_agent.analysis.leaks.analyser import LeakAnalyser
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.config import LeaksSection
from aie_agent.config_values import Duration
from aie_agent.samples import Batch
from tests.fakes.leak_world import GB, HOUR, MB, SCALE, World, flat, gpu, live_tensors


def test_memory_that_lasts_beyond_the_horizon_is_information() -> None:
    """At 1.3 GB a day, 80 GB last for two months; 20 GB do not last for one."""
    for free, severity in ((80 * GB, "info"), (20 * GB, "warning")):
        world = World()
        world.gpus = (gpu(0, 80 * GB - free),)
        world.run(26, live_tensors(world, rate=0.9 * MB))
        finding = world.only()
        assert "full in" in finding.summary
        assert (finding.severity, finding.confidence) == (severity, 0.95)


def test_a_suspicion_is_a_warning_where_memory_is_full_soon() -> None:
    for free, severity in ((80 * GB, "info"), (0.9 * GB, "warning")):
        world = World()
        world.gpus = (gpu(0, 80 * GB - free),)
        world.run(2, live_tensors(world))
        assert world.only().severity == severity


def test_a_host_cache_that_fills_is_no_leak_unless_memory_is_full_soon() -> None:
    """8 to 25 GB in five hours."""
    for available, severity, says in ((400 * GB, "info", "may leak"), (10 * GB, "warning", "leaks")):
        world = World(device="cpu")
        for second in range(int(5 * HOUR)):
            world.store.apply(Batch("host", world.now_s + 1, world.gauge("aie_host_memory_available_bytes", available)))
            world.tick(physical=8 * GB + 3.4 * GB * second / HOUR + world.noise())
        finding = world.only()
        assert (finding.severity, says in finding.summary) == (severity, True), finding.summary


def test_the_configuration() -> None:
    assert leak_settings(LeaksSection()) == LeakSettings(), "the defaults are those of the analysis"
    section = LeaksSection(time_scale=60.0, limit_mb_per_hour=60.0, warm_up=Duration(3600.0))
    settings = leak_settings(section)
    assert settings.warm_up_s == 60.0
    assert settings.limit_bytes_per_s == pytest.approx(60 * MB / 3600 * 60)


def test_an_engine_that_is_down_is_left_alone() -> None:
    world = World()
    world.run(5, live_tensors(world))
    world.state = "down"
    world.tgids = []
    world.run(1, live_tensors(world))
    assert world.found() == []


def test_engines_are_forgotten_after_a_week() -> None:
    world = World()
    world.run(1, flat(world))
    assert world.analyser.dump()["engines"]
    world.state = "down"
    world.now_s += 8 * 86_400.0
    world.analyser.observe(world.view, world.now_s)
    world.now_s += 1.0
    world.analyser.observe(world.view, world.now_s)
    assert "e" not in {name for name, each in world.analyser.dump()["engines"].items() if each["watches"]}


def test_the_state_is_small() -> None:
    world = World()
    world.run(72, live_tensors(world))
    assert len(json.dumps(world.analyser.dump())) < 60_000, "five lines of two days"


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"version": 1},
        {"version": 2, "time_scale": SCALE, "engines": {}, "gpus": {}},
        {"version": 1, "time_scale": 1.0, "engines": {}, "gpus": {}},
        {"version": 1, "time_scale": SCALE, "engines": {"e": {}}, "gpus": {}},
        {"version": 1, "time_scale": SCALE, "engines": {"e": {"identity": 5, "account": {}, "watches": {}}}, "gpus": {}},
        {"version": 1, "time_scale": SCALE, "engines": [], "gpus": {}},
    ],
)
def test_what_is_no_state(state: dict[str, Any]) -> None:
    world = World()
    with pytest.raises(ValueError, match="state"):
        world.analyser.restore(state, 0.0)
    world.run(0.1, flat(world))


def test_a_line_of_a_state_that_was_tampered_with() -> None:
    world = World()
    world.run(14, live_tensors(world))
    state = json.loads(json.dumps(world.analyser.dump()))
    line = state["engines"]["e"]["watches"]["cuda:0"]["lines"]["allocated"]
    for key, value in (
        ("bins", [["x"]]),
        ("bins", [[1, 2]]),
        ("standing", ["doom"]),
        ("fit", [float("nan")] * 6),
        ("origin_s", None),
    ):
        broken = json.loads(json.dumps(state))
        broken["engines"]["e"]["watches"]["cuda:0"]["lines"]["allocated"] = {**line, key: value}
        with pytest.raises(ValueError):  # noqa: PT011  whatever is wrong with it
            LeakAnalyser(LeakSettings().scaled(SCALE)).restore(broken, 0.0)
