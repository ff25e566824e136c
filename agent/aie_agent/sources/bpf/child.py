"""The child process that holds BCC and the probes: started, heard, and started again when it ends or goes silent.

It is another process because BCC with LLVM takes over 100 MB, and may take its process with it. Its standard input is one end of a
socket pair that carries `aie_ebpf.messages`: when the agent ends, however, the child reads an end of file there and ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Final

from aie_ebpf.messages import Failed, FrameError, Frames, Ready, Report, ToAgent, ToChild, WindowClosed, for_agent, frame

log = logging.getLogger(__name__)

COMMAND: Final = (sys.executable, "-P", "-m", "aie_ebpf")
"""-P: what lies in the working directory must not be taken for a module of ours."""

SILENT_AFTER_S: Final = 10.0
"""A child that works reports once a period."""
STARTS_WITHIN_S: Final = 120.0
"""Until its first message: it compiles its programs, and the host may be busy."""
ENDS_WITHIN_S: Final = 5.0
"""To detach its probes, when it is told to end. The kernel detaches what is left when it is killed."""

_CHUNK_BYTES: Final = 1 << 16
_MOST_UNREAD: Final = 64
_MOST_UNSENT_BYTES: Final = 4 << 20
_COMPLAINTS_KEPT: Final = 5
_COMPLAINT_CHARS: Final = 300


class ChildError(Exception):
    """The child is not there, or not of use: one line that says why."""


class Child:
    """One running child. Belongs to the event loop's thread and has no thread of its own."""

    def __init__(self, command: Sequence[str], silent_after_s: float = SILENT_AFTER_S, starts_within_s: float = STARTS_WITHIN_S):
        self._command = command
        self._silent_after_s = silent_after_s
        self._starts_within_s = starts_within_s
        self._ready: Ready | None = None
        self._failed: Failed | None = None
        self._wrong = ""
        self._unread: deque[Report | WindowClosed] = deque(maxlen=_MOST_UNREAD)
        self._complaints: deque[str] = deque(maxlen=_COMPLAINTS_KEPT)
        self._news = asyncio.Event()
        self._heard_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.overrun = 0
        """Reports that made room for later ones because nobody asked for them."""

    @property
    def pid(self) -> int | None:
        """Of the process, once it was started."""
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> Ready | None:
        """What it said when its programs were compiled."""
        return self._ready

    async def start(self) -> None:
        """Starts the process. Raises ChildError."""
        ours, its = socket.socketpair()
        ours.setblocking(False)
        try:
            self._process = _spawn(self._command, its)
        except OSError as error:
            ours.close()
            raise ChildError(f"the BPF child cannot be started: {error}") from error
        finally:
            its.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._heard_s = asyncio.get_running_loop().time()
        self._tasks = [asyncio.create_task(self._hear(reader)), asyncio.create_task(self._hear_complaints())]

    def send(self, message: ToChild) -> None:
        """Sends a message, or raises ChildError: the child is gone, or has not read what it was sent for long."""
        self.check()
        if self._writer is None or self._writer.transport.get_write_buffer_size() > _MOST_UNSENT_BYTES:
            raise ChildError("the BPF child does not read what it is sent")
        self._writer.write(frame(message))

    def check(self) -> None:
        """Raises ChildError with the reason where the child has ended, sent nonsense, or is silent for too long."""
        if self._failed is not None:
            raise ChildError("; ".join(filter(None, (self._failed.reason, self._failed.remedy))))
        if self._wrong:
            raise ChildError(self._wrong)
        silent_s = asyncio.get_running_loop().time() - self._heard_s
        limit_s = self._starts_within_s if self._ready is None else self._silent_after_s
        if silent_s > limit_s:
            raise ChildError(f"the BPF child said nothing for {silent_s:.0f} s")

    async def until_ready(self) -> Ready:
        """Waits until its programs are compiled. Raises ChildError."""
        while self._ready is None:
            self.check()
            await self._wait(1.0)
        return self._ready

    async def reports(self, patience_s: float) -> list[Report | WindowClosed]:
        """What it reported since the last time; it waits so long for one. Raises ChildError where it ended and that is nothing."""
        if not self._unread:  # an agent that was stopped for long reads what came meanwhile before it judges
            await self._wait(patience_s)
        found = list(self._unread)
        self._unread.clear()
        if not found:
            self.check()
        return found

    async def close(self) -> None:
        """Tells it to end, and kills it where it does not."""
        if self._writer is not None:
            self._writer.close()
        if self._process is not None and not await self._ends(ENDS_WITHIN_S):
            log.warning("the BPF child did not end within %.0f s and is killed", ENDS_WITHIN_S)
        await self.kill()

    async def kill(self) -> None:
        """Ends it at once. The kernel detaches its probes."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            await self._ends(ENDS_WITHIN_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            self._writer.close()

    async def _wait(self, seconds: float) -> None:
        """Until it says something, but no longer."""
        self._news.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    async def _ends(self, within_s: float) -> bool:
        """Whether it ended so soon. Asked again and again: waiting for a process takes a thread in Python 3.11."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while self._process is not None and self._process.poll() is None:
            if loop.time() > end_s:
                return False
            await asyncio.sleep(0.02)
        return True

    async def _hear(self, reader: asyncio.StreamReader) -> None:
        frames = Frames()
        try:
            while data := await reader.read(_CHUNK_BYTES):
                for body in frames.feed(data):
                    self._take(for_agent(body))
        except FrameError as error:
            self._wrong = f"the BPF child sent what cannot be read: {error}"
        except OSError as error:
            log.debug("the pipe of the BPF child: %s", error)
        self._wrong = self._wrong or await self._why_gone()
        self._news.set()

    async def _why_gone(self) -> str:
        """After its pipe was closed. What it complained of last may come later than that."""
        if not await self._ends(1.0):
            return "the BPF child closed its pipe and did not end"
        await asyncio.wait(self._tasks[1:], timeout=1.0)
        return self._ended()

    def _take(self, message: ToAgent) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        match message:
            case Ready():
                self._ready = message
            case Failed():
                self._failed = message
            case _:
                self.overrun += len(self._unread) == _MOST_UNREAD
                self._unread.append(message)
        self._news.set()

    async def _hear_complaints(self) -> None:
        """Its standard error: LLVM's warnings, and what Python says when it ends. The last lines are kept for the reason."""
        assert self._process is not None
        assert self._process.stderr is not None
        reader = asyncio.StreamReader(limit=_CHUNK_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), self._process.stderr)
        try:
            rest = b""
            while data := await reader.read(_CHUNK_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[-_CHUNK_BYTES:]
                self._complaints.extend(filter(None, map(_plain, lines[-_COMPLAINTS_KEPT:])))
            self._complaints.extend(filter(None, [_plain(rest)]))
        finally:
            transport.close()

    def _ended(self) -> str:
        code = 0 if self._process is None else self._process.returncode
        if code < 0:
            return f"BPF child ended: signal {-code}{_called(-code)}"
        said = f" ({self._complaints[-1]})" if self._complaints else ""
        return f"BPF child ended: status {code}{said}"


def _spawn(command: Sequence[str], its: socket.socket) -> subprocess.Popen[bytes]:
    """In a session of its own: Ctrl-C in a terminal is for the agent, which then lets the child detach its probes. Not asyncio's
    own subprocess: that takes a thread for each in Python 3.11."""
    return subprocess.Popen(command, stdin=its.fileno(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def _called(number: int) -> str:
    try:
        return f" ({signal.Signals(number).name})"
    except ValueError:
        return ""


def _plain(line: bytes) -> str:
    """A line without what a terminal would obey."""
    text = line.decode(errors="replace").strip()
    return "".join(each if each.isprintable() else "?" for each in text)[:_COMPLAINT_CHARS]
