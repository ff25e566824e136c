"""Stacks of real processes, read by the real py-spy."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from aie_agent.stacks import py_spy
from aie_agent.stacks.model import Dump, Thread
from aie_agent.stacks.py_spy import StacksError, dump
from aie_agent.stacks.waiting import line_of, place, waiters
from tests.fakes.privilege import public_directory, unprivileged
from tests.fakes.stack_programs import line_of as line_in_program
from tests.fakes.stack_programs import running

NOW_S = 1000.0
PTRACE_SEIZE = 0x4206
WAIT_FOR_THREADS = 0x40000000  # __WALL


@pytest.fixture(autouse=True, scope="module")
def _may_read_memory() -> None:
    """Where the host lets nobody read the memory of another process, there is nothing to test here."""
    with running("spin") as (process, _):
        try:
            dump(process.pid, NOW_S)
        except StacksError as error:
            if error.reason == "no_privilege":
                pytest.skip(str(error))
            raise


def thread(found: Dump, name: str) -> Thread:
    return next(each for each in found.threads if each.name == name)


def until(condition: object, timeout_s: float = 60.0) -> object:
    """What `condition()` gives once it is true: threads need a moment to get where they wait."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    pytest.fail("not in time")


def pythons() -> Iterator[str]:
    """Every CPython from 3.9 on that this machine has, in PATH or beside the one that runs."""
    yield sys.executable
    beside = Path(sys.base_prefix).parent
    for minor in range(9, 15):
        for found in (shutil.which(f"python3.{minor}"), *beside.glob(f"*/bin/python3.{minor}")):
            if found is not None and subprocess.run([found, "-c", ""], capture_output=True, check=False).returncode == 0:
                yield os.path.realpath(found)


def test_who_waits_for_a_lock_and_who_is_inside() -> None:
    wanted, critical = line_in_program("wanted"), line_in_program("critical")
    with running("fight") as (process, _):

        def look() -> Dump | None:
            found = dump(process.pid, NOW_S)
            groups = waiters(found)
            return found if groups and len(groups[0].threads) == 3 and groups[0].inside is not None else None

        found = until(look)
        assert isinstance(found, Dump)
        (group,) = waiters(found)
        assert (group.place.file, group.place.line, group.place.function) == ("stack_programs.py", wanted, "work")
        assert group.inside is not None
        holder, where = group.inside
        assert where.line == critical
        assert {*group.threads, holder.name} == {f"worker-{number}" for number in range(4)}
        assert line_of([found], (process.pid, group.futex)) == group.place
        assert found.tgid == process.pid
        assert found.time_s == NOW_S
        assert {each.tid for each in found.threads} == {int(tid) for tid in os.listdir(f"/proc/{process.pid}/task")}


def test_a_hostile_name_is_made_safe() -> None:
    with running("fight") as (process, _):
        found = dump(process.pid, NOW_S)
        (idle,) = [each for each in found.threads if each.name.startswith("idle")]
        assert idle.name.isprintable()
        assert place(idle) is None, "a thread that waits for work waits nowhere of interest"


@pytest.mark.parametrize("python", sorted(set(pythons())))
def test_every_python_here_can_be_read(python: str) -> None:
    with running("spin", python) as (process, _):
        found = dump(process.pid, NOW_S)
        main, idle = thread(found, "MainThread"), thread(found, "idle")
        assert main.tid == process.pid
        assert {idle.tid} == {int(tid) for tid in os.listdir(f"/proc/{process.pid}/task")} - {process.pid}
        assert idle.futex is not None
        assert [frame.function.rpartition(".")[2] for frame in main.frames][-1] == "<module>"
        assert (where := place(main)) is not None
        assert where.file == "stack_programs.py"


def test_threads_in_a_container_are_known_by_the_hosts_tids() -> None:
    """They know themselves by those of their own namespace."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-pf", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no pid namespace can be made here")
    with running("spin", unshare, "-pf", "--kill-child", sys.executable) as (process, _):
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        tgid = int(children[0])
        found = dump(tgid, NOW_S)
        assert {each.tid for each in found.threads} == {int(name) for name in os.listdir(f"/proc/{tgid}/task")}
        assert all(each.state for each in found.threads)


def test_a_stopped_process_can_be_read() -> None:
    with running("fight") as (process, _):
        process.send_signal(signal.SIGSTOP)
        until(lambda: {each.state for each in dump(process.pid, NOW_S).threads} == {"T"})
        first, second = dump(process.pid, NOW_S), dump(process.pid, NOW_S)
        assert [each.frames for each in first.threads] == [each.frames for each in second.threads]


def test_nothing_is_ever_stopped() -> None:
    """A thread has one tracer at most. The target's threads have one already, us, who stop nothing: whoever would stop them to look
    at them fails, which is shown by py-spy's other way."""
    libc = ctypes.CDLL(None, use_errno=True)
    with running("spin") as (process, _):
        tids = [int(name) for name in os.listdir(f"/proc/{process.pid}/task")]
        seized = [tid for tid in tids if libc.ptrace(PTRACE_SEIZE, tid, None, None) == 0]
        try:
            if seized != tids:
                pytest.skip(f"this host does not let us trace: {os.strerror(ctypes.get_errno())}")
            blocking = [str(py_spy.find()), "dump", "--pid", str(process.pid)]
            stopping = subprocess.run(blocking, capture_output=True, check=False, timeout=60)
            assert stopping.returncode != 0, "py-spy's default stops the process, so this test tells the two apart"
            for _ in range(5):
                assert thread(dump(process.pid, NOW_S), "MainThread").frames
        finally:
            process.kill()
            for tid in seized:
                if tid != process.pid:  # a process can only be waited for once its tracer has waited for its threads
                    os.waitpid(tid, WAIT_FOR_THREADS)


