"""An out-of-memory error in an engine, and what a real agent has of it a moment later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from aie_hooks import Emitter, LogitsHooks, ModuleHooks, oom_forensics
from aie_telemetry import api
from aie_telemetry.exposition import PageParser
from tests.e2e.programs import Program, Start, eventually, get, start
from tests.fakes.fake_torch_cuda import MESSAGE, MIB, FakeTorchCuda

__all__ = ["start"]


@pytest.fixture
def agent(start: Start, tmp_path: Path) -> tuple[Program, str]:
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
    )
    program = start("aie-agent", "run", "--no-bpf", "--config", str(config))
    url = program.url()
    eventually((tmp_path / "statsd.sock").exists, alive=program)  # an event without a receiver is dropped, and counted
    return program, url


def _events(url: str) -> tuple[api.Event, ...]:
    status, body = get(f"{url}/api/v1/events")
    events = msgspec.json.decode(body, type=api.Events).events if status == 200 else ()
    return tuple(event for event in events if event.kind != "finding")  # the agent's own: what it makes of them


def _values(url: str) -> dict[str, float]:
    """The agent's samples of this engine by name."""
    _, page = get(f"{url}/metrics")
    return {s.name: s.value for s in PageParser().parse(page.decode()).samples if ("engine", "oomer") in s.tags}


def test_an_error_is_in_the_agent_with_its_evidence(agent: tuple[Program, str], tmp_path: Path) -> None:
    program, url = agent
    # No flush and no thread: the record goes by itself.
    emitter = Emitter("oomer", f"unix://{tmp_path}/statsd.sock", flush_interval_s=float("inf"))
    with pytest.raises(torch.OutOfMemoryError), oom_forensics(emitter, 0, cuda=FakeTorchCuda()):
        raise torch.OutOfMemoryError(MESSAGE)
    (event,) = eventually(lambda: _events(url), alive=program)
    emitter.close()
    assert (event.kind, event.engine) == ("oom", "oomer")
    assert event.details["asked_bytes"] == 100 * MIB
    assert event.details["largest_free_bytes"] == 7 * MIB
    assert event.details["reserved_unallocated_bytes"] == 20 * MIB
    assert "Tried to allocate 100.00 MiB" in event.summary


def test_negative_and_activation_numbers_arrive(agent: tuple[Program, str], tmp_path: Path) -> None:
    program, url = agent
    emitter = Emitter("oomer", f"unix://{tmp_path}/statsd.sock", flush_interval_s=float("inf"))
    with LogitsHooks(emitter, model="m", rate=1.0).enter() as answer:
        answer.add(-1.0, 2.0, -37.5)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4))
    watched = ModuleHooks(emitter, net, model="m", layers="0")
    output = net(torch.full((2, 4), -3.0))
    watched.remove()
    emitter.flush()
    seen = eventually(lambda: (v := _values(url)).get("aie_engine_activation_mean") is not None and v, alive=program)
    emitter.close()
    assert seen["aie_engine_first_token_logsumexp_nats_sum"] == -37.5
    assert seen["aie_engine_activation_mean"] == pytest.approx(float(output.detach().double().mean()), rel=1e-4)
    assert seen["aie_engine_activation_nonfinite_total"] == 0
