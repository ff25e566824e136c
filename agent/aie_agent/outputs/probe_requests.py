"""A file that asks engines whose memory may leak to give back what they only retain: those that watch it answer, none has to.

Off by default: only an operator who says so has engines asked, and only an engine whose owner says so looks. The other side is the
hooks' MemoryProbe; what is said stands in aie_telemetry.memory_probe."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.outputs.placed_file import place
from aie_telemetry.api import Finding
from aie_telemetry.memory_probe import REQUESTS_NAME, ProbeRequest, encode_requests

log = logging.getLogger(__name__)

ASKING: Final = frozenset({"memory_leak", "memory_fragmentation"})
"""Causes that an answer can settle."""

EVERY_S: Final = 600.0
"""The least time between two requests to one engine, at the pace of the leak analysis."""

AGAIN_S: Final = 12 * 3600.0
"""An engine whose memory goes on rising is asked anew after so long: about when half a day's suspicion is a day's leak."""

VALID_S: Final = 120.0
"""So long a line holds, unless it is written anew: an agent that was killed leaves its file behind."""

_RENEWED_S: Final = 30.0


class _Asked(NamedTuple):
    """What an engine is asked by, and since when."""

    id: str
    since_s: float


class ProbeRequests:
    """Written whole and put in place at once, when another engine is asked or what stands there grows old; removed when none is.
    Never raises: a file that cannot be written is told to the log, once."""

    def __init__(self, socket: Path | None, time_scale: float = 1.0) -> None:
        """`socket` is the agent's, beside which the file lies; None: nothing is asked. `time_scale` is the leak analysis'."""
        self._path = None if socket is None else socket.with_name(REQUESTS_NAME)
        self._every_s = EVERY_S / time_scale
        self._again_s = AGAIN_S / time_scale
        self._asked: dict[str, _Asked] = {}
        self._written: list[str] | None = None
        self._written_s = 0.0
        self._complained = False

    @property
    def is_on(self) -> bool:
        """Whether anybody is asked at all."""
        return self._path is not None

    def asked(self, engine: str) -> str | None:
        """The id of the request that stands, or stood last, for an engine; None where it was not asked."""
        found = self._asked.get(engine)
        return None if found is None else found.id

    def update(self, findings: Sequence[Finding], engines: Sequence[str], aliases: Mapping[str, str], now_s: float) -> None:
        """The findings that hold now, the engines that are known, and their names by those that they call themselves; seconds since
        the epoch."""
        if self._path is None:
            return
        self._asked = {engine: asked for engine, asked in self._asked.items() if engine in engines}
        rows = [
            ProbeRequest(engine=name, ask="memory_probe", id=asked.id, expires_s=now_s + VALID_S)
            for engine, asked in self._suspects(findings, engines, now_s)
            for name in (engine, *(own for own, known in aliases.items() if known == engine))
        ]
        ids = [f"{row.engine} {row.id}" for row in rows]
        is_old = bool(rows) and not 0.0 <= now_s - self._written_s < _RENEWED_S
        if self._written is not None and not is_old and ids == self._written:
            return
        try:
            place(self._path, encode_requests(rows))
            self._written, self._written_s, self._complained = ids, now_s, False
        except OSError as error:
            if not self._complained:
                log.warning("leaks.memory_probe: %s cannot be written: %s", self._path, error.strerror)
            self._complained = True

    def _suspects(self, findings: Sequence[Finding], engines: Sequence[str], now_s: float) -> Iterator[tuple[str, _Asked]]:
        since_s: dict[str, float] = {}
        for finding in findings:
            if finding.cause in ASKING and finding.subject in engines:
                since_s[finding.subject] = min(finding.since_s, since_s.get(finding.subject, finding.since_s))
        for engine, began_s in sorted(since_s.items()):
            # Made of the rise alone, so that an agent that was restarted asks nothing twice.
            wanted = f"{began_s:.0f}-{max(now_s - began_s, 0.0) // self._again_s:.0f}"
            asked = self._asked.get(engine)
            if asked is None or (asked.id != wanted and now_s - asked.since_s >= self._every_s):
                asked = self._asked[engine] = _Asked(wanted, now_s)
            yield engine, asked
