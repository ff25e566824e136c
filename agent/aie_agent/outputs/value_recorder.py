"""Records what hooks tell of requests, a CSV file an engine and model, of which `aie-agent baseline build` makes a reference. Off
by default; numbers only, never a prompt.

A file never ends and never grows: blocks of neighbouring requests are kept, evenly spread over all that came since its beginning.
Where there are too many, every other block goes, and of what comes every other block is kept from then on. So a file of days holds
its nights as well. `request` numbers the requests that came; which blocks are kept is read from it after a restart.
"""

from __future__ import annotations

import csv
import logging
import math
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aie_agent.request_values import STATISTICS, Arrived

log = logging.getLogger(__name__)

MOST_ROWS: Final = 20_000
"""Of a file."""

BLOCK_ROWS: Final = 500
"""Requests that are kept, or left out, together: what depends on each other stays together."""

MOST_FILES: Final = 64
_MOST_WAITING: Final = 10_000
_NAMES: Final = [each.name for each in STATISTICS]
_HEADER: Final = ["time_s", "request", *_NAMES]
_REQUEST: Final = _HEADER.index("request")
_NO_RECORDING: Final = (ValueError, IndexError, csv.Error)


class _Recording:
    """The rows of one engine and model. Each statistic waits until the others of its row have come."""

    def __init__(self, path: Path) -> None:
        """Goes on with a file of before. Raises OSError, and `_NO_RECORDING` for one that is none."""
        self.path = path
        requests = _requests_in(path)
        self.rows = len(requests)
        self.waiting: dict[str, deque[float]] = {name: deque(maxlen=_MOST_WAITING) for name in _NAMES}
        self._next = requests[-1] + 1 if requests else 0
        self._every = math.gcd(*{request // BLOCK_ROWS for request in requests}) or 1

    def add(self, statistic: str, values: Sequence[float]) -> None:
        if statistic in self.waiting:
            self.waiting[statistic].extend(values)

    def write(self, now_s: float) -> None:
        """Appends the whole rows that are kept. Raises OSError, and `_NO_RECORDING` where someone else wrote into the file."""
        kept = []
        for _ in range(min(map(len, self.waiting.values()))):
            row = [self.waiting[name].popleft() for name in _NAMES]
            if self._is_kept(self._next):
                kept.append([f"{now_s:.1f}", self._next, *row])
            self._next += 1
        if not kept:
            return
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if not self.rows:
                writer.writerow(_HEADER)
            writer.writerows(kept)
        self.rows += len(kept)
        while self.rows > MOST_ROWS:
            self._thin()

    def _is_kept(self, request: int) -> bool:
        return request // BLOCK_ROWS % self._every == 0

    def _thin(self) -> None:
        """Every other block goes. The file is put in place whole."""
        self._every *= 2
        with self.path.open(newline="") as file:
            rows = list(csv.reader(file))[1:]
        kept = [row for row in rows if self._is_kept(int(row[_REQUEST]))]
        scratch = self.path.with_suffix(".new")
        with scratch.open("w", newline="") as file:
            csv.writer(file).writerows([_HEADER, *kept])
        scratch.replace(self.path)
        self.rows = len(kept)


def _requests_in(path: Path) -> list[int]:
    """The numbers of the requests of a recording that goes on after a restart. Raises OSError and `_NO_RECORDING`."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        rows = csv.reader(file)
        if (header := next(rows, _HEADER)) != _HEADER:
            raise ValueError(f"its columns are {','.join(header)[:80]}: move it away")
        return [int(row[_REQUEST]) for row in rows]


class ValueRecorder:
    """Writes into a directory. Never raises: where it cannot write, the log says so, once, and nothing is recorded."""

    def __init__(self, directory: Path | None) -> None:
        """None: nothing is recorded."""
        self._directory = directory
        self._recordings: dict[tuple[str, str], _Recording | None] = {}
        self._failed = False

    @property
    def is_on(self) -> bool:
        """Whether `write` does anything."""
        return self._directory is not None and not self._failed

    def take(self, arrived: Sequence[Arrived]) -> None:
        """Notes what came; nothing is written yet."""
        for each in arrived if self.is_on else ():
            recording = self._recording(each.engine, each.model)
            if recording is not None:
                recording.add(each.statistic, each.values)

    def write(self, now_s: float) -> None:
        """Appends what was noted, as of this time, seconds since the epoch. May block: to be called in a worker thread."""
        try:
            for recording in self._recordings.values() if self.is_on else ():
                if recording is not None:
                    recording.write(now_s)
        except OSError as error:
            log.warning("drift.record: %s: %s: nothing is recorded", error.filename, error.strerror)
            self._failed = True
        except _NO_RECORDING as error:
            log.warning("drift.record: a file was changed by someone else: %s: nothing is recorded", error)
            self._failed = True

    def _recording(self, engine: str, model: str) -> _Recording | None:
        key = engine, model
        if key not in self._recordings:
            if self._directory is None or len(self._recordings) >= MOST_FILES:
                return None
            name = re.sub(r"[^A-Za-z0-9._@-]", "_", f"{engine}-{model}")[:128]
            path = self._directory / f"{name}.csv"
            try:
                self._recordings[key] = _Recording(path)
            except OSError as error:
                log.warning("drift.record: %s: %s: nothing is recorded", error.filename, error.strerror)
                self._failed = True
                return None
            except _NO_RECORDING as error:
                log.warning("drift.record: %s is no recording of this agent, and is left alone: %s", path, error)
                self._recordings[key] = None
        return self._recordings[key]
