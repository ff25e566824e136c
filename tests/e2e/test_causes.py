"""The agent as it runs, on simulated GPUs and real processes: each fault is named once, of the right subject, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aie_agent import simulate
from aie_telemetry import api
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import BIN, Program, Start, eventually, get

GIB = 1 << 30
GPUS = 8
THERMAL, BRAKE = 0x40, 0x80

# Threads that compute in C: the interpreter lock is not what they wait for.
SPIN = """
import hashlib, os, threading
os.sched_setaffinity(0, {CPU})
block = bytes(1 << 24)
def spin():
    while True:
        hashlib.sha256(block)
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
input()
"""
SPEAK = """
import socket
hooks = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
hooks.connect(input())
hooks.send(b"aie_engine_requests_running,engine=chat:3|g")
input()
"""
"""Requests run in it, as its hooks say."""


class World:
    """An agent, and an engine that is a process of ours. The host is not in what is looked at: it has other things to do."""

    def __init__(self, start: Start, tmp_path: Path, code: str) -> None:
        self.gpus = simulate.Controller.create(tmp_path / "gpus", GPUS, "H100")
        self.engine = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
        self.tmp_path = tmp_path
        (tmp_path / "engine.pid").write_text(f"{self.engine.pid}\n")
        config = tmp_path / "agent.toml"
        config.write_text(
            f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
            f'[gpu]\nperiod = "200ms"\n[[engines]]\nname = "chat"\npid_file = "{tmp_path}/engine.pid"\n'
        )
        self.agent: Program = start("aie-agent", "run", "--no-bpf", "--config", str(config), **simulate.environment(self.gpus.path))
        self.url = self.agent.url()

    def findings(self) -> dict[tuple[str, str], api.Finding]:
        status, body = get(f"{self.url}/api/v1/findings")
        found = msgspec.json.decode(body, type=api.Findings).findings if status == 200 else ()
        return {(each.cause, each.subject): each for each in found if each.subject != "host"}

    def until(self, cause: str, subject: str) -> api.Finding:
        found: api.Finding = eventually(lambda: self.findings().get((cause, subject)), alive=self.agent)
        return found

    def push_xid(self, gpu: int, number: int) -> None:
        """Once the agent hears of them: of what came before it asked, the driver tells nobody."""
        hears = b'aie_gpu_xid_source_up{source="nvml_events"} 1'
        eventually(lambda: hears in get(f"{self.url}/metrics")[1], alive=self.agent)
        self.gpus.push_xid(gpu, number)


@pytest.fixture
def code() -> str:
    return "input()"


@pytest.fixture
def world(start: Start, tmp_path: Path, code: str) -> Iterator[World]:
    made = World(start, tmp_path, code)
    yield made
    if made.engine.poll() is None:
        made.engine.communicate(b"\n")


def test_what_is_wrong_with_gpus_is_named_and_nothing_else(world: World) -> None:
    mine = simulate.Process(world.engine.pid, 20 * GIB)
    world.gpus.set_processes(7, [mine])
    eventually(lambda: b"aie_gpu_up" in get(f"{world.url}/metrics")[1], alive=world.agent)
    assert {key for key in world.findings() if key[1].startswith("gpu")} == set()
    world.gpus.throttle(0, THERMAL)
    world.gpus.throttle(1, BRAKE)
    world.push_xid(3, 48)
    world.gpus.set_link(4, width=8)
    world.gpus.set(5, remapped_pending=1)
    world.gpus.set_processes(6, [mine, simulate.Process(os.getppid(), 30 * GIB)])
    assert world.until("gpu_xid_memory", "gpu3").evidence
    world.gpus.lose(2)  # NVML is opened anew then, and hears no XID meanwhile
    for cause, subject in (
        ("gpu_thermal", "gpu0"),
        ("gpu_power_brake", "gpu1"),
        ("gpu_lost", "gpu2"),
        ("gpu_xid_memory", "gpu3"),
        ("gpu_link_width", "gpu4"),
        ("gpu_row_remap", "gpu5"),
        ("gpu_neighbour", "gpu6"),
    ):
        found = world.until(cause, subject)
        assert found.evidence
        assert found.advice
        assert "simulated GPU" in found.summary
    assert [key for key in world.findings() if key[1] == "gpu7"] == []
    assert len([key for key in world.findings() if key[1].startswith("gpu")]) == 7
    page = PageParser().parse(get(f"{world.url}/metrics")[1].decode())
    told = {dict(sample.tags)["cause"] for sample in page.samples if sample.name == "aie_finding"}
    assert {"gpu_thermal", "gpu_lost", "gpu_neighbour"} <= told
    world.gpus.throttle(0, 0)
    eventually(lambda: ("gpu_thermal", "gpu0") not in world.findings(), alive=world.agent)


@pytest.mark.parametrize("code", [SPEAK])
def test_a_lost_gpu_explains_the_engine_that_ended_with_it(world: World) -> None:
    world.gpus.set_processes(0, [simulate.Process(world.engine.pid, 20 * GIB)])
    eventually((world.tmp_path / "statsd.sock").exists, alive=world.agent)
    assert world.engine.stdin is not None
    world.engine.stdin.write(f"{world.tmp_path}/statsd.sock\n".encode())
    world.engine.stdin.flush()
    eventually(lambda: b"aie_engine_requests_running" in get(f"{world.url}/metrics")[1], alive=world.agent)
    eventually(
        lambda: b'aie_engine_gpu_contexts{device="cuda0",engine="chat"} 1' in get(f"{world.url}/metrics")[1], alive=world.agent
    )
    # The page shows what the sources said, at once; the diagnosis looks each second, and must have seen who was on the GPU.
    world.gpus.throttle(1, BRAKE)
    world.until("gpu_power_brake", "gpu1")
    world.push_xid(0, 79)
    world.gpus.lose(0)
    world.until("gpu_lost", "gpu0")
    world.engine.kill()
    world.engine.wait()
    assert world.until("engine_down", "chat").explained_by == "gpu_lost"
    assert world.until("gpu_xid_link", "gpu0").explained_by == "gpu_lost"
    shown = subprocess.run(
        [BIN / "aie-top", "--connect", world.url, "--once"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "also" in shown.stdout
    assert "XID 79" in shown.stdout
    answer = subprocess.run(
        [BIN / "aie-agent", "diagnose", "--json", "--agent", world.url], capture_output=True, text=True, timeout=60
    )
    causes = [json.loads(row)["cause"] for row in answer.stdout.splitlines()]
    assert answer.returncode == 1
    assert causes.index("gpu_lost") < causes.index("engine_down")


@pytest.mark.parametrize("code", [SPIN.replace("CPU", str(min(os.sched_getaffinity(0))))])
def test_threads_that_share_one_cpu_are_starved(world: World) -> None:
    found = world.until("cpu_starved", "chat")
    assert "of its threads are ready and wait" in found.summary
    assert "limit 0.5" in found.evidence[0].text
