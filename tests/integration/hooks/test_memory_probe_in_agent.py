"""A real agent suspects this very process of a leak, asks it for what it retains, and believes the answer.

What the agent remembers of the hours before is made in a moment and given to it as its saved state.
"""

from __future__ import annotations

import ctypes
import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from aie_agent.state import StateFile
from aie_hooks import Emitter, MemoryProbe
from aie_hooks.process_memory import malloc_trim, physical_bytes
from aie_telemetry.memory_probe import REQUESTS_NAME
from tests.e2e.programs import Program, Start, eventually, get, start
from tests.fakes.leak_world import MB, SCALE, World

__all__ = ["start"]

ENGINE = "e"
HOURS = 1.5
RATE = 0.6 * MB
RISEN_MB = RATE * HOURS * 60 / MB
BLOCK_BYTES = 1 << 16


@contextmanager
def retained(megabytes: int) -> Iterator[None]:
    """Memory that was freed and that malloc still has: one block in a hundred is in use."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
    blocks = [int(libc.malloc(BLOCK_BYTES)) for _ in range(int(megabytes * MB) // BLOCK_BYTES)]
    for block in blocks:
        ctypes.memset(block, 1, BLOCK_BYTES)
    kept = set(blocks[::100]) | {blocks[-1]}
    for block in blocks:
        if block not in kept:
            libc.free(block)
    try:
        yield
    finally:
        for block in kept:
            libc.free(block)


def saved_suspicion(path: Path) -> None:
    """The state of an agent that saw this process grow for an hour and a half, until now."""
    world = World("cpu")
    world.now_s = time.time() - HOURS * 60
    now_bytes = float(physical_bytes() or 0)
    world.run(HOURS, lambda second: {"physical": now_bytes - RISEN_MB * MB + RATE * second})
    assert world.only().cause == "memory_leak"
    state = world.analyser.dump()
    state["engines"][ENGINE]["identity"] = [[], None, None]
    StateFile(path).write({"leaks": state})


Agent = tuple[Program, str]


@pytest.fixture
def agent(start: Start, tmp_path: Path) -> Callable[[bool], Agent]:
    def started(asks: bool) -> Agent:
        saved_suspicion(tmp_path / "state.json")
        config = tmp_path / "agent.toml"
        config.write_text(
            f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
            f'[leaks]\ntime_scale = {SCALE}\nmemory_probe = {json.dumps(asks)}\n[state]\nfile = "{tmp_path}/state.json"\n'
        )
        program = start("aie-agent", "run", "--no-bpf", "--config", str(config))
        url = program.url()
        eventually((tmp_path / "statsd.sock").exists, alive=program)
        return program, url

    return started


def findings(url: str) -> dict[str, str]:
    """Evidence by cause, of this engine."""
    status, body = get(f"{url}/api/v1/findings")
    found = json.loads(body)["findings"] if status == 200 else []
    return {each["cause"]: str(each["summary"]) + str(each["evidence"]) for each in found if each["subject"] == ENGINE}


def test_what_is_retained(agent: Callable[[bool], Agent], tmp_path: Path) -> None:
    ballast = bytearray(b"1") * int(200 * MB)  # what falls to less than half began anew
    with retained(int(2 * RISEN_MB)):
        program, url = agent(True)
        emitter = Emitter(ENGINE, f"unix://{tmp_path}/statsd.sock")
        probe = MemoryProbe(emitter)
        eventually((tmp_path / REQUESTS_NAME).exists, alive=program)
        eventually(lambda: "memory_leak" in findings(url), alive=program)
        assert probe.look()
        found = eventually(lambda: (f := findings(url)).get("memory_retention") and f, alive=program)
        assert "malloc_trim gave back" in found["memory_retention"]
        assert "memory_leak" not in found
        eventually(lambda: not (tmp_path / REQUESTS_NAME).exists(), alive=program)
        assert len(ballast) == 200 * MB
        emitter.close()


def test_what_is_kept(agent: Callable[[bool], Agent], tmp_path: Path) -> None:
    gc.collect()  # what other tests left behind is none of this
    malloc_trim()
    program, url = agent(True)
    emitter = Emitter(ENGINE, f"unix://{tmp_path}/statsd.sock")
    probe = MemoryProbe(emitter)
    eventually(lambda: probe.look(), alive=program)
    text = eventually(lambda: "kept after" in (t := findings(url).get("memory_leak", "")) and t, alive=program)
    assert "kept after gc.collect and malloc_trim" in text
    # While it is suspect, the kernel is asked what it is that grows.
    eventually(lambda: b'aie_process_anonymous_bytes{engine="e",kind="heap"' in get(f"{url}/metrics")[1], alive=program)
    emitter.close()


def test_nobody_is_asked_unless_the_configuration_says_so(agent: Callable[[bool], Agent], tmp_path: Path) -> None:
    program, url = agent(False)
    emitter = Emitter(ENGINE, f"unix://{tmp_path}/statsd.sock")
    eventually(lambda: "memory_leak" in findings(url), alive=program)
    assert not (tmp_path / REQUESTS_NAME).exists()
    assert not MemoryProbe(emitter).look()
    emitter.close()
