"""The processes of engines: real ones against psutil, and in a tree those that come, go, hide and are too many."""

# ruff: noqa: ASYNC222 - nothing else runs on a test's event loop

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from fakes.batches import assert_in_catalogue, value
from fakes.privilege import public_directory, unprivileged
from fakes.proc_tree import ProcTree

from aie_agent.identity import Engines, Origin
from aie_agent.samples import Batch
from aie_agent.sources.base import SourceError
from aie_agent.sources.process import ProcessSource
from aie_agent.sources.process_reader import TASKS_PER_CYCLE
from aie_agent.sources.procfs import Procfs

HERTZ = os.sysconf("SC_CLK_TCK")
NO_CGROUPS = Path("/nowhere")


class Watched:
    """An agent's view of a tree: engines, and the source over them."""

    def __init__(self, tree: ProcTree, cgroup_root: Path = NO_CGROUPS) -> None:
        self.tree = tree
        self.procfs = Procfs(tree.root)
        self.engines = Engines(self.procfs.start_ticks)
        self.source = ProcessSource(self.engines, self.procfs, cgroup_root)
        self.now_s = 1_700_000_000.0

    def declare(self, engine: str, *tgids: int) -> None:
        for tgid in tgids:
            assert self.engines.declare(engine, Origin.STATSD, tgid) == engine

    async def after(self, seconds: float) -> Batch:
        """What a collection brings so many seconds later."""
        uptime_s = self.procfs.uptime_s()
        assert uptime_s is not None
        self.tree.uptime(uptime_s + seconds)
        self.now_s += seconds
        batch = await self.source.collect(self.now_s)
        assert_in_catalogue(batch)
        return batch


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(ProcTree(tmp_path / "proc"))


async def test_the_dear_file_of_a_process_that_did_nothing_is_read_every_ten_seconds(watched: Watched) -> None:
    watched.tree.process(10, anon_kib=1024)
    watched.declare("e", 10)
    await watched.after(1)
    status = watched.tree.root / "10/status"
    status.write_text(status.read_text().replace("1024 kB", "4096 kB"))

    async def anon_bytes(seconds: float) -> float | None:
        return value(await watched.after(seconds), "aie_process_resident_anon_bytes", engine="e")

    assert await anon_bytes(1) == 1024 * 1024, "its stat says that nothing happened"
    assert await anon_bytes(10) == 4096 * 1024
    watched.tree.process(10, anon_kib=8192)
    assert await anon_bytes(1) == 8192 * 1024, "its stat says that it has grown"


async def test_since_when_a_process_is_stopped(watched: Watched) -> None:
    watched.tree.process(10)
    watched.declare("e", 10)
    await watched.after(1)
    for seconds, state in ((1, "S"), (1, "T"), (5, "T")):
        watched.tree.process(10, state=state)
        await watched.after(seconds)
    (row,) = watched.source.rows("e")
    assert (row.state, watched.now_s - row.state_since_s) == ("T", pytest.approx(5.0))
    watched.now_s += 3600.0
    await watched.after(1)
    (row,) = watched.source.rows("e")
    assert watched.now_s - row.state_since_s == pytest.approx(6.0), "a clock that was set does not make it longer"
    watched.tree.process(10, state="R")
    await watched.after(1)
    (row,) = watched.source.rows("e")
    assert (row.state, row.state_since_s) == ("R", pytest.approx(watched.now_s))


async def test_the_start_of_an_engine_is_that_of_its_oldest_process(watched: Watched) -> None:
    async def began(seconds: float) -> float:
        seen = value(await watched.after(seconds), "aie_process_start_time_seconds", engine="e")
        assert seen is not None
        return seen

    watched.tree.process(10, start=50_000)
    watched.tree.process(20, start=50_000 + 7 * HERTZ)
    watched.declare("e", 10, 20)
    first = await began(1)
    assert first == round(first)
    watched.tree.process(20, start=50_000 + 9 * HERTZ)
    watched.declare("e", 20)
    assert await began(1) == first, "a worker that is replaced is no start"
    watched.tree.process(10, start=50_000 + 30 * HERTZ)
    watched.tree.process(20, start=50_000 + 31 * HERTZ)
    watched.declare("e", 10, 20)
    assert await began(1) == pytest.approx(first + 30, abs=1)


