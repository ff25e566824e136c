"""The kernel's log through /dev/kmsg: one record a read, each with the facility that wrote it.

Any user who may write /dev/kmsg writes records of facility 1 (user), whatever they say; only the kernel itself writes facility 0.
So a reader that is to believe what it reads asks for facility 0 alone.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

KERNEL_FACILITY: Final = 0
USER_FACILITY: Final = 1

# The kernel hands out one record a read, and refuses a buffer that is smaller than the record. Its own limit is 8192.
_RECORD_BYTES: Final = 8192
# A flood in the log must not hold the reader for ever: what is left is read at the next look.
RECORDS_A_READ: Final = 4_000
_ESCAPE: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")


class Record(NamedTuple):
    """One record: who wrote it (`facility`), how bad it is (`level`, 0 to 7), its number, microseconds after boot, the text.

    The time stands still while the machine is suspended, and drifts from the clock by seconds a day.
    """

    facility: int
    level: int
    sequence: int
    time_us: int
    text: str


def parse(record: bytes) -> Record | None:
    """A record as /dev/kmsg gives it: `priority,sequence,time,flags[,...];text` and lines of properties. None when it is none."""
    head, semicolon, rest = record.partition(b";")
    words = head.split(b",")
    if not semicolon or len(words) < 3 or not all(word.isdigit() for word in words[:3]):
        return None
    priority, sequence, time_us = (int(word) for word in words[:3])
    line = _ESCAPE.sub(lambda escape: bytes([int(escape[1], 16)]), rest.partition(b"\n")[0])
    return Record(priority >> 3, priority & 7, sequence, time_us, line.decode("utf-8", "replace"))


class KernelLog:
    """Reads on from where it stood, also after a read that failed: the kernel numbers its records, and none is given twice. The
    first read gives what the log still holds from before.

    `overruns` counts how often records were overwritten before they could be read; `is_behind` is whether the last read left some.
    """

    def __init__(self, path: Path = Path("/dev/kmsg")) -> None:
        self._path = str(path)
        self._descriptor: int | None = None
        self._given = self._given_before = -1
        self.overruns = 0
        self.is_behind = False

    def read(self) -> list[Record]:
        """The records since the last read, at most `RECORDS_A_READ`. Raises OSError where the log may not be read; the next read
        tries again, and gives what this one had read."""
        records = [record for record in self._read() if record.sequence > self._given_before]
        self._given = max([self._given, *(record.sequence for record in records)])
        return records

    def _read(self) -> list[Record]:
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._given_before = self._given  # it begins with the oldest record again
        records: list[Record] = []
        self.is_behind = False
        for _ in range(RECORDS_A_READ):
            try:
                content = os.read(self._descriptor, _RECORD_BYTES)
            except BlockingIOError:
                return records
            except OSError as error:
                if error.errno == errno.EPIPE:  # the next read begins with the oldest record that is left
                    self.overruns += 1
                    continue
                self.close()
                raise
            if not content:
                return records
            record = parse(content)
            if record is not None:
                records.append(record)
        self.is_behind = True
        return records

    def close(self) -> None:
        """Gives the file back. A later read opens it anew."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
