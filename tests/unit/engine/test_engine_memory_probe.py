"""The reference engine's memory probe: off by default, with its own idea of idle, and refused where no agent's file can be."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aie_engine.config import EngineConfig
from aie_engine.metrics import EngineMetrics
from aie_engine.model_thread import StartError
from aie_engine.request import Outcome
from aie_engine.serve import memory_probe
from aie_hooks import Emitter, RequestHooks
from aie_telemetry.memory_probe import REQUESTS_NAME, ProbeRequest, encode_requests


class CachingCuda:
    """`torch.cuda` on a machine that has one."""

    def __init__(self) -> None:
        self.emptied = 0

    is_available = is_initialized = staticmethod(lambda: True)

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def emitter(tmp_path: Path) -> Iterator[Emitter]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "statsd.sock"))
        emitter = Emitter("e", f"unix://{tmp_path}/statsd.sock", flush_interval_s=float("inf"))
        yield emitter
        emitter.close()


def metrics_of(emitter: Emitter) -> EngineMetrics:
    return EngineMetrics("e", "m", RequestHooks(emitter, model="m"), start_wall_s=0.0)


def test_off_by_default(emitter: Emitter) -> None:
    assert memory_probe(EngineConfig("m"), emitter, metrics_of(emitter)) is None


def test_the_cache_of_cuda_is_emptied_only_while_no_request_runs(
    emitter: Emitter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = CachingCuda()
    monkeypatch.setattr(torch, "cuda", cuda)
    metrics = metrics_of(emitter)
    probe = memory_probe(EngineConfig("m", memory_probe_s=600.0), emitter, metrics)
    assert probe is not None
    request = ProbeRequest(engine="e", ask="memory_probe", id="1", expires_s=time.time() + 1000)
    (tmp_path / REQUESTS_NAME).write_bytes(encode_requests([request]))
    os.chmod(tmp_path / REQUESTS_NAME, 0o644)
    ticket = metrics.enter(1.0)
    assert not probe.look()
    assert cuda.emptied == 0
    metrics.ended(ticket, Outcome.OK, 2.0)
    assert probe.look(), "its allocator cannot be read before a model is loaded, and physical memory can"
    assert cuda.emptied == 1


def test_without_a_socket_it_cannot_start() -> None:
    emitter = Emitter("e", "udp://127.0.0.1:9", flush_interval_s=float("inf"))
    with pytest.raises(StartError, match=r"--memory-probe: .* give --statsd the agent's Unix socket"):
        memory_probe(EngineConfig("m", memory_probe_s=600.0), emitter, metrics_of(emitter))