class TestSums:
    async def test_an_engine_is_the_sum_of_its_processes(self, watched: Watched) -> None:
        watched.tree.process(
            10, user=100, system=50, major_faults=3, anon_kib=1000, threads={10: (10**9, 1, 2), 11: (2 * 10**9, 3, 4)}
        )
        watched.tree.process(20, user=200, system=60, major_faults=4, anon_kib=2000, threads={20: (4 * 10**9, 5, 6)})
        watched.declare("e", 10, 20)
        batch = await watched.after(1)
        assert (batch.source, batch.time_s) == ("process", watched.now_s)
        assert value(batch, "aie_engine_up", engine="e") == 1
        assert value(batch, "aie_process_instances") == 2
        assert value(batch, "aie_process_threads") == 3
        assert value(batch, "aie_process_resident_anon_bytes") == 3000 * 1024
        assert value(batch, "aie_engine_memory_physical_bytes", device="cpu") == 3000 * 1024
        assert value(batch, "aie_process_resident_file_bytes") == 2 * 2048 * 1024
        assert value(batch, "aie_process_resident_shmem_bytes") == 512 * 1024, "mapped by both, and there once"
        assert value(batch, "aie_process_swap_bytes") == 2 * 64 * 1024
        assert value(batch, "aie_process_cpu_seconds_total", mode="user") == 300 / HERTZ
        assert value(batch, "aie_process_cpu_seconds_total", mode="system") == 110 / HERTZ
        assert value(batch, "aie_process_major_faults_total") == 7
        assert value(batch, "aie_process_run_queue_seconds_total") == 7
        assert value(batch, "aie_process_context_switches_total", kind="voluntary") == 9
        assert value(batch, "aie_process_context_switches_total", kind="involuntary") == 12

    async def test_what_the_kernel_does_not_tell_is_absent(self, watched: Watched) -> None:
        watched.tree.process(10)
        (watched.tree.root / "10/task/10/schedstat").unlink()
        watched.declare("e", 10)
        batch = await watched.after(1)
        assert value(batch, "aie_process_run_queue_seconds_total") is None
        assert value(batch, "aie_process_context_switches_total", kind="voluntary") == 0
        assert value(batch, "aie_process_cgroup_memory_bytes") is None

    async def test_an_engine_that_was_never_seen_has_no_state(self, watched: Watched) -> None:
        watched.engines.declare("configured", Origin.CONFIG)
        assert (await watched.after(1)).points == []

    async def test_two_engines_are_apart(self, watched: Watched) -> None:
        watched.tree.process(10, user=100)
        watched.tree.process(20, user=200)
        watched.declare("a", 10)
        watched.declare("b", 20)
        batch = await watched.after(1)
        assert value(batch, "aie_process_cpu_seconds_total", engine="a", mode="user") == 100 / HERTZ
        assert value(batch, "aie_process_cpu_seconds_total", engine="b", mode="user") == 200 / HERTZ


