"""Which GPUs a process in a container was given: by the device files that its root has, whoever put them there."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from aie_agent.sources.procfs import Procfs

_FILE: Final = re.compile(r"nvidia(\d{1,4})")
_OWN_DEV: Final = ("root", "dev")  # below /proc/PID: the device files that the process itself sees
_MAX_OPEN: Final = 4096


class DeviceFiles(NamedTuple):
    """Minor numbers of GPUs. `only_open` where they are those that the process has open, since its /dev shows none."""

    minors: frozenset[int]
    only_open: bool = False


def read_device_files(procfs: Procfs, tgid: int) -> DeviceFiles | None:
    """The GPUs that a process has files of. None where that may not be seen, or there are none.

    A directory, and where that has none a link for each open file, of which no more than 4096 are read.
    """
    try:
        there = _minors(procfs.names("/".join((str(tgid), *_OWN_DEV))))
        if there:
            return DeviceFiles(there)
        opened = procfs.names(f"{tgid}/fd")[:_MAX_OPEN]
        held = _minors(target.removeprefix("/dev/") for name in opened if (target := procfs.target(f"{tgid}/fd/{name}")))
    except OSError:
        return None
    return DeviceFiles(held, only_open=True) if held else None


def _minors(names: Iterable[str]) -> frozenset[int]:
    return frozenset(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))
