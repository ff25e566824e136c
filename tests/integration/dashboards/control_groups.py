"""Control groups with limits around a process, in whichever version of the hierarchy there is; needs root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.programs import eventually

ROOT: Final = Path("/sys/fs/cgroup")
MEMORY_BYTES: Final = 256 << 20
_V1: Final = (
    ("memory", "memory.limit_in_bytes", str(MEMORY_BYTES)),
    ("cpu", "cpu.cfs_quota_us", "10000"),
)
_V2: Final = (("", "memory.max", str(MEMORY_BYTES)), ("", "cpu.max", "10000 100000"))
"""A controller's folder, a file of it, and what limits: memory, and a tenth of one CPU."""


@contextlib.contextmanager
def limited(tgid: int) -> Iterator[None]:
    """Puts a process into groups of its own, which end after it does. Raises OSError where none can be made."""
    limits = _V1 if (ROOT / "memory").is_dir() else _V2
    groups = list(dict.fromkeys(ROOT / controller / f"aie-boards-{os.getpid()}" for controller, _, _ in limits))
    try:
        for group in groups:
            group.mkdir()
        for controller, file, limit in limits:
            (ROOT / controller / f"aie-boards-{os.getpid()}" / file).write_text(limit)
        for group in groups:
            (group / "cgroup.procs").write_text(f"{tgid}\n")
        yield
    finally:
        for group in groups:
            if group.is_dir():
                eventually(lambda group=group: _removed(group))


def _removed(group: Path) -> bool:
    """The kernel lets a group go when the last process has."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True