class TestComingAndGoing:
    async def user_seconds(self, watched: Watched, seconds: float = 1) -> float | None:
        return value(await watched.after(seconds), "aie_process_cpu_seconds_total", mode="user")

    async def test_counters_never_fall_when_a_process_ends(self, watched: Watched) -> None:
        watched.tree.process(10, user=1000)
        watched.tree.process(20, user=500)
        watched.declare("e", 10, 20)
        assert await self.user_seconds(watched) == 1500 / HERTZ
        watched.tree.end(10)
        watched.tree.process(20, user=510)
        assert await self.user_seconds(watched) == 1510 / HERTZ

    async def test_a_process_that_was_born_meanwhile_counts_whole(self, watched: Watched) -> None:
        watched.tree.process(10, user=1000)
        watched.declare("e", 10)
        await watched.after(1)
        watched.tree.process(20, user=7, start=int(1001.5 * HERTZ))
        watched.declare("e", 20)
        assert await self.user_seconds(watched) == 1007 / HERTZ

    async def test_an_old_process_that_is_found_late_makes_no_jump(self, watched: Watched) -> None:
        watched.tree.process(10, user=1000)
        watched.tree.process(20, user=900_000, start=5)
        watched.declare("e", 10)
        await watched.after(1)
        watched.declare("e", 20)
        assert await self.user_seconds(watched) == 1000 / HERTZ
        watched.tree.process(20, user=900_003, start=5)
        assert await self.user_seconds(watched) == pytest.approx(1003 / HERTZ)

    async def test_an_engine_that_restarts_goes_on_counting(self, watched: Watched) -> None:
        watched.tree.process(10, user=1000)
        watched.declare("e", 10)
        await watched.after(1)
        watched.tree.end(10)
        batch = await watched.after(1)
        assert value(batch, "aie_engine_up", engine="e") == 0
        assert value(batch, "aie_process_instances", engine="e") == 0
        assert len(batch.points) == 2
        assert watched.source.rows("e") == []
        watched.tree.process(10, user=4, start=int(1002.5 * HERTZ))  # even under the same pid
        watched.engines.prune(watched.now_s)
        watched.declare("e", 10)
        batch = await watched.after(1)
        assert value(batch, "aie_engine_up", engine="e") == 1
        assert value(batch, "aie_process_cpu_seconds_total", mode="user") == 1004 / HERTZ

    async def test_a_pid_that_was_given_to_another_process_is_gone(self, watched: Watched) -> None:
        watched.tree.process(10)
        watched.declare("e", 10)
        watched.tree.process(10, start=77_777, anon_kib=9999)
        assert value(await watched.after(1), "aie_engine_up", engine="e") == 0

    async def test_who_lived_at_a_collection_is_told_once(self, watched: Watched) -> None:
        watched.tree.process(10)
        watched.tree.process(11)
        watched.declare("e", 10, 11)
        assert watched.source.just_read() == set()
        watched.tree.end(11)
        await watched.after(1.0)
        assert {each.tgid for each in watched.source.just_read()} == {10}
        assert watched.source.just_read() == set(), "no collection since"

    async def test_a_zombie_is_gone(self, watched: Watched) -> None:
        watched.tree.process(10)
        watched.declare("e", 10)
        watched.tree.process(10, state="Z")
        assert value(await watched.after(1), "aie_engine_up", engine="e") == 0

    async def test_what_ended_threads_waited_stays(self, watched: Watched) -> None:
        watched.tree.process(10, threads={10: (10**9, 1, 1), 11: (5 * 10**9, 10, 10)})
        watched.declare("e", 10)
        await watched.after(1)
        watched.tree.process(10, threads={10: (2 * 10**9, 2, 2), 12: (10**9, 3, 3)})
        batch = await watched.after(1)
        assert value(batch, "aie_process_run_queue_seconds_total") == 6 + 1 + 1
        assert value(batch, "aie_process_context_switches_total", kind="voluntary") == 11 + 1 + 3

    async def test_more_threads_than_are_read_at_once_take_turns(self, watched: Watched) -> None:
        each = TASKS_PER_CYCLE // 2 + 1  # two of them do not fit together
        tgids = [1000, 2000, 3000]

        def all_waited(seconds: int) -> None:
            for tgid in tgids:
                watched.tree.process(tgid, threads={tgid + n: (seconds * 10**9, 0, 0) for n in range(each)})

        all_waited(0)
        watched.declare("e", *tgids)
        for _ in tgids:
            await watched.after(1)
        all_waited(1)
        totals = [value(await watched.after(1), "aie_process_run_queue_seconds_total") for _ in tgids]
        assert totals == [each, 2 * each, 3 * each]

    async def test_a_process_with_too_many_threads_is_read_all_the_same(self, watched: Watched) -> None:
        watched.tree.process(10, threads={10 + n: (10**9, 0, 0) for n in range(TASKS_PER_CYCLE + 50)})
        watched.declare("e", 10)
        assert value(await watched.after(1), "aie_process_run_queue_seconds_total") == TASKS_PER_CYCLE + 50

    async def test_a_clock_that_jumps_disturbs_nothing(self, watched: Watched) -> None:
        watched.tree.process(10, user=100)
        watched.declare("e", 10)
        await watched.after(1)
        watched.now_s -= 86_400
        watched.tree.process(10, user=100 + HERTZ)
        await watched.after(2)
        (row,) = watched.source.rows("e")
        assert row.cpu_cores == pytest.approx(0.5)
        assert row.start_time_s == 1_700_000_001 - 1001 + 50_000 / HERTZ


