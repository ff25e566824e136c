"""The part of the fault lab that runs inside another process: loaded by Python itself, obeying through a socket."""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from fakes.cause_world import BEGIN_S
from fakes.engine_world import EngineWorld

from aie_agent.analysis.engine_causes.out_of_memory import cuda_oom
from tests.faultlab.__main__ import chosen
from tests.faultlab.host_load import read
from tests.unit.hooks.hook_receivers import UnixReceiver, events

INSIDE = Path(__file__).parents[2] / "faultlab" / "inside"
MIB = 1 << 20


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    path = tmp_path / "inside.sock"
    environment = os.environ | {"PYTHONPATH": str(INSIDE), "AIE_FAULTLAB_SOCKET": str(path)}
    told = "import os; print('AIE_FAULTLAB_SOCKET' in os.environ, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", told], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"False\n", "what it starts itself is not broken, too"
        yield process, path
        process.kill()


def tell(path: Path, **command: object) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(path))
        connection.sendall(json.dumps(command).encode() + b"\n")
        return connection.makefile().readline().strip()


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def until_resident(pid: int, at_least: int) -> None:
    while resident_bytes(pid) < at_least:
        time.sleep(0.02)


def test_memory_is_taken_until_there_is_enough_and_kept(victim: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, path = victim
    before = resident_bytes(process.pid)
    assert tell(path, fault="native_kept", begins=True, mb_per_s=200.0, most_mb=40.0) == "done"
    until_resident(process.pid, before + 40 * MIB)
    assert tell(path, fault="native_kept", begins=False) == "done"
    assert resident_bytes(process.pid) < before + 80 * MIB


def test_memory_that_is_released_goes(victim: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, path = victim
    before = resident_bytes(process.pid)
    assert tell(path, fault="released", begins=True, megabytes=50, held_s=60.0) == "done"
    until_resident(process.pid, before + 50 * MIB)
    assert tell(path, fault="released", begins=False) == "done"
    assert resident_bytes(process.pid) < before + 25 * MIB


def test_a_hog_computes_until_it_is_told_to_stop(victim: tuple[subprocess.Popen[bytes], Path]) -> None:
    process, path = victim
    assert tell(path, fault="gil_hog", begins=True, threads=1) == "done"
    used = read(process.pid).ours
    while read(process.pid).ours < used + 10:
        time.sleep(0.02)
    assert tell(path, fault="gil_hog", begins=False) == "done"
    while len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 2:  # the main thread, and the one that obeys
        time.sleep(0.02)


def test_what_cannot_be_done_is_said_and_the_next_command_is_obeyed(victim: tuple[subprocess.Popen[bytes], Path]) -> None:
    _, path = victim
    assert "KeyError: 'nonesuch'" in tell(path, fault="nonesuch", begins=True)
    assert "TypeError" in tell(path, fault="gil_hog", begins=True, fingers=3)
    assert "KeyError: 'gil_hog'" in tell(path, fault="gil_hog", begins=False), "it never began"
    assert tell(path, fault="gil_hog", begins=True, threads=1) == "done"


def test_who_filled_the_gpu_is_what_the_rule_makes_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(INSIDE)
    breakage = importlib.import_module("breakage")
    socket_path = tmp_path / "statsd.sock"
    receiver, heard = UnixReceiver(socket_path), []
    with breakage.cuda_out_of_memory(f"unix://{socket_path}", "e", every_s=0.01):
        while len(heard) < 3:
            heard += events(receiver)
            time.sleep(0.01)
    receiver.close()
    found = EngineWorld(events=[msgspec.structs.replace(each, time_s=BEGIN_S) for each in heard]).engine(cuda_oom)
    assert found is not None
    (fault,) = chosen(("cuda-oom",))
    assert fault.answer is not None
    assert fault.answer.amiss(msgspec.structs.replace(found, subject=fault.answer.subject)) == ()
