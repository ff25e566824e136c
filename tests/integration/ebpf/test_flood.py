"""A thread that synchronises as often as it can, under the whole child with its usual budget: the set goes at once, and says why.

Nothing here knows how fast the machine is. What is charged is held against what the program itself lost, and the time until the set
is gone against the child's own periods.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from aie_ebpf import budget
from aie_ebpf.calibrate import UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.messages import Cost, Coverage, Ready, Report, ToAgent
from aie_ebpf.uprobe_links import Way
from tests.fakes.bpf_programs import all_programs, programs_of
from tests.fakes.flood_program import LANDING_PAD, Flood, build
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = pytest.mark.usefixtures("bpf")

RATIO: Final = 0.01
SET: Final = "cuda_sync"
FEW: Final = 10
"""Slices of the program."""


@pytest.fixture
def threads() -> int:
    """How many flood."""
    return 1


@pytest.fixture
def floods(tmp_path: Path, threads: int) -> Iterator[tuple[Flood, Flood]]:
    """One that is quiet, and one to flood."""
    path = build(tmp_path, threads=threads)
    running = Flood(path), Flood(path)
    yield running
    for each in running:
        each.close()


@pytest.fixture
def child(tmp_path: Path, way: Way) -> Iterator[Child]:
    arguments = "--budget", str(RATIO), "--period", str(budget.LOOK_S), "--uprobes", way
    with running_child(*arguments, log=tmp_path / "stderr") as running:
        yield running


def _row(message: ToAgent, tgid: int) -> Coverage | None:
    """What a report says of the set and a process."""
    rows = (message.coverage or ()) if isinstance(message, Report) else ()
    return next((row for row in rows if (row.set, row.tgid) == (SET, tgid)), None)


def _has_state(state: str, tgid: int) -> Callable[[ToAgent], bool]:
    return lambda message: (row := _row(message, tgid)) is not None and row.state == state


def _costs(*messages: ToAgent) -> list[Cost]:
    reports = [message for message in messages if isinstance(message, Report)]
    return [cost for report in reports for cost in report.costs if cost.set == SET]


@pytest.mark.parametrize(("way", "threads"), [(Way.LINKS, 1), (Way.EVENTS, 1), (Way.LINKS, 3)], indirect=["way"])
def test_a_flood_is_left_alone_at_once(child: Child, floods: tuple[Flood, Flood], way: Way, threads: int) -> None:
    quiet, flood = floods
    flood.begin()
    flood.wait_for(FEW)
    bare = flood.slices()
    bare_s = sum(each.cpu_s for each in bare) / sum(each.calls for each in bare)
    child.watch(quiet.tgid)
    asked_s = time.monotonic()
    child.until(_has_state("part", quiet.tgid))  # compiled and attached; it is all that this library has
    longest_s = max(message.period_s for message in child.messages if isinstance(message, Report))
    assert longest_s < (time.monotonic() - asked_s) / 2, "reports and judgements do not wait for the compiler"
    child.messages.clear()
    first_s = time.monotonic()

    child.watch(quiet.tgid, flood.tgid)
    told = child.until(_has_state("off", flood.tgid))
    told_s = time.monotonic()
    costs = _costs(*child.messages)
    # A hit at the entry and one at the return.
    a_call_s = 2 * sum(cost.seconds for cost in costs) / sum(cost.hits for cost in costs)
    is_trapped_s = bare_s + a_call_s / 2
    flood.wait_until_each(FEW, lambda each: each.each_s < is_trapped_s)

    row = _row(told, flood.tgid)
    assert row is not None
    assert row.reason.startswith("detached: took "), row.reason
    assert row.reason.endswith(", budget 1 %; tried again after 10 minutes"), row.reason
    slices = [each for each in flood.slices() if each.from_s > first_s]
    trapped = [each for each in slices if each.each_s > is_trapped_s]
    loses_s = statistics.median(each.each_s for each in trapped if each.to_s < told_s) - bare_s
    assert 0.5 < a_call_s / loses_s < 2, "a call is charged what it loses"

    longest_s = max(message.period_s for message in child.messages if isinstance(message, Report))
    until_told_s = sum(each.seconds for each in trapped if each.from_s < told_s)
    detaching_s = sum(each.seconds for each in trapped if each.from_s >= told_s)
    # The bounds in the docstring of the budget, with the two slices that are trapped in part.
    lost_s = sum(each.cpu_s - each.calls * bare_s for each in slices)
    least_s = budget.FAST_FACTOR * RATIO
    rounding_s = 2 * max(each.seconds for each in slices)
    assert until_told_s <= least_s + 2 * longest_s + rounding_s
    cpus = min(threads, os.cpu_count() or 1)
    average = (least_s + cpus * (2 * longest_s + detaching_s + rounding_s)) / budget.WINDOW_S
    assert lost_s / budget.WINDOW_S <= average
    if way is Way.LINKS and threads == 1:  # events are detached one by one: the document says that they take more
        assert lost_s / budget.WINDOW_S <= RATIO, "the average over a minute is within the budget, detaching and all"


def test_the_same_calls_at_a_pace_within_the_budget_keep_their_probes(child: Child, floods: tuple[Flood, Flood]) -> None:
    """A third of the budget, by the costs that this child measured."""
    calm, _ = floods
    ready = next(message for message in child.messages if isinstance(message, Ready))
    a_call_s = (
        max(ready.cost_ns[kind] for kind in (UPROBE, UPROBE_EMULATED) if kind in ready.cost_ns) + ready.cost_ns[URETPROBE]
    ) / 1e9
    calm.begin(a_call_s / (RATIO / 3))
    child.watch(calm.tgid)
    child.until(_has_state("part", calm.tgid))
    child.reports(15)
    assert not any(_has_state("off", calm.tgid)(message) for message in child.messages)
    costs = _costs(*child.messages)
    assert sum(cost.hits for cost in costs) > FEW
    assert max(cost.ratio for cost in costs) < RATIO


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the function is in x86's assembler")
def test_a_probe_lies_behind_the_landing_pad(child: Child, tmp_path: Path) -> None:
    """There it sees as much, and is charged as an emulated instruction is."""
    ready = next(message for message in child.messages if isinstance(message, Ready))
    call_ns = ready.cost_ns[UPROBE_EMULATED] + ready.cost_ns[URETPROBE]
    padded = Flood(build(tmp_path, LANDING_PAD))
    try:
        padded.begin(pause_s=0.001)
        padded.wait_for(FEW)
        child.watch(padded.tgid)
        child.until(_has_state("part", padded.tgid))
        child.until(lambda message: any(cost.hits for cost in _costs(message)))
        before = sum(each.calls for each in padded.slices())
        child.reports(5)
        calls = sum(each.calls for each in padded.slices())
    finally:
        padded.close()
    costs = _costs(*child.messages)
    hits = sum(cost.hits for cost in costs)
    assert calls - before <= hits <= 2 * calls, "each call counts at its entry and at its return"
    assert sum(cost.seconds for cost in costs) * 1e9 / hits == pytest.approx(call_ns / 2, rel=1e-3)


@both_ways
def test_no_breakpoint_is_left_in_an_engine_when_the_child_is_killed(child: Child, floods: tuple[Flood, Flood]) -> None:
    """What a uprobe does to a process is a breakpoint in its code: there while it is attached, and gone with the child."""
    calm, _ = floods
    calm.begin(pause_s=0.01)
    calm.wait_for(FEW)
    before = _code(calm.tgid)
    child.watch(calm.tgid)
    child.until(_has_state("part", calm.tgid))
    child.until(lambda message: any(cost.hits for cost in _costs(message)))
    assert _code(calm.tgid) != before
    held = programs_of(child.process.pid)
    assert held
    child.process.kill()
    child.process.wait(timeout=60)
    deadline_s = time.monotonic() + 60
    while (held & all_programs() or _code(calm.tgid) != before) and time.monotonic() < deadline_s:
        time.sleep(0.1)  # the kernel frees a program after a grace period
    assert _code(calm.tgid) == before
    assert not held & all_programs()
    assert "aie_" not in Path("/sys/kernel/tracing/uprobe_events").read_text()
    calm.wait_for(FEW)  # and it runs on


def _code(tgid: int) -> bytes:
    """What a process would run of its libcuda, as it is in its memory now."""
    lines = Path(f"/proc/{tgid}/maps").read_text().splitlines()
    place = next(line.split()[0] for line in lines if "libcuda" in line and " r-xp " in line)
    start, end = (int(part, 16) for part in place.split("-"))
    with open(f"/proc/{tgid}/mem", "rb", buffering=0) as memory:
        memory.seek(start)
        return memory.read(end - start)
