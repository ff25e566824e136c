"""stat and schedstat of processes and threads, which are read each second: opened once, and read by the descriptor from then on.

To find a process by its path and to open a file of it takes longer than to read it. A descriptor belongs to the process that it was
opened for: once that has ended it gives an error, whoever has the number by then, and the path is asked again.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection
from typing import Final

from aie_agent.sources.procfs import is_gone, open_record

MOST_KEPT: Final = 1024
"""Descriptors at most; less where the process may have few. Each holds a page of the kernel's memory."""

_SHARE: Final = 4  # of the descriptors that this process may have
_RECORD_BYTES: Final = 4096  # stat and schedstat have less than 1 KB


class KeptRecords:
    """Reads records (`procfs.read_record`) by their owner, a process. For one thread at a time."""

    def __init__(self, most: int = MOST_KEPT) -> None:
        """Keeps the first `most` that are asked for, until they are given up."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = most if soft == resource.RLIM_INFINITY else min(most, soft // _SHARE)
        self._kept: dict[int, dict[str, int]] = {}
        self._count = 0

    def __len__(self) -> int:
        """How many are open."""
        return self._count

    def read(self, tgid: int, path: str) -> bytes | None:
        """As `read_record`."""
        files = self._kept.get(tgid)
        descriptor = None if files is None else files.get(path)
        if descriptor is not None and files is not None:
            try:
                return os.pread(descriptor, _RECORD_BYTES, 0)
            except OSError:  # it ended: the path may lead to another by now
                self._close(files, path)
        return self._open(tgid, path)

    def count(self, tgid: int) -> int:
        """How many of a process are open."""
        return len(self._kept.get(tgid, ()))

    def give_up(self, tgid: int) -> None:
        """Closes the files of a process. They are opened again when they are asked for."""
        files = self._kept.pop(tgid, {})
        for path in list(files):
            self._close(files, path)

    def only(self, tgids: Collection[int]) -> None:
        """Closes the files of all other processes."""
        for tgid in self._kept.keys() - set(tgids):
            self.give_up(tgid)

    def _open(self, tgid: int, path: str) -> bytes | None:
        try:
            descriptor = open_record(path)
        except OSError as error:
            if is_gone(error):
                return None
            raise
        is_kept = self._count < self._most
        try:
            content = os.read(descriptor, _RECORD_BYTES)
        except OSError as error:
            is_kept = False
            if is_gone(error):
                return None
            raise
        finally:
            if is_kept:
                self._kept.setdefault(tgid, {})[path] = descriptor
                self._count += 1
            else:
                os.close(descriptor)
        return content

    def _close(self, files: dict[str, int], path: str) -> None:
        os.close(files.pop(path))
        self._count -= 1
