"""The whole agent as a process of its own: what the tests of GPUs that need one share."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

AGENT = Path(sys.executable).parent / "aie-agent"
DEADLINE_S = 60.0


class Running:
    """An agent that listens."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.process = process
        self.url = url

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            text: str = answer.read().decode()
        return text

    def snapshot(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.get("/api/v1/snapshot"))
        return found

    def until(self, is_so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline_s = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline_s:
            with contextlib.suppress(OSError):
                found = self.snapshot()
                if is_so(found):
                    return found
            time.sleep(0.1)
        raise AssertionError("waited in vain")


@contextlib.contextmanager
def agent(tmp_path: Path, *arguments: str, environment: dict[str, str] | None = None, config: str = "") -> Iterator[Running]:
    file = tmp_path / "agent.toml"
    file.write_text(f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "off"\nudp = "off"\n[discovery]\nenabled = false\n{config}')
    command = [AGENT, "run", "--no-bpf", "--config", file, *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | (environment or {}))
    try:
        assert process.stdout is not None
        yield Running(process, process.stdout.readline().rpartition(" ")[2].strip())
    finally:
        process.terminate()
        process.wait(60)
