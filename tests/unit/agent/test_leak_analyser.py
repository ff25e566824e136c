"""The leak analysis on a real store, second by second, sixty times as fast as life: findings, metrics, restarts of either side."""

from __future__ import annotations

import numpy as np
import pytest

from aie_agent.samples import Batch, Point
from aie_telemetry.catalogue import CATALOGUE, Kind
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, World, flat, gpu, live_tensors


def test_a_leak_of_tensors() -> None:
    world = World()
    world.run(1.3, live_tensors(world))
    suspect = world.only()
    assert (suspect.cause, suspect.subject, suspect.severity) == ("memory_leak", "e", "info")
    assert "may leak (live tensors) on cuda:0" in suspect.summary
    assert "without noise" in suspect.evidence[0].text
    world.run(24, lambda second: live_tensors(world)(second + 1.3 * HOUR))
    leak = world.only()
    assert (leak.severity, leak.since_s) == ("warning", suspect.since_s)
    assert leak.confidence is not None
    assert leak.confidence > 0.9
    assert "limit 30 MB/h" not in leak.evidence[0].text, "a scaled hour is a minute, and so is the limit"
    assert any("a request, at 5 requests a second" in each.text for each in leak.evidence)
    assert {each.metric for each in leak.evidence} <= CATALOGUE.keys()
    assert "aie-agent stacks --engine e --kind memory" in leak.advice
    assert any("how much is left on cuda:0 is not known" in each for each in leak.not_visible)
    assert world.states() == {"allocated": 2.0, "cached": 0.0, "outside": 0.0, "reserved": 2.0, "physical": 2.0}


def test_metrics_stand_in_the_catalogue() -> None:
    world = World("cpu")
    world.run(25, live_tensors(world))
    for second in range(3):
        world.store.apply(Batch("host", world.now_s + second, [Point("aie_host_memory_available_bytes", Kind.GAUGE, (), 50 * GB)]))
    world.tick(**live_tensors(world)(25 * HOUR))
    points = world.analyser.points(world.now_s)
    names = {each.name for each in points}
    assert names == {"aie_leak_state", "aie_leak_rate_bytes_per_second", "aie_leak_time_to_full_seconds"}
    for point in points:
        assert tuple(sorted(label for label, _ in point.tags)) == tuple(sorted(CATALOGUE[point.name].labels))
    full_s = next(each.value for each in points if each.name == "aie_leak_time_to_full_seconds")
    assert full_s == pytest.approx(50 * GB / LEAK_S, rel=0.1)
    finding = world.only()
    assert "full in" in finding.summary
    assert any("are left on cpu" in each.text for each in finding.evidence)
    world.store.apply(Batch("analysis", world.now_s, list(points)))
    assert world.store.current("aie_leak_state", world.now_s, engine="e", line="allocated") == 2.0


def test_nothing_of_three_days_of_noise() -> None:
    world = World()
    world.run(72, flat(world))
    assert world.found() == []
    assert set(world.states().values()) == {0.0}


def test_outside_the_allocator() -> None:
    world = World("cpu")
    world.run(26, lambda s: {"physical": 6 * GB + LEAK_S * s + world.noise(), "allocated": 3 * GB, "reserved": 4 * GB})
    finding = world.only()
    assert (finding.cause, finding.severity) == ("memory_leak", "warning")
    assert "outside the allocator" in finding.summary
    assert any("Python objects, native heap or mappings" in each for each in finding.not_visible)


def test_memory_that_is_swapped_out_is_no_less_taken() -> None:
    world = World("cpu")

    def shape(second: float) -> dict[str, float]:
        swap = Point("aie_process_swap_bytes", Kind.GAUGE, (("engine", "e"),), LEAK_S * second)
        world.store.apply(Batch("process", world.now_s + 1, [swap]))
        return {"physical": 6 * GB + world.noise()}

    world.run(26, shape)
    assert world.only().severity == "warning"


