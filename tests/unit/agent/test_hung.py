"""When an engine hangs, and all that looks like it and is none."""

from __future__ import annotations

import pytest

from aie_agent.analysis.causes import ENGINE_CAUSES
from aie_agent.analysis.findings import Limits, ProcessState, View, as_batch, find
from aie_agent.analysis.hung import CAUSE, engine_hung
from aie_agent.samples import Batch, HistogramPoint, Point
from aie_agent.store import Store
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE, Kind

E = (("engine", "e"), ("model", "m"))
LIMIT_S = 30.0
SIGNS = (
    "generation_tokens_total", "prompt_tokens_total", "step_seconds", "step_tokens", "step_batch_size", "inter_token_seconds",
    "kv_usage_ratio", "kv_used_tokens", "kv_written_tokens", "last_token_timestamp_seconds", "time_to_first_token_seconds",
    "queue_seconds",
)  # fmt: skip
"""What shows life, after `aie_engine_`."""


class World:
    """An engine whose page is read once a second, and what the agent knows of it besides."""

    def __init__(self) -> None:
        self.store = Store(max_series=1000, retention_s=300.0)
        self.state = "up"
        self.processes: list[ProcessState] = [ProcessState(10, "S", 900.0, 0.0)]
        self.unanswered_since_s: float | None = None
        self.view = View(
            store=self.store,
            engines=["e"],
            state=lambda _: self.state,
            processes=lambda _: self.processes,
            unanswered_since_s=lambda _: self.unanswered_since_s,
            limits=Limits(LIMIT_S),
        )

    def feed(self, now_s: float, source: str = "scrape:e", **values: float) -> None:
        points = []
        for name, value in values.items():
            metric = CATALOGUE[f"aie_engine_{name}"]
            points.append(Point(metric.name, metric.kind, E, value))
        self.store.apply(Batch(source, now_s, points))

    def at(self, now_s: float) -> Finding | None:
        return engine_hung(self.view, "e", now_s)


def busy(world: World, begin: int, end: int, rate: float = 0.0, running: float = 1.0, first: float = 500.0) -> float:
    """Seconds of a page with requests running and tokens rising by `rate` a second. Returns what the counter shows at the end."""
    for second in range(begin, end):
        world.feed(1000.0 + second, requests_running=running, generation_tokens_total=first + rate * (second - begin))
    return first + rate * (end - 1 - begin)


def test_requests_run_and_nothing_moves() -> None:
    world = World()
    stood = busy(world, 0, 20, rate=10.0, running=3.0)
    busy(world, 20, 70, running=3.0, first=stood)
    assert next(second for second in range(20, 70) if world.at(1000.0 + second)) == 20 + LIMIT_S - 1, "from the last move on"
    finding = world.at(1069.0)
    assert finding is not None
    assert (finding.cause, finding.subject, finding.severity, finding.since_s) == (CAUSE, "e", "critical", 1019.0)
    assert "3 requests run" in finding.summary
    tokens, running, cores = finding.evidence
    assert "690 for 50 s (limit 30 s)" in tokens.text
    assert tokens.metric == "aie_engine_generation_tokens_total"
    assert "3 requests ran" in running.text
    assert "0.00 CPU cores" in cores.text
    assert "aie-agent stacks --pid 10" in finding.advice
    assert finding.not_visible
    assert {evidence.metric for evidence in finding.evidence} <= CATALOGUE.keys()


@pytest.mark.parametrize("reads_gpus", [False, True])
def test_what_is_not_seen_depends_on_whether_gpus_are_read(reads_gpus: bool) -> None:
    world = World()
    busy(world, 0, 70)
    if reads_gpus:
        gpu = Point("aie_gpu_utilization_ratio", Kind.GAUGE, (("gpu", "0"), ("uuid", "u")), 1.0)
        world.store.apply(Batch("nvml", 1069.0, [gpu]))
    finding = world.at(1069.0)
    assert finding is not None
    (text,) = finding.not_visible
    assert ("none is read here" in text, "busy is seen" in text) == (not reads_gpus, reads_gpus)


def test_it_goes_when_tokens_move_again() -> None:
    world = World()
    busy(world, 0, 60)
    assert world.at(1059.0)
    world.feed(1060.0, requests_running=1.0, generation_tokens_total=501.0)
    assert world.at(1060.0) is None