class TestRows:
    async def test_rows(self, watched: Watched) -> None:
        watched.tree.process(20, cmdline="worker\0")
        watched.tree.process(10, user=0, cmdline="python\0-m\0" + "x" * 500 + "\0")
        watched.declare("e", 20, 10)
        await watched.after(1)
        first, second = watched.source.rows("e")
        assert (first.tgid, second.tgid) == (10, 20)
        assert first.command.startswith("python -m xxx")
        assert len(first.command) == 120
        assert first.cpu_cores is None
        assert first.resident_anon_bytes == 1024 * 1024
        watched.tree.process(10, user=3 * HERTZ, system=HERTZ)
        await watched.after(2)
        assert [row.cpu_cores for row in watched.source.rows("e")] == [2.0, 0.0]
        assert watched.source.rows("nobody") == []

    async def test_the_command_line_is_read_once(self, watched: Watched) -> None:
        watched.tree.process(10, cmdline="first\0")
        watched.declare("e", 10)
        await watched.after(1)
        watched.tree.write("10/cmdline", "second\0")
        await watched.after(1)
        assert watched.source.rows("e")[0].command == "first"


class TestCgroups:
    async def test_each_group_counts_once(self, tmp_path: Path) -> None:
        root = tmp_path / "cgroup"
        group = root / "pod"
        group.mkdir(parents=True)
        (root / "cgroup.controllers").write_text("cpu memory\n")
        (group / "cpu.max").write_text("50000 100000\n")
        (group / "cpu.stat").write_text("nr_periods 10\nnr_throttled 4\nthrottled_usec 1500000\n")
        (group / "memory.current").write_text("5000\n")
        (group / "memory.max").write_text("9000\n")
        (group / "memory.stat").write_text("anon 4000\nfile 900\nshmem 500\n")
        watched = Watched(ProcTree(tmp_path / "proc"), root)
        for tgid in (10, 20):
            watched.tree.process(tgid, cgroup="0::/pod\n")
        watched.declare("e", 10, 20)
        batch = await watched.after(1)
        assert value(batch, "aie_process_cgroup_memory_held_ratio") == 0.5
        assert value(batch, "aie_process_cgroup_throttled_seconds_total") == 1.5
        assert value(batch, "aie_process_cgroup_throttled_periods_total") == 4
        assert value(batch, "aie_process_cgroup_periods_total") == 10
        assert value(batch, "aie_process_cgroup_memory_bytes") == 5000
        assert value(batch, "aie_process_cgroup_memory_limit_bytes") == 9000
        (group / "memory.current").write_text("lots\n")
        batch = await watched.after(1)
        assert value(batch, "aie_process_cgroup_memory_bytes") is None
        assert value(batch, "aie_process_cgroup_periods_total") == 10
        assert "lots" in (watched.source.note("e") or "")


