"""The processes on GPUs for `aie-agent check`: their CUDA, the CPUs that they may use, and what is gone and still holds memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from aie_agent.analysis import gpu_checklist as checklist
from aie_agent.commands.check_gpu_rows import GpuCheck, gpu_row
from aie_agent.sources.cuda_runtime import CudaLibraries, cuda_libraries
from aie_agent.sources.procfs import Procfs

MAX_PROCESSES: Final = 64
"""Most processes of one GPU that are looked at."""


class Look(NamedTuple):
    """What /proc says of a pid: "lives", "gone", "zombie", or "hidden" where it may not be seen."""

    state: str
    parent_tgid: int | None = None


def look(procfs: Procfs, pid: int) -> Look:
    """A pid of NVML's list, now."""
    try:
        stat = procfs.stat(pid)
        if stat is None:
            return Look("hidden" if procfs.hides_processes() else "gone")
    except (OSError, ValueError):
        return Look("hidden")
    return Look("zombie" if stat.ended else "lives", stat.parent_tgid or None)


def ended(procfs: Procfs, pids: Iterable[int]) -> set[int]:
    """Those that are gone or only wait to be reaped. The driver takes a moment to notice: look a second time."""
    return {pid for pid in pids if look(procfs, pid).state in ("gone", "zombie")}


def held_row(procfs: Procfs, pid: int) -> GpuCheck:
    """A process that had ended at both looks, and is in NVML's list still."""
    seen = look(procfs, pid)
    if seen.state == "zombie":
        found = "ended and holds a context on a GPU still: its parent has not waited for it"
        return GpuCheck(f"process {pid}", True, False, False, found, f"end its parent, process {seen.parent_tgid}")
    found = "holds a context on a GPU, and is not in /proc"
    return GpuCheck(f"process {pid}", True, False, False, found, "it ended and the driver hangs on to it: reset the GPU")


def process_rows(
    procfs: Procfs, pid: int, near: frozenset[int] | None, driver: str, cuda: tuple[int, int] | None
) -> Iterator[GpuCheck]:
    """What can be said of a process that lives; one row that says so where it may not be seen, nothing where it just ended."""
    name = f"process {pid}"
    state = look(procfs, pid).state
    if state == "hidden":
        found = "holds a context on a GPU, and may not be seen (/proc is mounted with hidepid, or it is another user's)"
        yield GpuCheck(name, False, False, True, found, "run as root, or as its user")
    if state != "lives":
        return
    try:
        command = procfs.command(pid)
    except (OSError, ValueError):
        command = "(its command cannot be read)"
    try:
        libraries = cuda_libraries(procfs.read(f"{pid}/maps") or b"")
    except OSError:
        libraries = CudaLibraries()
        found = f"{command}: its libraries cannot be seen"
        yield GpuCheck(f"{name}: CUDA", False, False, True, found, "run as root, or as its user")
    for check in checklist.check_process(name, libraries, driver, cuda, allowed_cpus(procfs, pid), near):
        row = gpu_row(check)
        yield row._replace(found=f"{command}: {row.found}")


def allowed_cpus(procfs: Procfs, pid: int) -> frozenset[int] | None:
    """The CPUs that a process may run on; None where that cannot be read."""
    content = procfs.read(f"{pid}/status") or b""
    for line in content.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"Cpus_allowed_list":
            return parse_cpus(value.decode("ascii", "replace"))
    return None


def parse_cpus(text: str) -> frozenset[int] | None:
    """ "0-3,8" as a set. None for what is none."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        if not low.isdecimal() or not (high or low).isdecimal():
            return None
        cpus.update(range(int(low), int(high or low) + 1))
    return frozenset(cpus)
