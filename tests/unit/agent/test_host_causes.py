"""Causes in the host: each found within 10 s, silent on the nearest healthy case, and on what is not known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
from fakes.cause_world import CauseWorld, Rows

from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import EngineCause, View
from aie_agent.analysis.host_causes.cpu import cpu_starved, cpu_steal, cpu_throttled
from aie_agent.analysis.host_causes.disk import disk_stall, disk_stall_of_host
from aie_agent.analysis.host_causes.memory import host_memory_low, page_faults, swapping
from aie_agent.samples import Batch, HistogramPoint
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE

ENGINE = "engine=e"
RUNNING = f"aie_engine_requests_running {ENGINE}"
QUEUE = f"aie_process_run_queue_seconds_total {ENGINE}"
CPU = f"aie_process_cpu_seconds_total {ENGINE} mode=user"
FAULTS = f"aie_process_major_faults_total {ENGINE}"
FAULT_WAIT = f"aie_process_wait_seconds_total {ENGINE} reason=page_fault"
DISK_WAIT = f"aie_process_wait_seconds_total {ENGINE} reason=disk"
STEAL = "aie_host_cpu_seconds_total mode=steal"
SWAP_IN = "aie_host_swap_in_pages_total"
AVAILABLE = "aie_host_memory_available_bytes"
TOTAL = "aie_host_memory_total_bytes"
IO_FULL = "aie_host_pressure_seconds_total kind=full resource=io"
MEMORY_FULL = "aie_host_pressure_seconds_total kind=full resource=memory"
GIB = float(1 << 30)


def of_engine(cause: Callable[[View, str, float], Finding | None]) -> Callable[[View, float], list[Finding]]:
    return lambda view, now_s: [found] if (found := cause(view, "e", now_s)) else []


class Case(NamedTuple):
    """What is wrong, what is the nearest to it that is not, and the series without which nothing is known."""

    cause: Callable[[View, float], list[Finding]]
    wrong: Rows
    healthy: list[Rows]
    needed: tuple[str, ...]


def quota(periods: float, throttled: float) -> Rows:
    return {
        f"aie_process_cgroup_periods_total {ENGINE}": periods,
        f"aie_process_cgroup_throttled_periods_total {ENGINE}": throttled,
        f"aie_process_cgroup_throttled_seconds_total {ENGINE}": throttled * 0.05,
    }


def bursts(height: float, every: int = 5) -> Callable[[int], float]:
    return lambda second: height * every if second % every == 0 else 0.0


CASES = {
    "cpu_starved": Case(
        of_engine(cpu_starved),
        {QUEUE: 1.5, CPU: 0.5},
        [
            {QUEUE: 0.1, CPU: 0.5},
            {QUEUE: 0.45, CPU: 0.5},  # few threads wait
            {QUEUE: 2.0, CPU: 30.0},  # many threads, nearly always served
            {QUEUE: bursts(1.0), CPU: 0.5},  # a burst now and then
        ],
        ("aie_process_run_queue_seconds_total", "aie_process_cpu_seconds_total"),
    ),
    "cpu_throttled": Case(
        of_engine(cpu_throttled),
        quota(10.0, 5.0),
        [
            quota(10.0, 1.0),
            quota(10.0, 2.3),  # just below the share
            quota(10.0, 0.0),
            {**quota(10.0, 0.0), **{row: bursts(3.0) for row in list(quota(0, 0))[1:2]}},
        ],
        ("aie_process_cgroup_periods_total", "aie_process_cgroup_throttled_periods_total"),
    ),
    "cpu_steal": Case(
        cpu_steal,
        {STEAL: 0.6, "aie_host_cpus": 4.0},
        [{STEAL: 0.1, "aie_host_cpus": 4.0}, {STEAL: 0.38, "aie_host_cpus": 4.0}, {STEAL: bursts(0.6, 10), "aie_host_cpus": 4.0}],
        ("aie_host_cpu_seconds_total", "aie_host_cpus"),
    ),
    "page_faults": Case(
        of_engine(page_faults),
        {FAULTS: 300.0, RUNNING: 2.0},
        [
            {FAULTS: 20.0, RUNNING: 2.0},
            {FAULTS: 47.0, RUNNING: 2.0},
            {FAULTS: 3000.0, RUNNING: 0.0},  # it loads
            {FAULTS: bursts(300.0), RUNNING: 2.0},
            {FAULTS: 300.0, RUNNING: 2.0, FAULT_WAIT: 0.01},  # a disk that is fast enough
        ],
        ("aie_process_major_faults_total", "aie_engine_requests_running"),
    ),
    "swapping": Case(
        swapping,
        {SWAP_IN: 500.0},
        [{SWAP_IN: 40.0}, {SWAP_IN: 95.0}, {SWAP_IN: 0.0, "aie_host_swap_out_pages_total": 5000.0}, {SWAP_IN: bursts(400.0)}],
        ("aie_host_swap_in_pages_total",),
    ),
    "disk_stall": Case(
        of_engine(disk_stall),
        {DISK_WAIT: 0.5, RUNNING: 1.0},
        [
            {DISK_WAIT: 0.05, RUNNING: 1.0},
            {DISK_WAIT: 0.19, RUNNING: 1.0},
            {DISK_WAIT: 0.9, RUNNING: 0.0},  # it loads
            {DISK_WAIT: 0.01, RUNNING: 1.0, IO_FULL: 0.9},  # somebody else's backup
        ],
        ("aie_process_wait_seconds_total", "aie_engine_requests_running"),
    ),
    "disk_stall_of_host": Case(
        disk_stall_of_host,
        {IO_FULL: 0.6, RUNNING: 1.0},
        [
            {IO_FULL: 0.1, RUNNING: 1.0},
            {IO_FULL: 0.28, RUNNING: 1.0},
            {IO_FULL: 0.6, RUNNING: 0.0},
            {IO_FULL: 0.6, RUNNING: 1.0, DISK_WAIT: 0.0},
        ],
        ("aie_host_pressure_seconds_total", "aie_engine_requests_running"),
    ),
    "host_memory_low": Case(
        host_memory_low,
        {AVAILABLE: 2 * GIB, TOTAL: 64 * GIB},
        [
            {AVAILABLE: 6 * GIB, TOTAL: 64 * GIB},
            {AVAILABLE: 3.3 * GIB, TOTAL: 64 * GIB},
            {AVAILABLE: lambda second: (2 if second % 4 else 10) * GIB, TOTAL: 64 * GIB},
            {AVAILABLE: 6 * GIB, TOTAL: 64 * GIB, MEMORY_FULL: 0.09},
        ],
        ("aie_host_memory_available_bytes", "aie_host_memory_total_bytes"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_found_within_ten_seconds_of_what_is_healthy(name: str) -> None:
    case = CASES[name]
    world = CauseWorld()
    world.live(40, case.healthy[0])
    assert world.subjects(case.cause) == []
    for _ in range(12):
        world.live(1, case.wrong)
        if found := world.subjects(case.cause):
            break
    (finding,) = found
    assert world.now_s - 10_040.0 <= 11.0
    assert finding.cause == name.removesuffix("_of_host")
    assert finding.subject == ("e" if finding.summary.startswith("engine e") else "host")
    assert all("limit" in each.text and each.metric in CATALOGUE for each in finding.evidence[:1])
    assert finding.advice.endswith(".")
    assert finding.runbook == f"docs/runbooks/{finding.cause}.md"
    since_s = finding.since_s
    world.live(20, case.wrong)
    assert [each.since_s for each in world.subjects(case.cause)] == [since_s], "since when does not move"
    world.live(20, case.healthy[0])
    assert world.subjects(case.cause) == [], "it goes when it is over"


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, case in CASES.items() for at in range(len(case.healthy))])
def test_silent_on_what_is_healthy(name: str, at: int) -> None:
    world = CauseWorld()
    for _ in range(80):
        world.live(1, {row: (each(int(world.now_s)) if callable(each) else each) for row, each in CASES[name].healthy[at].items()})
        assert world.subjects(CASES[name].cause) == []


@pytest.mark.parametrize("name", CASES)
def test_silent_where_it_is_not_known(name: str) -> None:
    case = CASES[name]
    for missing in case.needed:
        world = CauseWorld()
        world.live(30, case.wrong, without=[missing])
        assert world.subjects(case.cause) == []
    world = CauseWorld()
    world.live(30, case.wrong)
    world.now_s += 60.0
    assert world.subjects(case.cause) == [], "what was a minute ago"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.cause not in (cpu_steal, swapping)])
def test_an_engine_that_is_down_waits_for_nothing(name: str) -> None:
    world = CauseWorld(state="down")
    world.live(30, CASES[name].wrong)
    assert [each for each in world.subjects(CASES[name].cause) if each.subject == "e"] == []


def test_who_takes_the_cpus_decides_what_to_do() -> None:
    crowded = {QUEUE: 3.0, CPU: 1.9, "aie_host_cpu_seconds_total mode=user": 2.0, "aie_host_cpus": 2.0}
    world = CauseWorld()
    world.live(20, crowded)
    own = world.engine(cpu_starved)
    assert own is not None
    assert "OMP_NUM_THREADS" in own.advice
    assert own.evidence[-1].text == "everything else on the host used 0.10 of its 2 CPUs"
    world.live(20, {**crowded, CPU: 0.4})
    pushed = world.engine(cpu_starved)
    assert pushed is not None
    assert "move it away" in pushed.advice


def _healthy_second(second: int, noise: random.Random) -> Rows:
    """A busy engine on a host that has enough of everything, with what comes now and then: a compilation, a part of the weights
    that is touched for the first time, a backup, a checkpoint, a neighbour of the hypervisor that wakes up."""
    burst = {name: second % every < length for name, every, length in (("cpu", 300, 3), ("load", 600, 4), ("other", 97, 2))}
    return {
        QUEUE: noise.expovariate(10.0) + 3.0 * burst["cpu"],
        CPU: 1.5 + noise.random(),
        RUNNING: float(noise.randint(1, 8)),
        FAULTS: float(noise.randint(0, 10)) + 4000.0 * burst["load"],
        FAULT_WAIT: noise.random() * 0.02 + 0.5 * burst["load"],
        DISK_WAIT: noise.random() * 0.05 + 0.9 * burst["load"],
        STEAL: noise.random() * 0.08 + 1.5 * burst["other"],
        "aie_host_cpus": 4.0,
        SWAP_IN: float(noise.randint(0, 20)) + 2000.0 * burst["other"],
        "aie_host_swap_out_pages_total": 4000.0 * burst["load"],
        AVAILABLE: (6.0 + noise.random() - 5.0 * burst["other"]) * GIB,
        TOTAL: 64 * GIB,
        MEMORY_FULL: noise.random() * 0.02,
        IO_FULL: noise.random() * 0.1 + 0.8 * burst["load"],
        **quota(10.0, float(noise.random() < 0.3) + 8.0 * burst["cpu"]),
    }


def test_an_hour_of_a_healthy_host_has_no_finding() -> None:
    world, noise = CauseWorld(), random.Random(7)
    for second in range(3600):
        world.live(1, _healthy_second(second, noise))
        found = [each for case in CASES.values() for each in world.subjects(case.cause)]
        assert found == [], (second, found)


def test_a_quota_that_was_just_set_is_told_of_though_its_counters_are_young() -> None:
    world = CauseWorld()
    world.live(30, {CPU: 0.5})
    after = next(second for second in range(1, 20) if world.live(1, quota(10.0, 9.0)) or world.engine(cpu_throttled))
    assert after <= 7
    burst = CauseWorld()
    for second in range(60):
        burst.live(1, quota(10.0, 9.0 if second % 20 < 3 else 0.0))
        assert burst.engine(cpu_throttled) is None


def test_bursts_of_six_seconds_just_above_the_share_of_periods_are_none() -> None:
    world = CauseWorld()
    for second in range(300):
        world.live(1, {**quota(10.0, 3.0 if second % 60 < 6 else 0.0), RUNNING: 2.0})
        assert world.engine(cpu_throttled) is None


def test_a_young_quota_is_told_of_with_the_seconds_that_are_known() -> None:
    world = CauseWorld()
    after = next(second for second in range(1, 20) if world.live(1, quota(10.0, 6.0)) or world.engine(cpu_throttled))
    found = world.engine(cpu_throttled)
    assert found is not None
    assert after == 6, "five seconds lie between six readings"
    assert "in 60% of its periods over the last 5 s (limit 25%)" in found.evidence[0].text


@pytest.mark.parametrize("cause", [cpu_starved, cpu_throttled])
def test_an_engine_that_serves_nobody_and_lacks_cpu_is_information(cause: EngineCause) -> None:
    loading: Rows = {}
    requests: tuple[tuple[Rows, str], ...] = ((loading, "info"), ({RUNNING: 0.0}, "info"), ({RUNNING: 2.0}, "warning"))
    for more, severity in requests:
        world = CauseWorld()
        world.live(20, {**CASES[cause.__name__].wrong, **more})
        found = world.engine(cause)
        assert found is not None
        assert found.severity == severity, more
        assert bool(found.not_visible) is (not more)


def test_what_goes_on_below_its_limit_says_why() -> None:
    world = CauseWorld()
    world.live(10, {QUEUE: 1.0, CPU: 0.5})
    world.live(10, {QUEUE: 0.4, CPU: 0.5})
    found = world.engine(cpu_starved)
    assert found is not None
    assert found.evidence[0].text.endswith("(limit 0.5, and half of that for as long as it goes on)")


def test_faults_whose_cost_is_not_seen_say_so() -> None:
    world = CauseWorld()
    world.live(20, CASES["page_faults"].wrong)
    finding = world.engine(page_faults)
    assert finding is not None
    assert "no probe sees page faults" in finding.not_visible[0]
    world.live(20, {**CASES["page_faults"].wrong, FAULT_WAIT: 0.6, "aie_process_swap_bytes engine=e": 3 * GIB})
    finding = world.engine(page_faults)
    assert finding is not None
    assert finding.not_visible == ()
    assert [each.text for each in finding.evidence[1:]] == [
        "its threads waited for them 0.60 s a second in total (limit 0.1)", "3072 MiB of it are in swap",
    ]  # fmt: skip


def test_memory_that_is_nearly_gone_is_critical() -> None:
    world = CauseWorld()
    world.live(10, {AVAILABLE: GIB, TOTAL: 64 * GIB})
    assert [each.severity for each in world.subjects(host_memory_low)] == ["critical"]
    world = CauseWorld()
    world.live(20, {AVAILABLE: 10 * GIB, TOTAL: 64 * GIB, MEMORY_FULL: 0.4})
    (stalled,) = world.subjects(host_memory_low)
    assert (stalled.severity, len(stalled.evidence)) == ("critical", 1)


def test_the_slow_disk_is_named() -> None:
    world = CauseWorld()
    bounds = CATALOGUE["aie_host_block_io_seconds"].buckets
    counts = [0.0] * (len(bounds) + 1)
    for second in range(20):
        world.live(1, CASES["disk_stall"].wrong)
        for device, at in (("sda", 20), ("nvme0n1", 7)):
            tags = (("device", device), ("op", "write"))
            per_bucket = [*counts]
            per_bucket[at] = 100.0 * (second + 1)
            point = HistogramPoint("aie_host_block_io_seconds", tags, bounds, tuple(per_bucket), 1.0, delta=False)
            world.store.apply(Batch("bpf", world.now_s, histograms=[point]))
    finding = world.engine(disk_stall)
    assert finding is not None
    assert [each.text.split(" took")[0] for each in finding.evidence[1:]] == ["one of 100 requests to sda"]


PERIODS, THROTTLED, _ = quota(0.0, 0.0)
HELD: dict[str, tuple[Callable[[View, float], list[Finding]], str, float, Rows]] = {
    "cpu_starved": (of_engine(cpu_starved), QUEUE, 0.5, {CPU: 0.2}),
    "cpu_throttled": (of_engine(cpu_throttled), THROTTLED, 2.5, {PERIODS: 10.0}),
    "cpu_steal": (cpu_steal, STEAL, 0.4, {"aie_host_cpus": 4.0}),
    "page_faults": (of_engine(page_faults), FAULTS, 50.0, {RUNNING: 1.0}),
    "swapping": (swapping, SWAP_IN, 100.0, {}),
    "disk_stall": (of_engine(disk_stall), DISK_WAIT, 0.5, {RUNNING: 1.0}),
    "disk_stall of the host": (disk_stall_of_host, IO_FULL, 0.3, {RUNNING: 1.0}),
    "host_memory_low by stalls": (host_memory_low, MEMORY_FULL, 0.1, {AVAILABLE: 8 * GIB, TOTAL: 16 * GIB}),
}
"""A cause, the counter that it is about, its limit a second, and what else it needs."""


@pytest.mark.parametrize("name", HELD)
def test_what_goes_on_above_half_its_limit_is_one_finding_however_long(name: str) -> None:
    """For longer than the store remembers that it was above the limit, and once more above it."""
    cause, row, limit, more = HELD[name]
    world = CauseWorld()
    diagnosis = Diagnosis(engine_causes=(), subject_causes=(cause,))
    shown: list[float | None] = []
    for second in range(700):
        share = 1.5 if 20 <= second < 50 or 400 <= second < 430 else 0.8 if 50 <= second < 600 else 0.0
        world.live(1, {row: share * limit, **more})
        found = diagnosis.update(world.view, world.now_s)
        shown.append(found[0].since_s if found else None)
    begun = next(at for at, each in enumerate(shown) if each is not None)
    assert begun < 50
    assert set(shown[begun:600]) == {shown[begun]}
    assert set(shown[640:]) == {None}


def test_memory_that_was_low_does_not_make_stalls_below_their_limit_a_finding() -> None:
    world = CauseWorld()
    diagnosis = Diagnosis(engine_causes=(), subject_causes=(host_memory_low,))
    shown = []
    for second in range(460):
        available = 0.04 if second < 400 else 0.5
        world.live(1, {MEMORY_FULL: 0.08, AVAILABLE: available * 16 * GIB, TOTAL: 16 * GIB})
        shown.append([each.severity for each in diagnosis.update(world.view, world.now_s)])
    assert shown[20:400] == [["warning"]] * 380
    assert shown[420:] == [[]] * 40
