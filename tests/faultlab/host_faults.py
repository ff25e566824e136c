"""Faults of the host: CPUs that others take, and a quota. What cannot be had here is said, and the fault left out."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from tests.faultlab.faults import PLAIN, SLOW, Fault
from tests.faultlab.judge import Answer
from tests.faultlab.programs import LabError, take_nice_along
from tests.faultlab.world import World

NEIGHBOURS: Final = 4
QUOTA_CORES: Final = 0.3
GROUP_KNOWN_S: Final = 11.0
"""The agent looks every ten seconds in which group a process is."""
_PERIOD_US: Final = 100_000
_V1: Final = Path("/sys/fs/cgroup/cpu")
_V2: Final = Path("/sys/fs/cgroup")


def _threads(pid: int) -> list[int]:
    return [int(each.name) for each in Path(f"/proc/{pid}/task").iterdir()]


def _pin(pid: int, cpus: set[int]) -> None:
    for tid in _threads(pid):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(tid, cpus)


@contextlib.contextmanager
def _neighbours(world: World) -> Iterator[None]:
    """The engine shares one core with others that never sleep; the rest of the host stays as it is."""
    before = os.sched_getaffinity(world.engine.pid)
    cpu = {min(before)}
    busy = f"import os\nos.sched_setaffinity(0, {cpu!r})\nwhile True: pass"
    with contextlib.ExitStack() as stack:
        for _ in range(NEIGHBOURS):
            process = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.DEVNULL, start_new_session=True)
            take_nice_along(process.pid)  # the engine's neighbours are its equals
            stack.callback(process.wait)
            stack.callback(process.kill)
        _pin(world.engine.pid, cpu)
        stack.callback(_pin, world.engine.pid, before)
        yield


@contextlib.contextmanager
def _group() -> Iterator[tuple[Path, Callable[[], None]]]:
    """A control group, and what sets its quota. Raises LabError where none can be made."""
    v1 = (_V1 / "cpu.cfs_quota_us").exists() or (_V1 / "cgroup.procs").exists()
    group = (_V1 if v1 else _V2) / f"aie-faultlab-{os.getpid()}"
    quota_us = int(QUOTA_CORES * _PERIOD_US)

    def limit() -> None:
        try:
            if v1:
                (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        except OSError as error:
            raise LabError(f"no quota can be set: {error.strerror}") from error

    try:
        group.mkdir()
    except OSError as error:
        raise LabError(f"no control group can be made: {error.strerror}") from error
    try:
        _weigh(group, v1=v1)
        yield group, limit
    finally:
        group.rmdir()


def _weigh(group: Path, *, v1: bool) -> None:
    """A nice value counts only within a group: so the group weighs more. A step of nice is a quarter, as the kernel has it."""
    file, usual, most = ("cpu.shares", 1024, 200_000) if v1 else ("cpu.weight", 100, 10_000)
    weight = round(usual * 1.25 ** -os.nice(0))
    (group / file).write_text(str(min(max(weight, 2), most)))


@contextlib.contextmanager
def _quota(world: World) -> Iterator[None]:
    """As in a container: the engine's group is known to the agent, and gets a quota."""
    with _group() as (group, limit):
        pid = world.engine.pid
        home = _home(pid, group.parent)
        (group / "cgroup.procs").write_text(str(pid))
        try:
            time.sleep(GROUP_KNOWN_S)
            limit()
            yield
        finally:
            (home / "cgroup.procs").write_text(str(pid))


def _home(pid: int, root: Path) -> Path:
    """The group that a process is in now."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if (root == _V1 and "cpu" in controllers.split(",")) or (root == _V2 and not controllers):
            return root / path.lstrip("/")
    raise LabError(f"process {pid} is in no group below {root}")


HOST_FAULTS: Final = (
    Fault("cpu-neighbour", f"{NEIGHBOURS} processes spin on its only core", PLAIN, _neighbours, Answer("cpu_starved"), SLOW),
    Fault(
        "cpu-quota",
        f"a cgroup quota of {QUOTA_CORES} cores",
        PLAIN,
        _quota,
        Answer("cpu_throttled"),
        ("cpu_starved", *SLOW),
    ),
)
