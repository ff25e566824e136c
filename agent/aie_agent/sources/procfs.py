"""Reads /proc, or a tree that looks like it. Thin: what the files mean stands in `procfs_text.py`.

A process can end between any two reads, so what is gone is None. What exists and may not be read raises PermissionError, for the
caller to show.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from aie_agent.sources import procfs_text as text

_KERNELS: Final = Path("/proc")
_CHUNK_BYTES: Final = 65536
# What a file answers when its process (ESRCH), control group (ENODEV) or the kernel's support for it (EOPNOTSUPP) is not there.
_GONE: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.ENODEV, errno.EOPNOTSUPP})


def is_gone(error: OSError) -> bool:
    """Whether this says that a file, or what it tells of, is not there."""
    return error.errno in _GONE


def open_record(path: str) -> int:
    """A descriptor. Not `open()`: that costs a buffer and several system calls, 16 us where this and a read take 7."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)


def read_file(path: str, *, is_record: bool = False) -> bytes | None:
    """All of a file of /proc or /sys, or None where it is not there. Raises OSError for everything else.

    `is_record` is for what the kernel writes in one piece, such as stat, status and schedstat of a process: one read has all of it,
    and a second one, which would find the end, is not needed.
    """
    try:
        descriptor = open_record(path)
        try:
            content = chunk = os.read(descriptor, _CHUNK_BYTES)
            while chunk and not is_record:
                chunk = os.read(descriptor, _CHUNK_BYTES)
                content += chunk
            return content
        finally:
            os.close(descriptor)
    except OSError as error:
        if is_gone(error):
            return None
        raise


def read_record(path: str) -> bytes | None:
    """As `read_file`, for what the kernel writes in one piece."""
    return read_file(path, is_record=True)


ReadRecord = Callable[[str], bytes | None]
"""`read_record`, or what gives the same."""


class TaskTimes(NamedTuple):
    """One thread: context switches, and nanoseconds waited for a CPU (None where the kernel keeps no schedstat). `ran` is the
    text of its schedstat, which changes whenever the thread runs."""

    switches: text.ContextSwitches
    run_queue_ns: int | None
    ran: bytes | None = None


def _is_counted(schedstat: bytes | None) -> bool:
    """Whether the kernel counts when threads run: where it does not, it says 0 for each."""
    return schedstat is not None and not schedstat.startswith(b"0 ")


