"""The agent on simulated GPUs that a test drives: processes, their memory against the allocator's, XIDs, links, orphans."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_agent import simulate
from aie_telemetry import api
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import Program, Start, engine_view, eventually, get, snapshot

GIB = 1 << 30


@pytest.fixture
def gpus(tmp_path: Path) -> simulate.Controller:
    controller = simulate.Controller.create(tmp_path / "gpus", 2, "H100")
    controller.set_load(0, 0.9)
    return controller


class World:
    """An agent, and an engine that is a process of ours."""

    def __init__(self, start: Start, gpus: simulate.Controller, tmp_path: Path) -> None:
        self.gpus = gpus
        self.engine = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        (tmp_path / "engine.pid").write_text(f"{self.engine.pid}\n")
        config = tmp_path / "agent.toml"
        config.write_text(
            f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
            f'[gpu]\nperiod = "200ms"\n[[engines]]\nname = "chat"\npid_file = "{tmp_path}/engine.pid"\n'
        )
        self.statsd = str(tmp_path / "statsd.sock")
        self.agent: Program = start("aie-agent", "run", "--no-bpf", "--config", str(config), **simulate.environment(gpus.path))
        self.url = self.agent.url()

    def say(self, line: str) -> None:
        """What hooks of the engine would send."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(self.statsd)
            sender.send(line.encode())

    def gpu(self, index: int) -> api.Gpu | None:
        found = snapshot(self.url)
        return found.gpus[index] if found is not None and len(found.gpus) > index else None

    def value(self, name: str, **labels: str) -> float | None:
        """A sample of the Prometheus page."""
        page = PageParser().parse(get(f"{self.url}/metrics")[1].decode())
        found = [sample.value for sample in page.samples if sample.name == name and set(labels.items()) <= set(sample.tags)]
        return found[0] if found else None

    def until(self, condition: object) -> None:
        assert callable(condition)
        eventually(condition, alive=self.agent)


@pytest.fixture
def world(start: Start, gpus: simulate.Controller, tmp_path: Path) -> Iterator[World]:
    made = World(start, gpus, tmp_path)
    yield made
    if made.engine.poll() is None:
        made.engine.communicate(b"\n")


def test_memory_that_the_allocator_does_not_know_of(world: World) -> None:
    neighbour = os.getppid()  # not this process: it speaks for the engine, and so is one of its
    world.gpus.set_processes(0, [simulate.Process(world.engine.pid, 10 * GIB), simulate.Process(neighbour, GIB)])
    world.until(lambda: world.value("aie_engine_memory_physical_bytes", engine="chat", device="cuda0") == 10 * GIB)
    world.say(f"aie_engine_allocator_reserved_bytes,engine=chat,device=cuda0:{9 * GIB}|g")
    world.until(lambda: world.value("aie_engine_memory_unaccounted_bytes", engine="chat", device="cuda0") == GIB)
    assert world.value("aie_engine_gpu_contexts", engine="chat", device="cuda0") == 1
    gpu = world.gpu(0)
    assert gpu is not None
    assert gpu.simulated
    assert {process.tgid: process.engine for process in gpu.processes} == {world.engine.pid: "chat", neighbour: None}
    assert not any(process.orphan for process in gpu.processes)


def test_what_an_engine_leaves_behind_is_an_orphan(world: World) -> None:
    world.gpus.set_processes(1, [simulate.Process(world.engine.pid, 6 * GIB)])
    world.until(lambda: (gpu := world.gpu(1)) is not None and any(process.engine == "chat" for process in gpu.processes))
    world.engine.communicate(b"\n")
    world.until(lambda: world.value("aie_gpu_orphan_memory_bytes", gpu="1") == 6 * GIB)
    world.until(lambda: (gpu := world.gpu(1)) is not None and any("orphan" in problem for problem in gpu.problems))
    assert world.value("aie_gpu_orphan_processes", gpu="1") == 1
    world.gpus.set_processes(1, [])
    world.until(lambda: world.value("aie_gpu_orphan_processes", gpu="1") == 0)


def test_an_xid_is_a_count_an_event_and_a_row(world: World) -> None:
    world.until(lambda: world.value("aie_gpu_xid_source_up", source="nvml_events") == 1)
    assert world.value("aie_gpu_xid_errors_total", gpu="1", xid="79") == 0
    world.gpus.push_xid(1, 79)
    world.until(lambda: world.value("aie_gpu_xid_errors_total", gpu="1", xid="79") == 1)
    world.until(lambda: (gpu := world.gpu(1)) is not None and gpu.xids == {"79": 1.0})
    found = snapshot(world.url)
    assert found is not None
    event = next(event for event in found.events if event.kind == "gpu_xid")
    assert event.summary == "GPU 1: XID 79: the GPU has fallen off the bus"
    assert "Reboot" in str(event.details["action"])


def test_a_link_that_lost_lanes_is_a_problem_of_its_gpu_alone(world: World) -> None:
    world.until(lambda: world.gpu(0) is not None)
    world.gpus.set_link(0, width=8)
    world.until(lambda: (gpu := world.gpu(0)) is not None and any("8 lanes of 16" in problem for problem in gpu.problems))
    gpu = world.gpu(1)
    assert gpu is not None
    assert gpu.problems == ()


def test_memory_that_the_driver_does_not_tell_by_process_is_the_whole_gpus(world: World) -> None:
    world.gpus.set_processes(0, [simulate.Process(world.engine.pid, simulate.NOT_AVAILABLE)])
    world.until(lambda: world.value("aie_engine_memory_physical_bytes", engine="chat", device="cuda0") is not None)
    assert world.value("aie_engine_memory_physical_bytes", device="cuda0") == world.value("aie_gpu_memory_used_bytes", gpu="0")

    def says_so() -> bool:
        chat = engine_view(world.url, "chat")
        return chat is not None and "all that is in use on the GPU" in (chat.note or "")

    world.until(says_so)
