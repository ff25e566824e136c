"""Who is charged for a hit, and how much: programs that make a known number of calls, beside the whole child."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aie_ebpf.calibrate import UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.lives import start_ticks
from aie_ebpf.messages import Cost, Ready, Report, Target, ToAgent, Watch
from aie_ebpf.uprobe_links import Way
from tests.fakes.call_program import EMULATED, STEPPED, WAKE, Caller, build
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = [
    pytest.mark.usefixtures("bpf"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the functions are in x86's assembler"),
]

FEW: Final = 2_000
MANY: Final = 20_000
KINDS: Final = {STEPPED: UPROBE, EMULATED: UPROBE_EMULATED}


@pytest.fixture
def child(tmp_path: Path, way: Way) -> Iterator[Child]:
    """A child whose budget is no matter here."""
    with running_child("--period", "0.2", "--budget", "1", "--uprobes", way, log=tmp_path / "stderr") as running:
        yield running


@pytest.fixture
def callers(tmp_path: Path) -> Iterator[list[Caller]]:
    path = build(tmp_path)
    running = [Caller(path) for _ in range(3)]
    yield running
    for each in running:
        each.close()


def watch(child: Child, engines: dict[int, str]) -> None:
    """These processes, each of an engine. Returns when probes are attached to all of them."""
    targets = tuple(Target(engine=engine, tgid=tgid, start_ticks=start_ticks(tgid) or 0) for tgid, engine in engines.items())
    child.tell(Watch(targets=targets))

    def is_attached(message: ToAgent) -> bool:
        rows = (message.coverage or ()) if isinstance(message, Report) else ()
        return {row.tgid for row in rows if (row.set, row.state) == ("cuda_sync", "part")} == engines.keys()

    child.until(is_attached)
    child.messages.clear()


def costs(child: Child, name: str) -> list[Cost]:
    """Of a set, in what is unread and the next reports: the one that may be under way, and one that has it all."""
    child.messages.clear()
    return [cost for report in child.reports(3) for cost in report.costs if cost.set == name]


@both_ways
def test_a_hit_costs_what_its_own_function_costs(child: Child, callers: list[Caller], way: Way) -> None:
    """Both are of one set, and differ 28-fold on a virtual machine."""
    caller, *_ = callers
    cost_ns = next(message for message in child.messages if isinstance(message, Ready)).cost_ns
    bare_s = {name: caller.call(name, MANY) / MANY for name in KINDS}
    watch(child, {caller.tgid: "engine"})
    child.reports(2)
    entry_ns = {name: cost_ns[kind] for name, kind in KINDS.items()}
    if way is Way.EVENTS:  # of events it cannot be told which of them was hit
        entry_ns = dict.fromkeys(KINDS, sum(entry_ns.values()) / len(entry_ns))
    for name, calls in ((STEPPED, FEW), (EMULATED, MANY)):
        loses_s = caller.call(name, calls) / calls - bare_s[name]
        charged = costs(child, "cuda_sync")
        assert sum(cost.hits for cost in charged) == 2 * calls
        a_call_s = sum(cost.seconds for cost in charged) / calls
        assert a_call_s == pytest.approx((entry_ns[name] + cost_ns[URETPROBE]) / 1e9, rel=1e-6)
        if way is Way.LINKS:
            assert 0.5 < a_call_s / loses_s < 2, "a call is charged what it loses"


def test_each_engine_is_charged_its_own(child: Child, callers: list[Caller]) -> None:
    """By sets of uprobes, which are attached to each process, and of tracepoints, which see all of the host."""
    one, other, third = callers
    watch(child, {one.tgid: "one", other.tgid: "other", third.tgid: "one"})
    child.reports(2)
    for name, hits, calls in (("cuda_sync", 2, (EMULATED, EMULATED, STEPPED)), ("locks", 1, (WAKE, WAKE, WAKE))):
        for caller, call, count in zip(callers, calls, (300, 5_000, 70), strict=True):
            caller.call(call, count)
        charged = costs(child, name)
        assert {engine: sum(cost.hits for cost in charged if cost.engine == engine) for engine in ("one", "other")} == {
            "one": hits * 370,
            "other": hits * 5_000,
        }
        by_engine = {engine: sum(cost.seconds for cost in charged if cost.engine == engine) for engine in ("one", "other")}
        assert by_engine["other"] > 0
        if name == "locks":  # of one kind: costs are as hits are
            assert by_engine["other"] / by_engine["one"] == pytest.approx(5_000 / 370)
