"""`python -m aie_ebpf` as the agent starts it, spoken to in plain sequence: for measurements, and for tests of the whole child."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from aie_ebpf.messages import Failed, Frames, OpenWindow, Ready, Report, Target, ToAgent, ToChild, Watch, for_agent, frame

_CHUNK: Final = 1 << 16
_START_S: Final = 60.0


class Client:
    """One child: what it is told, and what it says."""

    def __init__(self, pipe: socket.socket, tgid: int) -> None:
        self._pipe = pipe
        self._frames = Frames()
        self._pending: list[ToAgent] = []
        self.tgid = tgid

    def tell(self, message: ToChild) -> None:
        """Sends a message."""
        self._pipe.sendall(frame(message))

    def watch(self, targets: Iterable[Target]) -> None:
        """These processes, and no others."""
        self.tell(Watch(targets=tuple(targets)))

    def open_window(self, engine: str, set_name: str, seconds: float) -> None:
        """Asks for a set that is not on by default."""
        self.tell(OpenWindow(engine=engine, set=set_name, seconds=seconds))

    def next(self, timeout_s: float) -> ToAgent:
        """The next message. Raises TimeoutError when none comes, RuntimeError when the child has ended or cannot do its work."""
        end_s = time.monotonic() + timeout_s
        while not self._pending:
            self._pipe.settimeout(max(end_s - time.monotonic(), 1e-3))
            data = self._pipe.recv(_CHUNK)
            if not data:
                raise RuntimeError("the child has ended")
            self._pending += map(for_agent, self._frames.feed(data))
        message = self._pending.pop(0)
        if isinstance(message, Failed):
            raise RuntimeError(f"{message.reason}; {message.remedy}")
        return message

    def reports(self, until: Callable[[Report], bool], timeout_s: float) -> list[Report]:
        """All reports up to the first that is as wanted. Raises as `next` does."""
        taken: list[Report] = []
        end_s = time.monotonic() + timeout_s
        while not taken or not until(taken[-1]):
            message = self.next(max(end_s - time.monotonic(), 0.0))
            if isinstance(message, Report):
                taken.append(message)
        return taken

    def reports_for(self, seconds: float) -> list[Report]:
        """The reports of a time from now on, whole periods. What was said before is dropped."""
        self._pipe.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while data := self._pipe.recv(_CHUNK):
                self._frames.feed(data)
        self._pending.clear()
        return self.reports(_elapsed(seconds), seconds + 10)


@contextlib.contextmanager
def child(budget: float = 0.01, period_s: float = 1.0, without: Iterable[str] = ()) -> Iterator[tuple[Client, Ready]]:
    """A child that is ready, and what it said then. It ends with the block. Raises RuntimeError when it cannot do its work."""
    ours, its = socket.socketpair()
    arguments = ["--budget", f"{budget:g}", "--period", f"{period_s:g}", "--without", ",".join(without)]
    command = [sys.executable, "-m", "aie_ebpf", *arguments]
    # A file, not a pipe that nobody reads: clang warns at length.
    with ours, tempfile.TemporaryFile() as log, subprocess.Popen(command, stdin=its.fileno(), stderr=log) as process:
        its.close()
        try:
            client = Client(ours, process.pid)
            try:
                ready = client.next(_START_S)
            except RuntimeError as error:
                log.seek(0)
                raise RuntimeError(f"{error}\n{log.read().decode()}") from error
            assert isinstance(ready, Ready), ready
            yield client, ready
        finally:
            ours.close()
            process.wait(timeout=30)


def target(engine: str, tgid: int) -> Target:
    """A process as the child wants it to be told. Raises OSError when it is gone."""
    fields = Path(f"/proc/{tgid}/stat").read_bytes().rpartition(b")")[2].split()
    return Target(engine=engine, tgid=tgid, start_ticks=int(fields[19]))


def _elapsed(seconds: float) -> Callable[[Report], bool]:
    left_s = seconds

    def over(report: Report) -> bool:
        nonlocal left_s
        left_s -= report.period_s
        return left_s <= 0

    return over