def test_no_look_finds_it_stopped() -> None:
    states, done = set(), threading.Event()
    with running("spin") as (process, _):

        def watch() -> None:
            while not done.is_set():
                text = Path(f"/proc/{process.pid}/status").read_text()
                fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
                states.add((fields["State"].split()[0], fields["TracerPid"].strip()))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(10):
                dump(process.pid, NOW_S)
        finally:
            done.set()
            watcher.join()
    assert states
    assert not [each for each in states if each[0] in "Tt" or each[1] != "0"]


def test_what_is_no_python() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "sleep\n")
            with pytest.raises(StacksError, match=f"process {process.pid} is no Python process") as caught:
                dump(process.pid, NOW_S)
            assert caught.value.reason == "not_python"
        finally:
            process.kill()


def test_what_is_not_there_and_what_is_a_zombie() -> None:
    process = subprocess.Popen(["true"])
    try:
        until(lambda: b") Z " in Path(f"/proc/{process.pid}/stat").read_bytes())
        with pytest.raises(StacksError) as caught:
            dump(process.pid, NOW_S)
        assert caught.value.reason == "gone"
    finally:
        process.wait()
    with pytest.raises(StacksError) as caught:
        dump(process.pid, NOW_S)
    assert caught.value.reason == "gone"


@pytest.mark.parametrize("after_s", [0.0, 0.003, 0.006, 0.012])
def test_a_process_that_ends_while_it_is_looked_at(after_s: float) -> None:
    with running("spin") as (process, _):
        killer = threading.Timer(after_s, process.kill)
        killer.start()
        with pytest.raises(StacksError) as caught:  # noqa: PT012
            while True:
                dump(process.pid, NOW_S)
        killer.join()
        assert caught.value.reason == "gone"


def test_the_memory_of_others_may_not_be_read() -> None:
    program = py_spy.find()
    assert program is not None
    with running("spin") as (process, _), public_directory() as directory:
        shutil.copy(program, directory / "py-spy")
        tgid = process.pid if os.geteuid() == 0 else 1
        with unprivileged(), pytest.raises(StacksError, match="run as root") as caught:
            dump(tgid, NOW_S, program=directory / "py-spy")
        assert caught.value.reason == "no_privilege"


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("text", "reason", "words"),
    [
        ("exec sleep 60", "too_long", "took too long"),
        ("exec sleep 60 >&- 2>&-", "too_long", "took too long"),
        ("exec yes", "too_large", "larger than 16 MiB"),
        ("echo '[{'", "failed", "is not understood"),
        ("echo '\\033[31mAn error' >&2; exit 3", "failed", "An error"),
        ("exit 3", "failed", "it says nothing"),
        ("echo 'Error: Unsupported version of Python: 3.99.1' >&2; exit 1", "version", "runs Python 3.99.1"),
    ],
)
def test_a_py_spy_that_misbehaves(tmp_path: Path, text: str, reason: str, words: str) -> None:
    program = script(tmp_path / "py-spy", text)
    others = set(psutil.Process().children())  # of tests before this one, in this process
    with pytest.raises(StacksError, match=words) as caught:
        dump(os.getpid(), NOW_S, time_limit_s=2.0 if reason == "too_long" else 60.0, program=program)
    assert caught.value.reason == reason
    assert str(caught.value).isprintable()
    assert set(psutil.Process().children()) <= others, "it is left, if only as a zombie"


def test_what_makes_no_sense_at_first_is_tried_again(tmp_path: Path) -> None:
    once = tmp_path / "once"
    program = script(
        tmp_path / "py-spy", f"[ -e {once} ] && echo '[]' && exit 0; touch {once}; echo 'Failed to copy PyCodeObject' >&2; exit 1"
    )
    assert dump(os.getpid(), NOW_S, program=program).threads == ()


def test_where_py_spy_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(StacksError, match="pip install py-spy") as caught:
        dump(os.getpid(), NOW_S)
    assert caught.value.reason == "not_installed"
    program = script(tmp_path / "py-spy", "exit 1")
    assert py_spy.find() == program