class TestWhatCannotBeSeen:
    async def test_a_process_that_may_not_be_read_is_named_and_the_others_go_on(self) -> None:
        with public_directory() as directory:
            watched = Watched(ProcTree(directory / "proc"))
            watched.tree.process(10, user=100)
            watched.tree.process(20, user=200)
            watched.declare("e", 10, 20)
            (watched.tree.root / "20/stat").chmod(0)
            watched.tree.uptime(1001)
            with unprivileged():
                batch = await watched.source.collect(5.0)
            assert value(batch, "aie_engine_up", engine="e") == 1
            assert value(batch, "aie_process_instances") == 2
            assert value(batch, "aie_process_cpu_seconds_total", mode="user") == 100 / HERTZ
            assert "process 20 cannot be read" in (watched.source.note("e") or "")
            (watched.tree.root / "20/stat").chmod(0o644)
            await watched.after(1)
            assert watched.source.note("e") is None

    async def test_threads_that_may_not_be_read_leave_the_rest(self) -> None:
        with public_directory() as directory:
            watched = Watched(ProcTree(directory / "proc"))
            watched.tree.process(10, user=100)
            watched.declare("e", 10)
            (watched.tree.root / "10/task").chmod(0)
            watched.tree.uptime(1001)
            with unprivileged():
                batch = await watched.source.collect(5.0)
            assert value(batch, "aie_process_cpu_seconds_total", mode="user") == 100 / HERTZ
            assert value(batch, "aie_process_run_queue_seconds_total") is None
            assert "threads of process 10" in (watched.source.note("e") or "")
            (watched.tree.root / "10/task").chmod(0o755)

    async def test_hidden_processes_are_said_to_be(self, watched: Watched) -> None:
        watched.tree.process(10)
        watched.declare("e", 10)
        watched.tree.end(10)
        watched.tree.end(1)
        await watched.after(1)
        assert "hidepid" in (watched.source.note("e") or "")

    async def test_without_proc_there_is_a_reason(self, tmp_path: Path) -> None:
        procfs = Procfs(tmp_path)
        with pytest.raises(SourceError, match="/proc/uptime"):
            await ProcessSource(Engines(procfs.start_ticks), procfs).collect(0.0)


@contextlib.contextmanager
def worker(threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process with so many threads and 64 MiB, that waits."""
    code = f"""
import sys, threading
memory = bytearray(b"x") * (64 << 20)
wait = threading.Event()
for _ in range({threads - 1}):
    threading.Thread(target=wait.wait, daemon=True).start()
end = sum(range(3_000_000))
print("ready", flush=True)
sys.stdin.read()
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        yield child
    finally:
        child.communicate(b"")


async def test_real_processes_agree_with_psutil() -> None:
    procfs = Procfs()
    engines = Engines(procfs.start_ticks)
    source = ProcessSource(engines, procfs)
    with worker(5) as one, worker(2) as two:
        for child in (one, two):
            engines.declare("e", Origin.STATSD, child.pid)
        batch = await source.collect(time.time())
        assert_in_catalogue(batch)
        oracles = [psutil.Process(child.pid) for child in (one, two)]
        assert value(batch, "aie_process_threads") == 7
        anon = value(batch, "aie_process_resident_anon_bytes")
        assert anon is not None
        assert anon >= 2 * (64 << 20)
        rss = sum(oracle.memory_info().rss for oracle in oracles)
        file = value(batch, "aie_process_resident_file_bytes")
        shmem = value(batch, "aie_process_resident_shmem_bytes")
        assert anon + (file or 0) + (shmem or 0) == pytest.approx(rss, rel=0.05)
        for mode in ("user", "system"):
            seconds = value(batch, "aie_process_cpu_seconds_total", mode=mode)
            assert seconds == pytest.approx(sum(getattr(oracle.cpu_times(), mode) for oracle in oracles), abs=0.05)
        began_s = min(oracle.create_time() for oracle in oracles)
        assert value(batch, "aie_process_start_time_seconds") == pytest.approx(began_s, abs=2)
        (row, _) = sorted(source.rows("e"), key=lambda row: row.tgid != one.pid)
        assert row.start_time_s == pytest.approx(oracles[0].create_time(), abs=2)
        assert row.command.startswith(sys.executable)
    engines.prune(time.time())
    assert value(await source.collect(time.time()), "aie_engine_up", engine="e") == 0


async def test_an_engine_killed_before_its_parent_notices_is_down() -> None:
    procfs = Procfs()
    engines = Engines(procfs.start_ticks)
    source = ProcessSource(engines, procfs)
    with worker(3) as child:
        engines.declare("e", Origin.STATSD, child.pid)
        assert value(await source.collect(time.time()), "aie_engine_up", engine="e") == 1
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert value(await source.collect(time.time()), "aie_engine_up", engine="e") == 0