def test_an_engine_that_does_not_tell_its_allocator() -> None:
    world = World("cpu")
    world.run(26, lambda s: {"physical": 6 * GB + LEAK_S * s + world.noise()})
    finding = world.only()
    assert "class unknown" in finding.summary
    assert any("it does not tell" in each for each in finding.not_visible)


def test_fragmentation() -> None:
    world = World()

    def shape(second: float) -> dict[str, float]:
        reserved = GB + 138 * MB * (second // 20)
        return {"allocated": 186 * MB + world.noise(30), "reserved": reserved, "physical": reserved + 0.4 * GB}

    world.run(26, shape)
    finding = world.only()
    assert (finding.cause, finding.severity) == ("memory_fragmentation", "warning")
    assert "expandable_segments" in finding.advice


def test_a_three_day_leak_outlives_a_restart_of_the_agent() -> None:
    world = World()
    shape = live_tensors(world)
    world.run(20, shape)
    assert world.only().severity == "info"
    world.restart_agent()
    assert world.only().severity == "info"
    world.now_s += 0.5 * HOUR  # it took a while
    world.run(6, lambda second: shape(second + 20.5 * HOUR))
    assert world.only().severity == "warning", "26 hours in all"
    world.restart_agent()
    assert world.only().severity == "warning"


def test_an_engine_that_restarts_begins_anew() -> None:
    world = World()
    shape = live_tensors(world)
    world.run(26, shape)
    assert world.only().severity == "warning"
    world.tgids = [200, 201]
    world.run(0.2, shape)
    assert world.found() == []
    world.run(20, flat(world))
    assert world.found() == []


def test_an_engine_that_restarted_while_no_agent_ran() -> None:
    world = World()
    world.run(26, live_tensors(world))
    world.tgids = [200]
    world.restart_agent()
    world.run(0.2, live_tensors(world))
    assert world.found() == []


def test_workers_that_come_and_go_are_no_restart() -> None:
    world = World()
    shape = live_tensors(world)
    for hour in range(26):
        world.tgids = [100, 300 + hour]
        world.run(1, lambda second, hour=hour: shape(second + hour * HOUR))  # type: ignore[misc]
    assert world.only().severity == "warning"


def test_a_swapped_model_begins_anew() -> None:
    world = World()
    shape = live_tensors(world)
    world.run(14, shape)
    assert world.found()
    for _ in range(10):
        world.now_s += 1.0
        running = world.gauge("aie_engine_requests_running", 1.0, model="other")
        world.store.apply(Batch("scrape:e", world.now_s, running))
        world.analyser.observe(world.view, world.now_s)
    assert world.found() == []


def test_a_load_that_comes_and_goes_is_none() -> None:
    """Three gigabytes of a day's traffic, for three days."""
    world = World("cpu")

    def shape(second: float) -> dict[str, float]:
        load = max(round(40 - 30 * float(np.cos(2 * np.pi * second / (24 * HOUR)))) + round(world.noise(2) / MB), 0)
        return {"physical": 8 * GB + 50 * MB * load + world.noise(), "requests_running": float(load)}

    world.run(72, shape)
    assert world.found() == []


def test_a_response_cache_that_fills_is_none() -> None:
    world = World("cpu")

    def shape(second: float) -> dict[str, float]:
        cache = LEAK_S * second
        return {"physical": 6 * GB + cache + world.noise(), "response_cache_bytes": cache}

    world.run(26, shape)
    assert world.found() == []


def test_the_module_that_asked_for_it() -> None:
    world = World()

    def shape(second: float) -> dict[str, float]:
        names = (("module", "libnccl.so.2", 5 * GB + LEAK_S * second), ("module", "libtorch_cuda.so", 9 * GB))
        points = [
            Point("aie_cuda_memory_module_bytes", Kind.GAUGE, (("engine", "e"), (label, name)), value)
            for label, name, value in names
        ]
        world.store.apply(Batch("bpf", world.now_s + 1, points))
        return {"physical": 15 * GB + LEAK_S * second + world.noise(), "allocated": 8 * GB, "reserved": 9 * GB}

    world.run(26, shape)
    finding = world.only()
    assert any("asked for by libnccl.so.2" in each.text for each in finding.evidence)


def test_what_the_driver_gave_where_nothing_tells_physical_memory() -> None:
    """Of a GPU whose driver does not tell memory by process, probes still see what was asked of it."""
    world = World()

    def shape(second: float) -> dict[str, float]:
        held = (("device", 10 * GB + LEAK_S * second), ("host", 2 * GB + 5 * LEAK_S * second))
        points = [
            Point("aie_cuda_memory_outstanding_bytes", Kind.GAUGE, (("engine", "e"), ("kind", kind)), value) for kind, value in held
        ]
        world.store.apply(Batch("bpf", world.now_s + 1, points))
        return {"allocated": 8 * GB + world.noise(), "reserved": 9 * GB}

    world.run(26, shape)
    finding = world.only()
    assert "outside the allocator" in finding.summary
    assert finding.evidence[0].metric == "aie_cuda_memory_outstanding_bytes"
    assert finding.evidence[0].text.startswith("memory asked of the CUDA driver"), "host memory is not on the device"


class TestKvAccounting:
    def test_free_and_used_do_not_add_up(self) -> None:
        world = World()
        fine = {"kv_capacity_tokens": 1000.0, "kv_used_tokens": 300.0, "kv_free_tokens": 700.0}
        for _ in range(30):
            world.tick(**fine)
        assert world.found() == []
        for _ in range(2):
            world.tick(**{**fine, "kv_free_tokens": 684.0})
        assert world.found() == [], "once or twice may be two readings"
        world.tick(**{**fine, "kv_free_tokens": 684.0})
        finding = world.only()
        assert (finding.cause, finding.severity) == ("kv_accounting", "warning")
        assert "300 used and 684 free are not the capacity of 1000" in finding.evidence[0].text
        world.tick(**fine)
        assert world.found() == []

    def test_what_is_used_at_idle_rises(self) -> None:
        world = World()

        def shape(second: float) -> dict[str, float]:
            busy = second % 20 < 10
            used = 16.0 * (second // 5) + (400.0 if busy else 0.0)
            return {"requests_running": float(busy), "kv_capacity_tokens": 100_000.0, "kv_used_tokens": used}

        world.run(26, shape)
        finding = world.only()
        assert (finding.cause, finding.severity) == ("kv_accounting", "warning")
        world.restart_agent()
        world.tick(**shape(26 * HOUR))
        assert world.only().cause == "kv_accounting"

    @pytest.mark.parametrize("prefix_cache", [False, True])
    def test_normal_use_is_none(self, prefix_cache: bool) -> None:
        """Nothing is used at idle; a prefix cache keeps more and more of it, on purpose."""
        world = World()

        def shape(second: float) -> dict[str, float]:
            busy = second % 20 < 10
            kept = 20.0 * second if prefix_cache else 0.0
            used = kept + (float(world.random.integers(1, 400)) if busy else 0.0)
            more = {"prefix_cache_queries_total": second} if prefix_cache else {}
            return {"requests_running": float(busy), "kv_capacity_tokens": 100_000.0, "kv_used_tokens": used, **more}

        world.run(26, shape)
        assert world.found() == []


def test_another_process_on_the_gpu() -> None:
    world = World()

    def shape(second: float) -> dict[str, float]:
        others = 2 * GB + LEAK_S * second
        world.gpus = (gpu(int(others), 9 * GB + others),)
        return {"physical": 9 * GB, "allocated": 8 * GB, "reserved": 8.5 * GB}

    world.run(26, shape)
    finding = world.only()
    assert (finding.cause, finding.subject) == ("memory_leak", "gpu0")
    assert "another process" in finding.summary


def test_others_of_which_nothing_is_told() -> None:
    world = World()
    world.gpus = (gpu(None, 9 * GB),)
    world.run(2, lambda second: {"physical": 9 * GB})
    assert world.found() == []
