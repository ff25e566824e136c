"""The programs of ours as users run them: a real engine with a small random model, the agent, `aie-top`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from aie_telemetry import api

BIN = Path(sys.executable).parent
HTTP = urllib3.PoolManager(retries=False, timeout=60)


class Program:
    """A program that runs, with its output in a file."""

    def __init__(self, name: str, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [BIN / name, *arguments], stdout=output, stderr=subprocess.STDOUT, env=os.environ | environment
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def url(self) -> str:
        """The URL that it announced."""
        match = eventually(lambda: re.search(r"http://[^\s,]+:\d+", self.text()), alive=self)
        return str(match[0])

    def stop(self) -> int:
        """Asks it to end, and returns its exit status."""
        self.process.terminate()
        return self.process.wait(60)


def eventually(
    condition: Callable[[], Any],
    alive: Program | None = None,
    timeout_s: float = 180.0,
    shown: Callable[[], Any] = lambda: "",
) -> Any:
    """What `condition()` gives once it gives something true. Fails after a time far beyond what any machine needs."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        if alive is not None and alive.process.poll() is not None:
            pytest.fail(f"{alive.name} ended with {alive.process.returncode}:\n{alive.text()}")
        time.sleep(0.05)
    pytest.fail(f"not within {timeout_s} s" + (f":\n{alive.text()}" if alive else "") + f"\n{shown()}")


def get(url: str) -> tuple[int, bytes]:
    """Status and body; status 0 when nobody answers."""
    try:
        answer = HTTP.request("GET", url)
    except urllib3.exceptions.HTTPError:
        return 0, b""
    return answer.status, answer.data


def snapshot(agent_url: str) -> api.Snapshot | None:
    """The agent's snapshot, once it has one."""
    status, body = get(f"{agent_url}/api/v1/snapshot")
    return msgspec.json.decode(body, type=api.Snapshot) if status == 200 else None


def engine_view(agent_url: str, name: str) -> api.Engine | None:
    """What the agent shows of one engine."""
    found = snapshot(agent_url)
    return next((engine for engine in found.engines if engine.name == name), None) if found else None


Start = Callable[..., Program]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts programs that are killed at the end of the test, whatever happened."""
    with contextlib.ExitStack() as stack:
        count = 0

        def start_program(name: str, *arguments: str, **environment: str) -> Program:
            nonlocal count
            count += 1
            program = Program(name, list(arguments), tmp_path / f"{name}-{count}.log", environment)
            stack.callback(lambda: (program.process.kill(), program.process.wait()))
            return program

        yield start_program