class Procfs:
    """The files of one /proc. Reads on every call and keeps nothing."""

    def __init__(self, root: Path = _KERNELS) -> None:
        self._root = str(root)
        self.is_kernels = root == _KERNELS
        """Whether it is the kernel's, where a descriptor is as good as a path, and no tree that looks like it."""
        self.ticks_per_second = os.sysconf("SC_CLK_TCK")

    def read(self, name: str) -> bytes | None:
        """A file by its path below the root, or None where it is not there."""
        return read_file(f"{self._root}/{name}")

    def names(self, directory: str) -> list[str]:
        """What a directory has, by its path below the root; nothing where it is not there. Raises OSError where it may not be
        read."""
        try:
            return os.listdir(f"{self._root}/{directory}")
        except OSError as error:
            if is_gone(error):
                return []
            raise

    def target(self, link: str) -> str | None:
        """Where a link leads, by its path below the root. None where it is not there. Raises OSError where it may not be read."""
        try:
            return os.readlink(f"{self._root}/{link}")
        except OSError as error:
            if is_gone(error):
                return None
            raise

    def cpu_times(self) -> text.CpuTimes | None:
        """CPU time of the host."""
        content = self.read("stat")
        return None if content is None else text.cpu_times(content)

    def uptime_s(self) -> float | None:
        """Seconds since boot."""
        content = self.read("uptime")
        return None if content is None else text.uptime_s(content)

    def pids(self) -> list[int]:
        """All processes that can be seen."""
        return [int(name) for name in os.listdir(self._root) if name.isdigit()]

    def hides_processes(self) -> bool:
        """Whether other users' processes are kept from us (mount option hidepid): then even pid 1 is not there."""
        try:
            return self.read("1/stat") is None
        except PermissionError:
            return True

    def stat_text(self, tgid: int, read: ReadRecord = read_record) -> bytes | None:
        """As `stat`, unread. It stays the same while a process neither computes nor touches new memory: times, faults, sizes and
        threads stand in it."""
        return read(f"{self._root}/{tgid}/stat")

    def status_text(self, tgid: int) -> bytes | None:
        """/proc/PID/status, unread; None when the process is gone. The kernel takes 20 us to write it."""
        return read_record(f"{self._root}/{tgid}/status")

    def stat(self, tgid: int) -> text.ProcessStat | None:
        """A process, or None when it is gone; a zombie is still there."""
        content = self.stat_text(tgid)
        return None if content is None else text.process_stat(content)

    def start_ticks(self, tgid: int) -> int | None:
        """When a live process started, in clock ticks after boot. None when it is gone, ended, or may not be seen."""
        try:
            stat = self.stat(tgid)
        except PermissionError:
            return None
        return None if stat is None or stat.ended else stat.start_ticks

    def uid(self, tgid: int) -> int | None:
        """The user that a process belongs to. None when it is gone, or may not be seen."""
        try:
            content = self.status_text(tgid)
        except PermissionError:
            return None
        return None if content is None else text.real_uid(content)

    def memory(self, tgid: int) -> text.ProcessMemory | None:
        """The memory of a process."""
        content = self.status_text(tgid)
        return None if content is None else text.process_memory(content)

    def cpus_allowed(self, tgid: int) -> frozenset[int] | None:
        """The CPUs that the main thread of a process may run on."""
        content = self.status_text(tgid)
        return None if content is None else text.cpus_allowed(content)

    def namespace_pids(self, tgid: int) -> tuple[int, ...]:
        """The pids of a process, from this /proc's namespace inwards. Empty when it is gone, or is a kernel thread."""
        content = self.status_text(tgid)
        if content is None or text.process_memory(content).resident_anon is None:
            return ()
        return text.namespace_pids(content)

    def tasks(
        self, tgid: int, known: Mapping[int, TaskTimes] = MappingProxyType({}), read: ReadRecord = read_record
    ) -> dict[int, TaskTimes]:
        """Every thread of a process by tid. Two small files a thread, 10 us together: callers bound how often they ask. Of a thread
        that has not run since it was `known` the first file tells that the second, the dear one, is as it was.

        The files of the same names at the level of the process are no substitute: they show its main thread only.
        """
        directory = f"{self._root}/{tgid}/task"
        try:
            tids = os.listdir(directory)
        except OSError as error:
            if is_gone(error):
                return {}
            raise
        tasks = {}
        for tid in tids:
            ran = read(f"{directory}/{tid}/schedstat")
            before = known.get(int(tid))
            if before is not None and before.ran == ran and _is_counted(ran):
                tasks[int(tid)] = before
                continue
            status = read_record(f"{directory}/{tid}/status")
            switches = None if status is None else text.context_switches(status)
            if switches is not None:
                tasks[int(tid)] = TaskTimes(switches, None if ran is None else text.run_queue_ns(ran), ran)
        return tasks

    def command(self, tgid: int) -> str:
        """The command line of a process without what may be a secret, or its name in brackets where it has none.

        Ask once a process: the kernel takes a lock of its address space for this file, which a busy process can hold for long.
        """
        line = text.command_line(self.read(f"{tgid}/cmdline") or b"")
        if line:
            return line
        stat = self.stat(tgid)
        return f"[{text.printable(stat.comm)}]" if stat is not None else ""

    def arguments(self, tgid: int) -> tuple[str, ...]:
        """The arguments of a process, for the analysis only: they may hold secrets. None of one that has no command line.
        Ask once a process, as for `command`."""
        return text.arguments(self.read(f"{tgid}/cmdline") or b"")

    def cgroups(self, tgid: int) -> text.CgroupPaths | None:
        """The control groups of a process."""
        content = self.read(f"{tgid}/cgroup")
        return None if content is None else text.cgroup_paths(content)
