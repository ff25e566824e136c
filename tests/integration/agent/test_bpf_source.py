"""The agent's side of eBPF with a child that is a real process and has no BPF: life, death, and what becomes of reports."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aie_agent.config import BpfSection
from aie_agent.identity import Engines, Origin
from aie_agent.samples import Batch
from aie_agent.sources.base import Runner, SourceError
from aie_agent.sources.bpf.build import NoProbes, build
from aie_agent.sources.bpf.child import Child, ChildError
from aie_agent.sources.bpf.keeper import Keeper
from aie_agent.sources.bpf.source import BpfSource
from aie_agent.sources.procfs import Procfs
from aie_agent.store import Store
from aie_ebpf.prerequisites import Prerequisite

FAKE = str(Path(__file__).parents[2] / "fakes" / "bpf_child.py")
SECTION = BpfSection(without=("gc",))


def command(behaviour: str) -> list[str]:
    return [sys.executable, FAKE, behaviour]


class Made:
    """A source with an engine, a store behind it, and a runner that collects."""

    def __init__(self, behaviour: str, tgids: dict[str, int], silent_after_s: float = 10.0) -> None:
        procfs = Procfs()
        self.engines = Engines(procfs.start_ticks)
        for name, tgid in tgids.items():
            self.engines.declare(name, Origin.STATSD, tgid)
        self.source = BpfSource(
            self.engines,
            procfs,
            SECTION,
            60.0,
            command=command(behaviour),
            keeper=lambda line, clock: Keeper(line, clock, silent_after_s),
        )
        self.store = Store(max_series=10_000, retention_s=300.0, canonical=self.engines.canonical)
        self.batches: list[Batch] = []
        self.runner = Runner(self.source, self._deliver)

    def _deliver(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.store.apply(batch)

    async def until(self, condition: Callable[[], Any], timeout_s: float = 60.0) -> Any:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            await self.runner.collect_once()
            if result := condition():
                return result
            await asyncio.sleep(0.02)
        pytest.fail(f"not within {timeout_s} s: {self.runner.health.reason}")

    def current(self, name: str, **labels: str) -> float | None:
        return self.store.current(name, time.time(), **labels)

    def child_pid(self) -> int:
        child = self.source._child
        assert child is not None
        assert child.pid is not None
        return child.pid


@pytest.fixture
async def make() -> AsyncIterator[Callable[..., Made]]:
    made: list[Made] = []

    def one(*arguments: Any, **more: Any) -> Made:
        made.append(Made(*arguments, **more))
        return made[-1]

    yield one
    for each in made:
        await each.source.close()


@pytest.fixture
def sleeper() -> Any:
    """A process that has a child of its own."""
    code = "import subprocess, sys\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid, flush=True)\nchild.wait()"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    yield process.pid, child
    process.kill()
    os.kill(child, signal.SIGKILL)
    process.wait()


async def test_reports_become_samples_of_the_engine(make: Callable[..., Made], sleeper: tuple[int, int]) -> None:
    threads = threading.active_count()
    made = make("works", {"chat": sleeper[0]})
    await made.until(lambda: made.batches and made.source.locks("chat"))
    assert made.current("aie_process_wait_seconds_total", engine="chat", reason="gil") > 0  # type: ignore[operator]
    assert made.current("aie_process_wait_seconds_total", engine="chat", reason="lock") == 0
    assert made.current("aie_process_wait_seconds_total", engine="chat", reason="gpu_sync") is None
    assert made.current("aie_process_lock_waits_total", engine="chat", kind="gil") >= 10  # type: ignore[operator]
    assert made.current("aie_agent_probe_overhead_ratio", engine="chat") == pytest.approx(0.004)
    assert made.current("aie_agent_probe_cost_seconds", kind="uprobe") == pytest.approx(1.5e-6)
    assert made.current("aie_agent_probes_attached", engine="chat", set="locks") == 4
    assert made.current("aie_agent_bpf_resident_bytes") == 90 << 20
    assert len(made.store.histograms("aie_process_run_queue_delay_seconds", engine="chat")) == 1
    lock = made.source.locks("chat")[0]
    assert (lock.address, lock.kind) == ("0x7f0010", "gil")
    assert lock.waiting_threads == pytest.approx(0.5)
    assert [(each.set, each.state) for each in made.source.coverage("chat")] == [("locks", "on")]
    assert made.store.refused == dict.fromkeys(made.store.refused, 0)
    assert threading.active_count() - threads <= 2  # asyncio's pool that reads /proc


async def test_the_child_is_told_engines_and_what_they_started(
    make: Callable[..., Made], sleeper: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    monkeypatch.setenv("AIE_FAKE_TOLD", str(told))
    made = make("works", {"chat": sleeper[0]})
    await made.until(lambda: told.exists() and told.read_text().endswith("\n"))
    first = json.loads(told.read_text().splitlines()[0])
    assert [(each["engine"], each["tgid"]) for each in first["targets"]] == sorted(("chat", tgid) for tgid in sleeper)
    assert all(each["start_ticks"] == Procfs().start_ticks(each["tgid"]) for each in first["targets"])
    for _ in range(5):
        await made.runner.collect_once()
    assert len(told.read_text().splitlines()) == 1, "told again although nothing changed"
    made.engines.declare("other", Origin.STATSD, os.getppid())
    await made.until(lambda: len(told.read_text().splitlines()) > 1)


async def test_an_oom_kill_is_an_event_of_the_engine(make: Callable[..., Made], sleeper: tuple[int, int]) -> None:
    made = make("works", {"chat": sleeper[0]})
    events = await made.until(lambda: [event for batch in made.batches for event in batch.events])
    assert len(events) == 1
    assert events[0].kind == "oom_kill"
    assert events[0].engine == "chat"
    assert events[0].summary == f"the kernel killed chat?[2J (pid {min(sleeper)}) for lack of memory"
    assert events[0].details["anon_bytes"] == 1 << 30
    await made.until(lambda: made.current("aie_agent_events_total", kind="oom_kill") == 1)


async def test_a_killed_child_is_a_state_with_a_reason_and_another_one_comes(
    make: Callable[..., Made], sleeper: tuple[int, int]
) -> None:
    made = make("works", {"chat": sleeper[0]})
    await made.until(lambda: made.source.locks("chat"))
    first = made.child_pid()
    os.kill(first, signal.SIGKILL)
    await made.until(lambda: made.runner.health.state == "down")
    assert made.runner.health.reason == "BPF child ended: signal 9 (SIGKILL)"
    assert made.source.coverage("chat")[0].reason == "BPF child ended: signal 9 (SIGKILL)"
    made.batches.clear()
    await made.until(lambda: made.runner.health.state == "up" and made.batches[-1].points and made.source.coverage("chat"))
    assert made.child_pid() != first
    assert ("aie_agent_bpf_starts_total", (), 2.0) in list(made.source.counts())


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("fails", "no BCC here; install it"),
        ("crashes", "BPF child ended: status 3 (ValueError: bad ?[31mthing)"),
        ("nonsense", "the BPF child sent what cannot be read: a frame of 4294967295 bytes: at most 16777216 are accepted"),
    ],
)
async def test_why_there_is_no_child(make: Callable[..., Made], behaviour: str, reason: str) -> None:
    made = make(behaviour, {})
    with pytest.raises(SourceError) as failure:
        await made.source.collect(time.time())
    assert str(failure.value) == reason
    with pytest.raises(SourceError, match="^" + reason[:20].replace("(", r"\(")):
        await made.source.collect(time.time())
    assert ("aie_agent_bpf_starts_total", (), 1.0) in list(made.source.counts()), "started again without a pause"


async def test_a_silent_child_is_killed_and_said_to_be_so(make: Callable[..., Made]) -> None:
    made = make("silent", {}, silent_after_s=0.3)
    # A host that stands still for so long finds the first one silent at once; another comes.
    await made.until(lambda: made.runner.health.state == "up")
    pid = made.child_pid()
    await made.until(lambda: made.runner.health.state == "down")
    assert made.runner.health.reason is not None
    assert made.runner.health.reason.startswith("the BPF child said nothing for")
    assert Procfs().start_ticks(pid) is None


async def test_a_command_that_is_not_there(make: Callable[..., Made]) -> None:
    child = Child(["/nonexistent/python"])
    with pytest.raises(ChildError, match="cannot be started"):
        await child.start()
    await child.close()


async def test_the_child_ends_with_its_pipe(make: Callable[..., Made]) -> None:
    made = make("works", {})
    await made.runner.collect_once()
    pid = made.child_pid()
    await made.source.close()
    assert Procfs().start_ticks(pid) is None


def test_pauses_grow_to_a_minute_and_shrink_after_a_good_child() -> None:
    asyncio.run(_pauses())


async def _pauses() -> None:
    now_s = 0.0
    keeper = Keeper(command("crashes"), lambda: now_s)
    starts = []
    while len(starts) < 9:
        before = keeper.starts
        with pytest.raises(ChildError):
            await keeper.child()
        if keeper.starts > before:
            starts.append(now_s)
        now_s += 0.5
    pauses = [later - earlier for earlier, later in pairwise(starts)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]


def test_there_is_no_source_where_the_host_does_not_allow_it() -> None:
    procfs = Procfs()
    engines = Engines(procfs.start_ticks)
    unmet = [Prerequisite("privilege", False, "not held by user 1000", "run as root"), Prerequisite("BCC", True, "installed", "")]
    probes = build(BpfSection(), engines, procfs, 60.0, found=unmet)
    assert isinstance(probes, NoProbes)
    (coverage,) = probes.coverage("chat")
    assert (coverage.state, coverage.reason, coverage.remedy) == ("off", "privilege: not held by user 1000", "run as root")
    switched_off = build(BpfSection(enabled=False), engines, procfs, 60.0, found=[])
    assert isinstance(switched_off, NoProbes)
    assert "bpf.enabled" in switched_off.coverage("chat")[0].reason
    assert isinstance(build(BpfSection(), engines, procfs, 60.0, found=[unmet[1]]), BpfSource)
