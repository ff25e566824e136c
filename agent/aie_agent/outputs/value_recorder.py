"""Records what hooks tell of requests, a CSV file an engine and model, of which `aie-agent baseline build` makes a reference. Off
by default; numbers only, never a prompt."""

from __future__ import annotations

import csv
import logging
import re
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aie_agent.request_values import STATISTICS, Arrived

log = logging.getLogger(__name__)

MOST_ROWS: Final = 20_000
"""Of a file; it is then complete."""

MOST_FILES: Final = 64
_MOST_WAITING: Final = 10_000
_NAMES: Final = [each.name for each in STATISTICS]


class _Recording:
    """The rows of one engine and model. Each statistic waits until the others of its row have come."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = _rows_in(path)
        self.waiting: dict[str, deque[float]] = {name: deque(maxlen=_MOST_WAITING) for name in _NAMES}

    def add(self, statistic: str, values: Sequence[float]) -> None:
        if self.rows < MOST_ROWS and statistic in self.waiting:
            self.waiting[statistic].extend(values)

    def write(self) -> None:
        """Appends all whole rows. Raises OSError."""
        whole = min(min(map(len, self.waiting.values())), MOST_ROWS - self.rows)
        if whole < 1:
            return
        with self.path.open("a", newline="") as file:
            writer = csv.writer(file)
            if not self.rows:
                writer.writerow(_NAMES)
            writer.writerows([self.waiting[name].popleft() for name in _NAMES] for _ in range(whole))
        self.rows += whole


def _rows_in(path: Path) -> int:
    """Of a recording that goes on after a restart."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return max(0, sum(1 for _ in file) - 1)


class ValueRecorder:
    """Writes into a directory. Never raises: where it cannot write, the log says so, once, and nothing is recorded."""

    def __init__(self, directory: Path | None) -> None:
        """None: nothing is recorded."""
        self._directory = directory
        self._recordings: dict[tuple[str, str], _Recording] = {}
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

    def write(self) -> None:
        """Appends what was noted. May block: to be called in a worker thread."""
        try:
            for recording in self._recordings.values() if self.is_on else ():
                recording.write()
        except OSError as error:
            log.warning("drift.record: %s: %s: nothing is recorded", error.filename, error.strerror)
            self._failed = True

    def _recording(self, engine: str, model: str) -> _Recording | None:
        key = engine, model
        if key not in self._recordings:
            if self._directory is None or len(self._recordings) >= MOST_FILES:
                return None
            name = re.sub(r"[^A-Za-z0-9._@-]", "_", f"{engine}-{model}")[:128]
            try:
                self._recordings[key] = _Recording(self._directory / f"{name}.csv")
            except OSError as error:
                log.warning("drift.record: %s: %s: nothing is recorded", error.filename, error.strerror)
                self._failed = True
                return None
        return self._recordings[key]
