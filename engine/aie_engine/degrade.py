"""What an engine does while an agent says that its answers are not to be trusted: a file says so, and the engine watches it.

    aie-agent: [drift] on_alarm = "PATH"        aie-engine serve --degrade-file PATH

Answers carry the header `X-Aie-Degraded` with the causes, `/health` says "degraded", and no answer is kept in the response cache,
which is emptied: so what is wrong does not outlive its cause. On a critical cause (NaN, answers all alike) `/health/ready` says
"not ready" as well: whoever routes sends requests elsewhere. The engine goes on answering whoever asks it.

Only lines of the engine's own name count, and only until their `expires_s`: an agent that died degrades nobody for longer than two
minutes. What cannot be read degrades nobody either.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from aie_telemetry.degraded import Degraded

HEADER: Final = "X-Aie-Degraded"
POLL_S: Final = 1.0
_MOST_BYTES: Final = 1 << 20  # a line an engine and cause of one host: far more than any agent writes

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


def state_of(content: bytes, engine: str, now_s: float) -> State:
    """What the file says of an engine at `now_s`, seconds since the epoch. Lines that are none of ours are passed over."""
    held = []
    for line in content.splitlines():
        try:
            row = _decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if row.engine == engine and row.expires_s > now_s and row.cause.isidentifier() and row.cause.isascii():
            held.append(row)
    return State(tuple(sorted({row.cause for row in held})), any(row.severity == "critical" for row in held))


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

    def read(self) -> bytes:
        """The file; nothing where there is none, or where it cannot be read, which the log says once."""
        try:
            # Not to wait for a writer, where somebody gives a FIFO.
            with open(os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            content = b""
        except OSError as error:
            if not self._complained:
                _log.warning("--degrade-file %s cannot be read, and is not heeded: %s", self._path, error.strerror)
            self._complained = True
            return b""
        self._complained = False
        return content

    def look(self, content: bytes) -> None:
        """Takes in what the file says now."""
        state = state_of(content, self._engine, self._clock())
        if state != self._state:
            self._state = state
            _log.warning("answers are %s", f"not to be trusted: {', '.join(state.causes)}" if state.causes else "trusted again")
            self._changed(state)
