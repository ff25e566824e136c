"""What an engine does while an agent says that its answers are not to be trusted: a file says so, and the engine watches it.

    aie-agent: [drift] on_alarm = "PATH"        aie-engine serve --degrade-file PATH

Answers carry the header `X-Aie-Degraded` with the causes, `/health` says "degraded", and no answer is kept in the response cache,
which is emptied: so what is wrong does not outlive its cause. On a critical cause (NaN, answers all alike) `/health/ready` says
"not ready" as well: whoever routes sends requests elsewhere. The engine goes on answering whoever asks it.

Only lines of the engine's own name count, and only until their `expires_s`, or until twice as long as an agent's lines hold after
the file was written: an agent that died degrades nobody for longer than minutes. What cannot be read degrades nobody either; nor
does a file that anybody else could have written: it must be root's, the engine's own user's or that of the owner of its directory,
and nobody else's to write.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from aie_telemetry.degraded import VALID_S, Degraded

HEADER: Final = "X-Aie-Degraded"
POLL_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20  # a line an engine and cause of one host: far more than any agent writes

MOST_VALID_S: Final = 2 * VALID_S
"""After the file was written, whatever it says: an agent renews it each half minute."""

_log = logging.getLogger(__name__)
_decoder: Final = msgspec.json.Decoder(Degraded)


class State(NamedTuple):
    """Why answers are not to be trusted: causes in order, none while all is well; and whether one of them is critical."""

    causes: tuple[str, ...] = ()
    critical: bool = False

    @property
    def headers(self) -> dict[str, str]:
        """For every answer."""
        return {HEADER: ", ".join(self.causes)} if self.causes else {}


def state_of(content: bytes, engine: str, now_s: float, written_s: float = math.inf) -> State:
    """What the file says of an engine at `now_s`, seconds since the epoch as `written_s` is. Lines that are none of ours are passed
    over; none holds for longer than `MOST_VALID_S` after it was written."""
    held = []
    for line in content.splitlines() if now_s < written_s + MOST_VALID_S else ():
        try:
            row = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if row.engine == engine and row.expires_s > now_s and row.cause.isidentifier() and row.cause.isascii():
            held.append(row)
    return State(tuple(sorted({row.cause for row in held})), any(row.severity == "critical" for row in held))


class Said(NamedTuple):
    """What stands in the file, and when it was written, in seconds since the epoch."""

    content: bytes = b""
    written_s: float = 0.0


class DegradeWatch:
    """Looks at the file once a second, in a worker thread, and tells when what it says changed."""

    def __init__(
        self,
        path: Path,
        engine: str,
        changed: Callable[[State], object],
        clock: Callable[[], float] = time.time,
        poll_s: float = POLL_S,
    ) -> None:
        self._path = path
        self._engine = engine
        self._changed = changed
        self._clock = clock
        self._poll_s = poll_s
        self._state = State()
        self._complained = False

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self.look(await asyncio.to_thread(self.read))
            await asyncio.sleep(self._poll_s)

    def read(self) -> Said:
        """The file; nothing where there is none, or where it cannot be read or is not to be heeded, which the log says once."""
        try:
            said, problem = self._said()
        except FileNotFoundError:
            said, problem = Said(), ""
        except OSError as error:
            said, problem = Said(), f"cannot be read: {error.strerror}"
        if problem and not self._complained:
            _log.warning("--degrade-file %s is not heeded: it %s", self._path, problem)
        self._complained = bool(problem)
        return said

    def _said(self) -> tuple[Said, str]:
        """Or why it is not heeded. Raises OSError."""
        # Not to wait for a writer, where somebody gives a FIFO.
        with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            status = os.fstat(file.fileno())
            problem = _problem(status, self._path.parent.stat().st_uid)
            return (Said(), problem) if problem else (Said(file.read(_MOST_BYTES), status.st_mtime), "")

    def look(self, said: Said) -> None:
        """Takes in what the file says now."""
        state = state_of(said.content, self._engine, self._clock(), said.written_s)
        if state != self._state:
            self._state = state
            _log.warning("answers are %s", f"not to be trusted: {', '.join(state.causes)}" if state.causes else "trusted again")
            self._changed(state)


def _problem(status: os.stat_result, directory_uid: int) -> str:
    """Why a file with this status says nothing; empty where it does."""
    if not stat.S_ISREG(status.st_mode):
        return "is no file"
    if status.st_uid not in (0, os.geteuid(), directory_uid):
        return f"is that of user {status.st_uid}, neither root's, mine nor that of its directory"
    return "can be written by others than its owner" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""
