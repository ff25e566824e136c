"""Memory that a process took before its probes were there: said to be unknown; and the time in which that happens is kept short."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_ebpf.messages import Coverage, Report, Target, ToAgent
from aie_ebpf.processes import NEWS_S, Process, has_loaded_cuda
from tests.fakes.cuda_stand_in import Program, StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

# In a mount namespace of its own, where /dev has a GPU, which it opens before the program begins.
WITH_A_GPU = 'mount -t tmpfs tmpfs /dev && touch /dev/nvidia0 && exec 9</dev/nvidia0 && exec "$0"'
# Loads a library when it is told to.
LOADS = """
import ctypes, sys
print("ready", flush=True)
sys.stdin.readline()
ctypes.CDLL(sys.argv[1])
print("loaded", flush=True)
input()
"""


def memory_of(child: Child, tgid: int) -> Coverage:
    """What is said of cuda_memory, as soon as it is."""

    def rows(message: ToAgent) -> list[Coverage]:
        told = (message.coverage or ()) if isinstance(message, Report) else ()
        return [row for row in told if (row.tgid, row.set) == (tgid, "cuda_memory")]

    return rows(child.until(lambda message: bool(rows(message))))[0]


def test_what_was_taken_before_is_said_to_be_unknown(stand_in: StandIn, tmp_path: Path) -> None:
    with (
        stand_in.start("engine") as fresh,
        Program(["unshare", "--mount", "sh", "-c", WITH_A_GPU, str(stand_in.program("engine"))]) as begun,
        running_child("--period", "0.3", "--budget", "1", log=tmp_path / "stderr") as child,
    ):
        child.watch(fresh.tgid)
        row = memory_of(child, fresh.tgid)
        assert (row.state, row.missing) == ("on", ())
        child.watch(fresh.tgid, begun.tgid)
        row = memory_of(child, begun.tgid)
        assert row.state == "part"
        assert re.fullmatch(r"what it took before \d\d:\d\d:\d\d is not known", row.missing[-1])
        begun.step()
        child.until(lambda message: isinstance(message, Report) and any(each.cuda for each in message.processes))


@pytest.fixture
def loader(stand_in: StandIn) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", LOADS, str(stand_in.driver)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def load(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "loaded\n"


def test_a_driver_that_is_loaded_later_is_seen_at_the_next_period(loader: subprocess.Popen[str]) -> None:
    """Once: then the process is looked at, and has its probes."""
    process = Process(Target(engine="chat", tgid=loader.pid, start_ticks=0))
    assert not has_loaded_cuda(process, 100.0)
    load(loader)
    assert has_loaded_cuda(process, 101.0)
    assert not has_loaded_cuda(process, 102.0)


def test_after_a_minute_it_is_looked_at_when_it_is_its_turn(loader: subprocess.Popen[str]) -> None:
    process = Process(Target(engine="chat", tgid=loader.pid, start_ticks=0))
    assert not has_loaded_cuda(process, 100.0)
    load(loader)
    assert not has_loaded_cuda(process, 100.0 + NEWS_S)


def test_one_that_is_gone_has_no_news(loader: subprocess.Popen[str]) -> None:
    process = Process(Target(engine="chat", tgid=loader.pid, start_ticks=0))
    loader.kill()
    loader.wait()
    assert not has_loaded_cuda(process, 100.0)
