"""Native stacks of real threads that wait, read from /proc: held against what the program is known to do, and against gdb."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from aie_agent.stacks.native.code import CodeFiles, ProcessCode
from aie_agent.stacks.native.standing import waiting_now
from aie_agent.stacks.native.unwind import MACHINES, By, Copy, End, walk
from aie_agent.stacks.native.waits import NativeWait, resolve
from aie_ebpf.messages import LockStack
from tests.fakes.compiled import tool
from tests.fakes.lock_programs import CPP_LIBRARY, OPTIMISED, WITHOUT_TABLES, build, running, strip

MACHINE = os.uname().machine
THREADS = 3
HIDDEN = '-DHIDDEN=__attribute__((visibility("hidden")))'


def standing(tgid: int, threads: int = THREADS) -> tuple[LockStack, ...]:
    """The threads of a process that wait, once so many do."""
    deadline_s = time.monotonic() + 60
    while len(found := waiting_now("chat", tgid).stacks) < threads:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)
    return found


def only(tgid: int) -> NativeWait:
    (wait,) = resolve(standing(tgid)).waits
    assert wait.threads == THREADS
    assert wait.tgid == tgid
    return wait


def callers(wait: NativeWait) -> list[tuple[str, str]]:
    return [(each.module, each.function) for each in wait.callers]


def test_optimised_code_without_frame_pointers(tmp_path: Path) -> None:
    with running(build(tmp_path), "stuck") as tgid:
        wait = only(tgid)
    assert wait.leaf == "pthread_mutex_lock"
    assert callers(wait) == [("libworks.so", "hold"), ("libworks.so", "work"), ("waiting", "busy")]
    assert wait.by == {By.TABLE}
    assert wait.end is End.ROOT
    called = r"libworks\.so \(hold\+0x\w+\), libworks\.so \(work\+0x\w+\), waiting \(busy\+0x\w+\)"
    assert re.fullmatch(rf"3 threads wait in pthread_mutex_lock, called by {called}", wait.text)


def test_a_stripped_file_is_told_by_offsets_into_it(tmp_path: Path) -> None:
    """The offset lies in the function that the symbol table, before it was taken away, has there."""
    program = build(tmp_path, *OPTIMISED, HIDDEN)
    symbols = subprocess.run([tool("nm"), "-S", tmp_path / "libworks.so"], capture_output=True, text=True, check=True).stdout
    begin, size = (int(word, 16) for word in re.search(r"^(\w+) (\w+) t hold$", symbols, re.MULTILINE).groups())  # type: ignore[union-attr]
    strip(program)
    strip(tmp_path / "libworks.so")
    with running(program, "stuck") as tgid:
        wait = only(tgid)
    assert callers(wait) == [("libworks.so", ""), ("libworks.so", "work"), ("waiting", "")]
    assert begin < wait.callers[0].offset <= begin + size
    assert wait.leaf == "pthread_mutex_lock"


def test_a_mutex_of_cpp(tmp_path: Path) -> None:
    with running(build(tmp_path, "-O2", source=CPP_LIBRARY, compiler="g++"), "stuck") as tgid:
        wait = only(tgid)
    assert wait.leaf == "pthread_mutex_lock"
    assert [module for module, _ in callers(wait)] == ["libworks.so", "libworks.so", "waiting"]
    assert callers(wait)[1][1] == "work"


def test_a_lock_that_asks_the_kernel_itself(tmp_path: Path) -> None:
    with running(build(tmp_path, *OPTIMISED, "-DOWN_LOCK"), "stuck") as tgid:
        wait = only(tgid)
    assert wait.leaf == "syscall"
    assert callers(wait)[:2] == [("libworks.so", "hold"), ("libworks.so", "work")]


def test_code_without_tables_that_keeps_frame_pointers(tmp_path: Path) -> None:
    """libc's own tables keep the frame pointer of those that called it, so that it leads on."""
    flags = ("-O1", "-fno-omit-frame-pointer", *WITHOUT_TABLES, "-Wl,--no-eh-frame-hdr")
    with running(build(tmp_path, *flags), "stuck") as tgid:
        found = resolve(standing(tgid)).waits
    assert {wait.leaf for wait in found} == {"pthread_mutex_lock"}
    assert all(callers(wait)[0] == ("libworks.so", "hold") for wait in found)


def test_code_without_tables_or_frame_pointers_is_guessed_and_says_so(tmp_path: Path) -> None:
    flags = (*OPTIMISED, *WITHOUT_TABLES, "-Wl,--no-eh-frame-hdr")
    with running(build(tmp_path, *flags), "stuck") as tgid:
        wait = only(tgid)
    assert callers(wait)[0] == ("libworks.so", "hold"), "the C library's tables lead there"
    assert ("libworks.so", "work") in callers(wait)
    assert By.SCAN in wait.by
    assert wait.text.endswith("(in part a guess)")


