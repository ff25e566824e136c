"""The snapshot: what the store holds, in the words of the API."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from fakes.proc_tree import ProcTree

from aie_agent.about import About
from aie_agent.analysis.memory import unaccounted
from aie_agent.identity import Engines, Origin
from aie_agent.outputs.snapshot import HISTORY_POINTS, SnapshotBuilder
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.sources.base import Health
from aie_agent.sources.process import ProcessSource
from aie_agent.sources.procfs import Procfs
from aie_agent.store import Store
from aie_telemetry import api
from aie_telemetry.catalogue import CATALOGUE, Kind

E = (("engine", "e"), ("model", "m"))
CPU = (("device", "cpu"), ("engine", "e"))
TTFT = CATALOGUE["aie_engine_time_to_first_token_seconds"]
MIB = float(1 << 20)
HEX = "0123456789abcdef" * 4
POD = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"


class World:
    """A store that is fed by hand, with one engine of one process."""

    def __init__(self, tmp_path: Path) -> None:
        self.ticks: int | None = 5
        self.engines = Engines(lambda _: self.ticks)
        self.engines.declare("e", Origin.CONFIG, 10)
        self.store = Store(max_series=1000, retention_s=300)
        self.health = Health("host")
        about = About("test", "host", "kernel", 900.0)
        processes = ProcessSource(self.engines, Procfs(tmp_path))
        self.builder = SnapshotBuilder(self.store, self.engines, processes, [self.health], about, 60.0)

    def feed(self, source: str, time_s: float, *points: Point, histograms: tuple[HistogramPoint, ...] = ()) -> None:
        self.store.apply(Batch(source, time_s, list(points), list(histograms)))

    def engine(self, now_s: float) -> api.Engine:
        return self.builder.build(now_s).engines[0]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def counter(name: str, value: float, *labels: tuple[str, str]) -> Point:
    return Point(name, Kind.COUNTER, tuple(sorted((*E, *labels))), value)


def gauge(name: str, value: float, tags: tuple[tuple[str, str], ...] = E) -> Point:
    return Point(name, Kind.GAUGE, tags, value)


def test_what_was_never_said_is_null(world: World) -> None:
    engine = world.engine(1000.0)
    assert engine.state == "up"
    for field in (
        "requests_per_second",
        "errors_per_second",
        "running",
        "waiting",
        "kv_usage_ratio",
        "generation_tokens_per_second",
    ):
        assert getattr(engine, field) is None, field
    assert engine.time_to_first_token == api.Quantiles()
    assert engine.generation_tokens_history == (None,) * HISTORY_POINTS
    assert world.builder.build(1000.0).host.cpu_busy_ratio is None


def test_rates_and_quantiles_of_the_window(world: World) -> None:
    for second in range(31):
        world.feed(
            "scrape:e",
            1000.0 + second,
            counter("aie_engine_requests_total", 2.0 * second, ("outcome", "ok")),
            counter("aie_engine_requests_total", 0.5 * second, ("outcome", "timeout")),
            counter("aie_engine_requests_total", 0.25 * second, ("outcome", "cancelled")),
            counter("aie_engine_generation_tokens_total", 100.0 * second),
            gauge("aie_engine_requests_running", 3.0),
            histograms=(HistogramPoint(TTFT.name, E, TTFT.buckets, (*[0.0] * 7, 4.0 * second, *[0.0] * 12), second),),
        )
    engine = world.engine(1030.0)
    assert engine.metrics_from == ("page",)
    assert engine.requests_per_second == pytest.approx(2.75)
    assert engine.errors_per_second == pytest.approx(0.5), "a client that left is no error of the engine"
    assert engine.outcomes_per_second == pytest.approx({"ok": 2.0, "timeout": 0.5, "cancelled": 0.25})
    assert engine.generation_tokens_per_second == pytest.approx(100.0)
    assert engine.generation_tokens_history[-20:] == pytest.approx([100.0] * 20)
    assert engine.running == 3.0
    assert engine.time_to_first_token.p50_seconds == pytest.approx(0.09)


def test_a_page_that_falls_silent_is_not_current(world: World) -> None:
    world.feed("scrape:e", 1000.0, gauge("aie_engine_requests_running", 3.0))
    assert world.engine(1004.0).running == 3.0
    assert world.engine(1010.0).running is None
    assert world.engine(1010.0).metrics_from == ()


def test_stages(world: World) -> None:
    for name, bucket in (("prefill", 3), ("decode", 6), ("tokenize", 1)):
        metric = CATALOGUE[f"aie_engine_{name}_seconds"]
        for second in range(3):
            counts = [0.0] * (len(metric.buckets) + 1)
            counts[bucket] = float(second)
            world.feed(
                "scrape:e", 1000.0 + second, histograms=(HistogramPoint(metric.name, E, metric.buckets, tuple(counts), 1.0),)
            )
    engine = world.engine(1002.0)
    bounds = CATALOGUE["aie_engine_prefill_seconds"].buckets
    assert engine.prefill.p50_seconds == pytest.approx((bounds[2] + bounds[3]) / 2)
    assert engine.decode.p50_seconds == pytest.approx((bounds[5] + bounds[6]) / 2)
    assert engine.tokenize.p50_seconds == pytest.approx((bounds[0] + bounds[1]) / 2)


def test_findings_and_events_are_passed_on(world: World) -> None:
    finding = api.Finding(cause="engine_hung", subject="e", severity="critical", since_s=990.0, summary="hangs")
    event = api.Event(time_s=995.0, kind="oom", engine="e", summary="out of memory")
    snapshot = world.builder.build(1000.0, findings=(finding,), events=(event,))
    assert (snapshot.findings, snapshot.events) == ((finding,), (event,))


def test_memory_and_its_gap(world: World) -> None:
    world.feed("process", 1000.0, gauge("aie_engine_memory_physical_bytes", 900 * MIB, CPU))
    world.feed("scrape:e", 1000.0, gauge("aie_engine_allocator_reserved_bytes", 700 * MIB, CPU))
    world.feed("scrape:e", 1000.0, gauge("aie_engine_allocator_allocated_bytes", 500 * MIB, CPU))
    world.store.apply(unaccounted(world.store, ["e"], 1000.0))
    (memory,) = world.builder.build(1000.0).memory
    assert (memory.engine, memory.device) == ("e", "cpu")
    assert (memory.physical_bytes, memory.allocator_reserved_bytes) == (900 * MIB, 700 * MIB)
    assert memory.unaccounted_bytes == 200 * MIB
    assert memory.limit_bytes is None


def test_no_gap_is_invented_where_one_side_is_unknown(world: World) -> None:
    world.feed("process", 1000.0, gauge("aie_engine_memory_physical_bytes", 900 * MIB, CPU))
    assert unaccounted(world.store, ["e"], 1000.0).points == []
    world.feed("scrape:e", 1001.0, gauge("aie_engine_allocator_reserved_bytes", 700 * MIB, CPU))
    assert unaccounted(world.store, ["e"], 1020.0).points == [], "both are old by then"


def test_a_gap_goes_with_what_it_was_made_of(world: World) -> None:
    world.feed("process", 1000.0, gauge("aie_engine_memory_physical_bytes", 900 * MIB, CPU))
    world.feed("statsd", 1000.0, gauge("aie_engine_allocator_reserved_bytes", 700 * MIB, CPU))
    for now_s, gap in ((1000.0, 200 * MIB), (1030.0, 200 * MIB), (1031.0, None)):
        world.feed("process", now_s, gauge("aie_engine_memory_physical_bytes", 900 * MIB, CPU))
        world.store.apply(unaccounted(world.store, ["e"], now_s))
        (memory,) = world.builder.build(now_s).memory
        assert memory.unaccounted_bytes == gap, "hooks repeat their levels every ten seconds; after thirty they are silent"


async def test_an_engine_is_up_since_its_process_began_where_it_does_not_say(tmp_path: Path) -> None:
    world, procfs = World(tmp_path), Procfs()
    engines = Engines(procfs.start_ticks)
    engines.declare("e", Origin.STATSD, os.getpid())
    processes = ProcessSource(engines, procfs)
    builder = SnapshotBuilder(world.store, engines, processes, [], About("test", "host", "kernel", 900.0), 60.0)
    assert builder.build(1000.0).engines[0].uptime_s is None
    now_s = time.time()
    await processes.collect(now_s)
    (row,) = processes.rows("e")
    assert builder.build(now_s + 5.0).engines[0].uptime_s == now_s + 5.0 - row.start_time_s
    world.feed("statsd", now_s, gauge("aie_engine_start_time_seconds", now_s - 1.0))
    assert builder.build(now_s).engines[0].uptime_s == 1.0, "what it says goes before"
    await processes.close()


@pytest.mark.parametrize(
    ("cgroup", "container", "pod"),
    [
        (f"0::/kubepods/burstable/pod{POD}/{HEX}\n", HEX[:12], POD),
        (f"4:memory:/kubepods/pod{POD}/{HEX}\n3:cpu,cpuacct:/kubepods/pod{POD}/{HEX}\n", HEX[:12], POD),
        (f"0::/system.slice/docker-{HEX}.scope\n", HEX[:12], None),
        ("0::/user.slice\n", None, None),
    ],
)
async def test_an_engine_that_no_scan_knows_is_in_the_container_and_pod_of_its_process(
    tmp_path: Path, cgroup: str, container: str | None, pod: str | None
) -> None:
    world, tree = World(tmp_path), ProcTree(tmp_path / "proc")
    tree.process(10, cgroup=cgroup)
    procfs = Procfs(tree.root)
    engines = Engines(procfs.start_ticks)
    engines.declare("mine", Origin.STATSD, 10)
    processes = ProcessSource(engines, procfs)
    await processes.collect(1000.0)
    builder = SnapshotBuilder(world.store, engines, processes, [], About("test", "host", "kernel", 900.0), 60.0)
    (engine,) = builder.build(1000.0).engines
    assert (engine.container, engine.pod) == (container, pod)


def test_host_shares(world: World) -> None:
    for second in range(11):
        modes = {"user": 1.0, "system": 0.5, "idle": 2.0, "iowait": 0.3, "steal": 0.2}
        points = [Point("aie_host_cpu_seconds_total", Kind.COUNTER, (("mode", m),), rate * second) for m, rate in modes.items()]
        stall = Point("aie_host_pressure_seconds_total", Kind.COUNTER, (("kind", "some"), ("resource", "cpu")), 0.25 * second)
        world.feed("host", 1000.0 + second, *points, stall, Point("aie_host_cpus", Kind.GAUGE, (), 4.0))
    host = world.builder.build(1010.0).host
    assert host.cpu_busy_ratio == pytest.approx(1.5 / 4)
    assert host.cpu_steal_ratio == pytest.approx(0.05)
    assert host.pressure == {"cpu": api.Pressure(some_ratio=pytest.approx(0.25), full_ratio=None)}
    assert host.cpu_busy_history[-5:] == pytest.approx([1.5 / 4] * 5)


def test_down_engine_and_source_say_since_when(world: World) -> None:
    world.ticks = None
    world.engines.prune(1000.0)
    world.health.reason = "no /proc"
    world.health.down_since_s = 990.0
    snapshot = world.builder.build(1010.0)
    assert (snapshot.engines[0].state, snapshot.engines[0].down_since_s) == ("down", 1000.0)
    assert (snapshot.sources[0].state, snapshot.sources[0].down_since_s) == ("down", 990.0)


@pytest.mark.parametrize("running", [0.0, 3.0])
def test_what_ran_at_the_end_of_an_engine_is_known_until_its_series_go(world: World, running: float) -> None:
    world.feed("statsd", 995.0, gauge("aie_engine_requests_running", 7.0))  # the page knows better, and was heard last
    for second in range(3):
        world.feed("scrape:e", 1000.0 + second, gauge("aie_engine_requests_running", running))
    assert world.engine(1002.0).running_at_end is None, "it is up"
    world.ticks = None
    world.engines.prune(1003.0)
    world.store.expire_engine("e")
    for time_s in (1003.0, 1240.0):
        world.store.evict(time_s)
        engine = world.engine(time_s)
        assert (engine.running, engine.running_at_end) == (None, running)
    world.store.evict(1400.0)
    assert world.engine(1400.0).running_at_end is None


def test_drops_name_what_and_why(world: World) -> None:
    for time_s, dropped in ((1000.0, 2.0), (1001.0, 5.0), (1002.0, 5.0)):
        drop = Point("aie_agent_statsd_dropped_total", Kind.COUNTER, (("reason", "bad_value"),), dropped)
        none = Point("aie_agent_samples_refused_total", Kind.COUNTER, (("reason", "series_limit"),), 0.0)
        late = Point("aie_agent_samples_refused_total", Kind.COUNTER, (("reason", "superseded"),), dropped)
        world.feed("agent", time_s, drop, none, late)
    assert world.builder.build(1002.0).agent.drops == {"statsd:bad_value": 3.0}
    assert world.builder.build(1090.0).agent.drops == {}, "what was dropped long ago is no problem of now"


def test_what_a_foreign_page_does_not_say_is_null(world: World) -> None:
    labels = {"kind": "vllm", "version": "", "revision": "", "device": "", "dtype": ""}
    world.feed("scrape:e", 1000.0, gauge("aie_engine_info", 1.0, tuple(sorted((*E, *labels.items())))))
    engine = world.engine(1000.0)
    assert (engine.kind, engine.model, engine.version, engine.device) == ("vllm", "m", None, None)


def test_requests_of_an_engine_that_does_not_say_how_they_end(world: World) -> None:
    """SGLang: those that end have a duration; cancelled ones are counted; errors are not known to be 0."""
    metric = CATALOGUE["aie_engine_request_duration_seconds"]
    for second in range(11):
        counts = (0.0, 3.0 * second, *[0.0] * (len(metric.buckets) - 1))
        world.feed(
            "scrape:e",
            1000.0 + second,
            counter("aie_engine_requests_total", 0.5 * second, ("outcome", "cancelled")),
            histograms=(HistogramPoint(metric.name, E, metric.buckets, counts, 1.0),),
        )
    engine = world.engine(1010.0)
    assert engine.requests_per_second == pytest.approx(3.0)
    assert engine.errors_per_second is None
    assert engine.outcomes_per_second == pytest.approx({"cancelled": 0.5})