@pytest.mark.parametrize("sign", SIGNS)
def test_any_sign_of_life_will_do(sign: str) -> None:
    """A long prefill on a slow host: no token is generated, but something moves now and then."""
    world = World()
    metric = CATALOGUE[f"aie_engine_{sign}"]
    for second in range(120):
        busy(world, second, second + 1)
        moves = float(second // 25)
        if metric.kind is Kind.HISTOGRAM:
            point = HistogramPoint(metric.name, E, metric.buckets, (moves, *[0.0] * len(metric.buckets)), moves)
            world.store.apply(Batch("scrape:e", 1000.0 + second, histograms=[point]))
        else:
            world.feed(1000.0 + second, **{sign: moves})
        assert world.at(1000.0 + second) is None, second


class TestNull:
    """What is normal, and stays silent."""

    def test_idle(self) -> None:
        world = World()
        busy(world, 0, 300, running=0.0)
        assert not any(world.at(1000.0 + second) for second in range(300))

    def test_a_request_after_a_long_idle_time_has_its_whole_time(self) -> None:
        world = World()
        busy(world, 0, 200, running=0.0)
        busy(world, 200, 229)
        assert world.at(1228.0) is None

    def test_a_long_queue_with_tokens_moving(self) -> None:
        world = World()
        for second in range(200):
            world.feed(1000.0 + second, requests_waiting=500.0)
            busy(world, second, second + 1, first=500.0 + second // 10)
            assert world.at(1000.0 + second) is None

    def test_a_restart_moves_the_counter_back(self) -> None:
        world = World()
        busy(world, 0, 25, first=500.0)
        busy(world, 25, 50, first=0.0)
        assert world.at(1049.0) is None

    def test_a_counter_that_another_source_takes_over(self) -> None:
        world = World()
        for second in range(20):
            world.feed(1000.0 + second, "statsd", requests_running=1.0, generation_tokens_total=0.0)
        busy(world, 20, 45)
        assert world.at(1044.0) is None

    def test_a_gauge_that_is_old(self) -> None:
        world = World()
        busy(world, 0, 10)
        assert world.at(1100.0) is None, "nobody knows whether requests run"

    def test_an_agent_that_has_just_started(self) -> None:
        world = World()
        busy(world, 0, 29)
        assert world.at(1028.0) is None

    def test_scrape_gaps(self) -> None:
        world = World()
        tokens = 0.0
        for second in range(200):
            if second % 20 > 6:  # seven seconds of every twenty are missing
                tokens += 1
                world.feed(1000.0 + second, requests_running=2.0, generation_tokens_total=tokens)
            assert world.at(1000.0 + second) is None

    def test_a_clock_that_was_set_forward(self) -> None:
        world = World()
        busy(world, 0, 5)
        busy(world, 3600, 3625)
        assert not any(world.at(1000.0 + second) for second in range(3600, 3625)), "it may have been idle for an hour"

    def test_a_load_spike(self) -> None:
        world = World()
        for second in range(120):
            load = 200.0 if 40 < second < 60 else 1.0
            world.feed(1000.0 + second, requests_running=load, generation_tokens_total=second * load // 20)
            assert world.at(1000.0 + second) is None

    def test_an_engine_without_token_counters(self) -> None:
        world = World()
        for second in range(100):
            world.feed(1000.0 + second, requests_running=1.0)
        assert world.at(1099.0) is None

    def test_an_engine_that_is_down(self) -> None:
        world = World()
        busy(world, 0, 60)
        world.state = "down"
        assert world.at(1059.0) is None, "that is a problem of its own"

    def test_a_page_that_answers_late_now_and_then(self) -> None:
        world = World()
        busy(world, 0, 60, rate=1.0)
        world.unanswered_since_s = 1055.0
        assert world.at(1059.0) is None

    def test_a_page_of_an_engine_without_a_process_here(self) -> None:
        world = World()
        world.state = "unknown"
        world.unanswered_since_s = 1000.0
        assert world.at(1060.0) is None


class TestSilentPage:
    """A page that does not answer in time, while a process lives."""

    def test_while_requests_ran(self) -> None:
        world = World()
        stood = busy(world, 0, 10, rate=5.0, running=2.0)
        world.unanswered_since_s = 1010.0
        world.processes = [ProcessState(10, "T", 1011.0, 0.0)]
        assert world.at(1039.0) is None
        finding = world.at(1041.0)
        assert finding is not None
        assert finding.severity == "critical"
        assert finding.since_s == 1009.0, "tokens moved last then"
        assert "process 10 is stopped" in finding.summary
        text = " / ".join(evidence.text for evidence in finding.evidence)
        assert f"{stood:.0f} for 32 s" in text
        assert "when its page was last read" in text
        assert "has not answered in time for 31 s (limit 30 s)" in text
        assert "process 10 is stopped for 30 s (limit 30 s) (state T)" in text
        assert "kill -CONT 10" in finding.advice

    def test_idle_is_a_warning(self) -> None:
        world = World()
        busy(world, 0, 10, running=0.0)
        world.unanswered_since_s = 1010.0
        finding = world.at(1041.0)
        assert finding is not None
        assert (finding.severity, finding.since_s) == ("warning", 1010.0)
        assert "does not answer and its process lives" in finding.summary

    def test_stuck_in_the_kernel(self) -> None:
        world = World()
        world.unanswered_since_s = 1000.0
        world.processes = [ProcessState(10, "S", 900.0, 0.0), ProcessState(11, "D", 1001.0, 0.0)]
        finding = world.at(1031.0)
        assert finding is not None
        assert "process 11 waits in the kernel" in finding.evidence[1].text
        assert "/proc/11/stack" in finding.advice


class TestStopped:
    """A process that stands still cannot serve, whether or not it has a page, and whether or not hooks told of requests."""

    def test_for_long_enough(self) -> None:
        world = World()
        world.processes = [ProcessState(9, "S", 900.0, 0.5), ProcessState(10, "T", 1000.0, 0.0)]
        assert world.at(1029.0) is None
        finding = world.at(1030.0)
        assert finding is not None
        assert (finding.severity, finding.since_s) == ("critical", 1000.0)
        assert "kill -CONT 10" in finding.advice

    def test_a_debugger_that_looks_in_now_and_then(self) -> None:
        world = World()
        for second in range(200):
            state, since = ("t", 1000.0 + second - second % 10) if second % 10 < 3 else ("S", 900.0)
            world.processes = [ProcessState(10, state, since, 0.0)]
            assert world.at(1000.0 + second) is None

    def test_a_disk_that_is_busy_for_long(self) -> None:
        world = World()
        world.processes = [ProcessState(10, "D", 900.0, 0.0)]
        assert world.at(1000.0) is None, "loading a model looks like this"


def test_a_thread_that_the_gpu_does_not_let_go_is_evidence() -> None:
    """Only beside a hang: a synchronisation of a busy engine may well take seconds."""
    world = World()
    tags = (("engine", "e"),)
    world.store.apply(Batch("bpf", 1000.0, [Point("aie_cuda_sync_longest_wait_seconds", Kind.GAUGE, tags, 42.0)], period_s=300.0))
    assert world.at(1001.0) is None
    busy(world, 0, 60)
    finding = world.at(1059.0)
    assert finding is not None
    assert any("inside a CUDA synchronisation for 42 s (limit 5 s)" in each.text for each in finding.evidence)


def test_a_finding_is_a_metric_while_it_holds() -> None:
    world = World()

    def cause(severity: str, since_s: float) -> Finding:
        return Finding(cause=severity, subject="e", severity=severity, since_s=since_s, summary="s")

    findings = find(world.view, [lambda *_: cause("info", 3.0), lambda *_: None], 10.0)
    assert [(each.severity, each.since_s) for each in findings] == [("info", 3.0)]
    world.store.apply(as_batch(findings, (), 10.0))
    assert world.store.current("aie_finding", 10.0, cause="info", severity="info", subject="e") == 1.0
    world.store.retire("aie_finding", 11.0)
    assert world.store.current("aie_finding", 11.0) is None, "what does not hold any more is not there, at once"


def test_every_cause_stays_silent_on_nothing() -> None:
    assert find(World().view, ENGINE_CAUSES, 1000.0) == ()