@pytest.mark.skipif(shutil.which("gdb") is None, reason="there is no gdb")
@pytest.mark.parametrize("flags", [OPTIMISED, (*OPTIMISED, "-DOWN_LOCK"), ("-O0",), ("-O3", "-fno-plt", HIDDEN)], ids=" ".join)
def test_every_address_is_gdbs(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with running(build(tmp_path, *flags), "stuck") as tgid:
        stacks = standing(tgid)
        theirs = _gdb(tgid)
        with CodeFiles() as files:
            code = ProcessCode(tgid, files)
            for each in stacks:
                ours = walk(MACHINES[MACHINE], each.pc, each.registers, Copy(each.sp, each.stack), code)
                assert [frame.address for frame in ours.frames] == theirs[each.tid]
                assert ours.end is End.ROOT
                guessed = By.SCAN in {frame.by for frame in ours.frames}
                assert guessed == ("-O0" in flags), "it needs a register that /proc has not"


def _gdb(tgid: int) -> dict[int, list[int]]:
    """The program counters of each thread's frames, the innermost first."""
    command = [tool("gdb"), "-nx", "-batch", "-p", str(tgid), "-ex", "thread apply all bt -frame-info location-and-address"]
    environment = os.environ | {"DEBUGINFOD_URLS": ""}
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment).stdout
    found: dict[int, list[int]] = {}
    for line in told.splitlines():
        if thread := re.search(r"\(LWP (\d+)\)", line):
            current = found.setdefault(int(thread[1]), [])
        elif frame := re.match(r"#\d+ +(0x[0-9a-f]+)", line):
            current.append(int(frame[1], 16))
    # Where the C library's debug information is installed, gdb shows what was inlined as frames of their own.
    return {tid: [address for address, _ in itertools.groupby(addresses)] for tid, addresses in found.items()}


def test_a_process_that_ended_in_between(tmp_path: Path) -> None:
    with running(build(tmp_path), "stuck") as tgid:
        stacks = standing(tgid)
    found = resolve(stacks)
    assert found.waits == ()
    assert found.problems == (f"process {tgid} ended before its native stacks were told",)
    assert waiting_now("chat", tgid) == (tgid, (), 0)


def test_a_stack_that_was_overwritten_tells_less_and_nothing_wrong(tmp_path: Path) -> None:
    """Whatever its bytes are: the innermost function is known, and nothing fails."""
    with running(build(tmp_path), "stuck", 1) as tgid:
        (stack,) = standing(tgid, 1)
        for byte in (0x00, 0x41, 0xFF):
            found = resolve([_with(stack, bytes([byte]) * len(stack.stack))])
            assert [each.threads for each in found.waits] == [1]
            assert found.waits[0].callers == ()
            assert found.waits[0].end in (End.ROOT, End.LOST)
        (cut,) = resolve([_with(stack, stack.stack[:8])]).waits
    assert cut.end is End.CUT
    assert "beyond what was copied" in cut.text


def _with(stack: LockStack, data: bytes) -> LockStack:
    return LockStack(
        engine=stack.engine,
        tgid=stack.tgid,
        tid=stack.tid,
        address=stack.address,
        pc=stack.pc,
        sp=stack.sp,
        registers={},
        stack=data,
    )


def test_a_file_of_a_hostile_name(tmp_path: Path) -> None:
    program = build(tmp_path)
    hostile = program.rename(tmp_path / "wait\x1b[31m\ning")
    with running(hostile, "stuck") as tgid:
        wait = only(tgid)
    assert wait.callers[2].module == "wait?[31m?ing"
    assert wait.text.isprintable()


def test_a_library_that_was_deleted_is_told_as_before(tmp_path: Path) -> None:
    with running(build(tmp_path), "stuck") as tgid:
        (tmp_path / "libworks.so").unlink()
        wait = only(tgid)
    assert callers(wait)[:2] == [("libworks.so", "hold"), ("libworks.so", "work")]


def test_a_python_lock_is_told_as_pythons() -> None:
    code = (
        "import threading\nlock = threading.Lock()\nlock.acquire()\n"
        "for _ in range(3): threading.Thread(target=lock.acquire, daemon=True).start()\nprint('ready', flush=True)\ninput()"
    )
    command = [shutil.which("python3") or "python3", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as python:
        assert python.stdout is not None
        assert python.stdout.readline() == "ready\n"
        wait = only(python.pid)
        python.kill()
    assert wait.by_python
    assert wait.callers == ()
    assert wait.text.endswith("called by Python's interpreter")


def test_what_is_found_is_limited_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    """The main thread, which comes first, waits for no lock and does not count."""
    with running(build(tmp_path), "stuck") as tgid:
        (address,) = {each.address for each in standing(tgid)}
        assert len(waiting_now("chat", tgid, (address,)).stacks) == THREADS
        assert waiting_now("chat", tgid, (address + 8,)) == (tgid, (), 0)
        found = waiting_now("chat", tgid, most=2)
    assert len(found.stacks) == 2
    assert found.left_out == 1
    assert found.problem == f"1 threads of process {tgid} were not looked at, as 2 that wait were found before"


def test_it_ends_in_time_and_says_so(tmp_path: Path) -> None:
    """A clock that goes on a second at each look: the first stacks are told, without names at last."""
    with running(build(tmp_path), "stuck") as tgid:
        stacks = standing(tgid)
        for seconds, threads in ((1.0, 0), (3.0, 1), (5.0, 3)):
            ticks = itertools.count()
            found = resolve(stacks, within_s=seconds, clock=lambda ticks=ticks: float(next(ticks)))  # type: ignore[misc]
            assert sum(each.threads for each in found.waits) == threads
            assert found.problems == (f"native stacks took longer than {seconds:g} s: the rest is not told",)
            assert not any(place.function for each in found.waits for place in each.callers)
        assert resolve(stacks, within_s=1.0, clock=lambda: 0.0).problems == ()
