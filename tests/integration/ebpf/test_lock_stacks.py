"""Windows on threads that wait, with the real child: whose stacks come, and whose do not."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_agent.stacks.native.unwind import By, End
from aie_agent.stacks.native.waits import resolve
from aie_ebpf.door import Bcc, BpfError
from aie_ebpf.host import HostProbes
from aie_ebpf.lock_stacks import LockStacks
from aie_ebpf.messages import LockStack, OpenWindow, Report, Target, WindowClosed
from tests.fakes.lock_programs import OPTIMISED, build, running
from tests.integration.ebpf.bpf_child import Child, running_child

THREADS = 4
WINDOW_S = 1.0


@pytest.fixture(scope="module")
def child(bpf: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A child for all tests of this file."""
    with running_child("--period", "0.2", "--budget", "1", log=tmp_path_factory.mktemp("child") / "stderr") as started:
        yield started


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("waiting"))


def window(child: Child, *tgids: int, locks: tuple[tuple[int, int], ...] = ()) -> tuple[list[LockStack], WindowClosed]:
    """What a window on these processes saw, and how it ended."""
    child.watch(*tgids)
    child.until(lambda message: isinstance(message, Report) and {each.tgid for each in message.processes} == set(tgids))
    seen_before = len(child.messages)
    child.tell(OpenWindow(set="lock_stacks", engine="under-test", seconds=WINDOW_S, locks=locks))
    closed = child.until(lambda message: isinstance(message, WindowClosed))
    assert isinstance(closed, WindowClosed)
    reports = [message for message in child.messages[seen_before:] if isinstance(message, Report)]
    assert all(report.lost == {} for report in reports)
    return [each for report in reports for each in report.lock_stacks], closed


@pytest.mark.parametrize("flags", [OPTIMISED, (*OPTIMISED, "-DOWN_LOCK"), ("-O0", "-fno-omit-frame-pointer")], ids=" ".join)
def test_threads_that_fight_are_told_with_their_callers(child: Child, tmp_path: Path, flags: tuple[str, ...]) -> None:
    """With all registers there is no guess, whatever the compiler did."""
    with running(build(tmp_path, *flags), "fight", THREADS) as tgid:
        stacks, closed = window(child, tgid)
        (wait,) = resolve(stacks).waits
    assert wait.threads == THREADS
    assert {each.address for each in stacks} == {wait.address}
    assert wait.leaf == ("syscall" if "-DOWN_LOCK" in flags else "pthread_mutex_lock")
    named = [each.function for each in wait.callers]
    assert named[named.index("hold") :][:2] == ["hold", "work"]
    assert wait.by == {By.TABLE}
    assert wait.end is End.ROOT
    assert len(stacks) <= 2 * THREADS, "two of each thread at an address"
    assert closed.hits > len(stacks)
    assert closed.reason == ""


def test_only_the_locks_that_are_asked_for(child: Child, program: Path) -> None:
    with running(program, "fight", THREADS) as first, running(program, "fight", THREADS) as second:
        all_of_them, _ = window(child, first, second)
        addresses = {each.tgid: each.address for each in all_of_them}
        assert addresses.keys() == {first, second}
        found, _ = window(child, first, second, locks=((second, addresses[second]),))
    assert {each.tgid for each in found} == {second}
    assert all(each.engine == "under-test" for each in found)


def test_a_process_that_ends_in_the_window(child: Child, program: Path) -> None:
    with running(program, "fight", THREADS) as tgid:
        child.watch(tgid)
        child.until(lambda message: isinstance(message, Report) and any(each.tgid == tgid for each in message.processes))
        child.tell(OpenWindow(set="lock_stacks", engine="under-test", seconds=60))
        child.until(lambda message: isinstance(message, Report) and bool(message.lock_stacks))
    closed = child.until(lambda message: isinstance(message, WindowClosed))
    assert isinstance(closed, WindowClosed)
    assert closed.open_s < 60
    with running(program, "fight", THREADS) as tgid:
        assert window(child, tgid)[0], "the tracepoint can be had again"


def test_nobody_is_looked_at_without_a_window(child: Child, program: Path) -> None:
    with running(program, "fight", THREADS) as tgid:
        child.watch(tgid)
        child.until(lambda message: isinstance(message, Report) and any(each.locks for each in message.processes))
        reports = child.reports(3)
    assert all(report.lock_stacks == () for report in reports)
    assert not any(cost.set == "lock_stacks" and cost.hits for report in reports for cost in report.costs)


def test_the_childs_memory_after_windows(child: Child) -> None:
    """The budget of DESIGN 4: what compiling the set took was given back."""
    assert child.reports(1)[0].resident_bytes < 125 << 20


def test_a_process_too_many_leaves_nothing_attached(bcc: Bcc, host: HostProbes, program: Path) -> None:
    """The map of processes is full: that is said, and neither the tracepoint nor an entry stays. Then there is room again."""
    stacks = LockStacks(bcc.compile("common.h", "watched.h", "watched_there.h", "lock_stacks", defines=["SAMPLED_ENTRIES=1"]))
    with running(program, "fight", THREADS) as first, running(program, "fight", THREADS) as second:
        ends = stacks.begin(Target(engine="first", tgid=first, start_ticks=0), ())
        with pytest.raises(BpfError, match="could not be set"):
            stacks.begin(Target(engine="second", tgid=second, start_ticks=0), ())
        ends()
        host.watch(second, None, ())
        ends = stacks.begin(Target(engine="second", tgid=second, start_ticks=0), ())
        found: tuple[LockStack, ...] = ()
        for _ in range(1000):
            found += stacks.read()
            if found:
                break
            time.sleep(0.01)
        ends()
        host.forget(second)
    assert {each.engine for each in found} == {"second"}
