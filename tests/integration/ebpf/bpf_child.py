"""The real child of the agent, `python -m aie_ebpf`, spoken to by a test."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aie_ebpf.lives import start_ticks
from aie_ebpf.messages import Failed, Frames, Ready, Report, Target, ToAgent, ToChild, Watch, for_agent, frame

START_S = 120.0
"""What a busy machine may take to compile and calibrate."""


_LAST_SAID = 4000


class Child:
    """One child: what it said so far, and what it is told."""

    def __init__(self, process: subprocess.Popen[bytes], pipe: socket.socket, log: Path) -> None:
        self.process = process
        self._log = log
        self._pipe = pipe
        self._frames = Frames()
        self._fresh: deque[ToAgent] = deque()
        self.messages: list[ToAgent] = []
        """All that was looked at, in the order in which it came."""

    def tell(self, message: ToChild) -> None:
        """Sends a message."""
        self._pipe.sendall(frame(message))

    def watch(self, *tgids: int, engine: str = "under-test") -> None:
        """Has these processes watched, and no others."""
        ticks = {tgid: start_ticks(tgid) for tgid in tgids}
        targets = tuple(Target(engine=engine, tgid=tgid, start_ticks=each or 0) for tgid, each in ticks.items())
        self.tell(Watch(targets=targets))

    def until(self, reached: Callable[[ToAgent], bool], timeout_s: float = 60.0) -> ToAgent:
        """The next message for which `reached` holds. Raises TimeoutError, EOFError."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            while self._fresh:
                message = self._fresh.popleft()
                self.messages.append(message)
                if isinstance(message, Failed):
                    raise AssertionError(message.reason)
                if reached(message):
                    return message
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"last told: {self.messages[-1:]}")
            self._pipe.settimeout(max(deadline_s - time.monotonic(), 0.01))
            data = self._pipe.recv(1 << 16)
            if not data:
                raise EOFError(self._ended())
            self._fresh.extend(for_agent(body) for body in self._frames.feed(data))

    def _ended(self) -> str:
        """That it has, how, and the last of what it said."""
        status = self.process.wait(timeout=START_S)
        said = self._log.read_text(errors="replace")[-_LAST_SAID:]
        return f"the child has ended with status {status}; last told: {self.messages[-1:]}; its standard error:\n{said}"

    def reports(self, count: int) -> list[Report]:
        """Those that lie here unread, of which there are many where this process had to wait for its CPU; and the next `count`."""
        before = len(self.messages)
        while self._fresh or select.select([self._pipe], [], [], 0.0)[0]:
            self.until(lambda _: True)
        for _ in range(count):
            self.until(lambda each: isinstance(each, Report))
        return [each for each in self.messages[before:] if isinstance(each, Report)]

    def close(self) -> None:
        """Closes the agent's end of the pipe."""
        self._pipe.close()


@contextmanager
def running_child(*arguments: str, log: Path) -> Iterator[Child]:
    """A child that is ready. It is ended at the end, however it is."""
    ours, its = socket.socketpair()
    with log.open("wb") as stderr, its:
        process = subprocess.Popen([sys.executable, "-m", "aie_ebpf", *arguments], stdin=its, stderr=stderr)
    child = Child(process, ours, log)
    try:
        child.until(lambda message: isinstance(message, Ready), START_S)
        yield child
    finally:
        ours.close()
        process.kill()
        process.wait()
