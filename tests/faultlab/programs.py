"""Programs that the lab starts: their output in a file, ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

BIN: Final = Path(sys.executable).parent
STOP_S: Final = 20.0

T = TypeVar("T")


class LabError(Exception):
    """The lab itself does not work: what, in words."""


class SilentError(LabError):
    """The agent does not answer: with the end of its log."""


class Program:
    """One of our programs, running. Raises OSError when it cannot be started."""

    def __init__(self, name: str, arguments: list[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                [BIN / name, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=os.environ | dict(environment),
                start_new_session=True,
            )
        take_nice_along(self.process.pid)

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    def text(self) -> str:
        """All that it has printed."""
        return self.log.read_text(errors="replace")

    def url(self) -> str:
        """The URL that it announced. Raises LabError when it ends before."""
        return until(lambda: re.search(r"http://[^\s,]+:\d+", self.text()), f"{self.name} announces no URL", self)[0]

    def stop(self) -> None:
        """Ends it, also where it is stopped by a signal."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.send_signal(signal.SIGCONT)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def take_nice_along(pid: int) -> None:
    """Where sessions share the CPUs as groups (sched_autogroup), a process's own nice value counts only within its session."""
    with contextlib.suppress(OSError):  # without such groups, or without the right to
        Path(f"/proc/{pid}/autogroup").write_text(str(os.nice(0)))


def until(condition: Callable[[], T | None], complaint: str, alive: Program | None = None, limit_s: float = 180.0) -> T:
    """What `condition()` gives once it is something true. Raises LabError after a time that no machine needs."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        result = condition()
        if result:
            return result
        if alive is not None and alive.process.poll() is not None:
            raise LabError(f"{alive.name} ended with {alive.process.returncode}:\n{alive.text()[-2000:]}")
        time.sleep(0.1)
    raise LabError(f"{complaint}, in {limit_s:.0f} s" + (f":\n{alive.text()[-2000:]}" if alive is not None else ""))


def free_port() -> int:
    """A TCP port of the loopback interface that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
