"""Records of /proc by descriptors that are kept, of real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from aie_agent.namesakes import ProcessId
from aie_agent.sources.kept_files import KeptRecords
from aie_agent.sources.process_reader import ProcessReader
from aie_agent.sources.procfs import Procfs, read_record


def _open_files() -> set[str]:
    """What of /proc this process holds open."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:  # the listing itself
            continue
    return {path for path in found if path.startswith("/proc/")}


@pytest.fixture(name="sleeper")
def fixture_sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that says nothing and ends with its input."""
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_a_record_that_is_kept_says_what_the_path_says(sleeper: subprocess.Popen[bytes]) -> None:
    kept = KeptRecords()
    path = f"/proc/{sleeper.pid}/schedstat"
    for _ in range(3):
        before = after = None
        while before is None or before != after:  # it begins to run only now, and its record counts that
            before, told, after = read_record(path), kept.read(sleeper.pid, path), read_record(path)
        assert told == before
    own = f"/proc/self/task/{threading.get_native_id()}/status"
    before = kept.read(os.getpid(), own)
    time.sleep(0.001)  # one more switch of context
    assert before != kept.read(os.getpid(), own)
    assert (kept.count(sleeper.pid), kept.count(os.getpid()), len(kept)) == (1, 1, 2)
    kept.only(())
    assert len(kept) == 0


def test_of_a_process_that_ended_it_is_gone_and_its_files_are_closed(sleeper: subprocess.Popen[bytes]) -> None:
    kept = KeptRecords()
    path = f"/proc/{sleeper.pid}/stat"
    assert kept.read(sleeper.pid, path) is not None
    assert path in _open_files()
    sleeper.kill()
    sleeper.wait()
    assert kept.read(sleeper.pid, path) is None
    assert path not in _open_files()
    assert len(kept) == 0


def test_who_has_the_number_of_one_that_ended_is_another(sleeper: subprocess.Popen[bytes]) -> None:
    """Its path leads to the new one: stood in for by a path that leads to another process from now on."""
    kept = KeptRecords()
    path = f"/proc/{sleeper.pid}/stat"
    assert kept.read(sleeper.pid, path) is not None
    sleeper.kill()
    sleeper.wait()
    kept._kept[sleeper.pid][f"/proc/{os.getpid()}/stat"] = kept._kept[sleeper.pid].pop(path)
    content = kept.read(sleeper.pid, f"/proc/{os.getpid()}/stat")
    assert content is not None
    assert content.startswith(b"%d " % os.getpid())
    kept.only(())


def test_only_so_many_are_kept() -> None:
    kept = KeptRecords(most=2)
    for name in ("stat", "schedstat", "statm"):
        assert kept.read(os.getpid(), f"/proc/{os.getpid()}/{name}")
    assert len(kept) == 2
    assert not any(path.endswith("/statm") for path in _open_files())
    kept.only(())


def test_a_reader_closes_the_files_of_who_ended_and_all_at_its_end(sleeper: subprocess.Popen[bytes]) -> None:
    procfs, before = Procfs(), _open_files()
    reader = ProcessReader(procfs)
    processes = [ProcessId(pid, procfs.start_ticks(pid) or 0) for pid in (sleeper.pid, os.getpid())]
    readings, refusals = reader.read(processes, 100.0, 100.0)
    assert [reading.process for reading in readings] == processes
    assert not refusals
    opened = _open_files() - before
    held = {path for path in opened if path.startswith((f"/proc/{sleeper.pid}/", f"/proc/{os.getpid()}/"))}
    assert {f"/proc/{sleeper.pid}/stat", f"/proc/{sleeper.pid}/task/{sleeper.pid}/schedstat"} <= held
    sleeper.kill()
    sleeper.wait()
    readings, _ = reader.read(processes, 101.0, 101.0)
    assert [reading.process.tgid for reading in readings] == [os.getpid()]
    assert not any(path.startswith(f"/proc/{sleeper.pid}/") for path in _open_files())
    reader.close()
    assert not _open_files() & held
