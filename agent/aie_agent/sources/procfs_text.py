"""What the files under /proc say: bytes to values, nothing else. No parser here opens a file or knows a clock.

Input is bytes, since a process may call itself anything. A line or field that is missing gives None; a file that makes no sense
at all raises ValueError.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from aie_agent.secret_words import masked

CPU_MODES: Final = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
"""The first columns of the "cpu" line, in its order. Guest time follows them there, and is contained in user and nice."""

_KIB: Final = 1024
_ONLINE_CPU: Final = re.compile(rb"^cpu\d", re.MULTILINE)
_PRESSURE: Final = re.compile(rb"^(some|full) .*\btotal=(\d+)", re.MULTILINE)
_COMM_END: Final = b") "
# docker-ID.scope, cri-containerd-ID.scope, libpod-ID.scope, /docker/ID, /kubepods/.../ID
_CONTAINER: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


class CpuTimes(NamedTuple):
    """CPU time of all CPUs in clock ticks by mode (modes are disjoint), and how many CPUs are online."""

    ticks: dict[str, int]
    online: int


class ProcessStat(NamedTuple):
    """/proc/PID/stat. Times in clock ticks; `start_ticks` counts from boot. `comm` is as the process calls itself."""

    comm: bytes
    state: str
    major_faults: int
    user_ticks: int
    system_ticks: int
    threads: int
    start_ticks: int
    parent_tgid: int = 0
    session: int = 0

    @property
    def ended(self) -> bool:
        """A zombie, waiting for its parent. A process whose main thread alone has ended looks like one but has more threads."""
        return self.state in "ZXx" and self.threads <= 1


class ProcessMemory(NamedTuple):
    """The memory lines of /proc/PID/status, in bytes. All None for a kernel thread."""

    resident_anon: int | None
    resident_file: int | None
    resident_shmem: int | None
    swap: int | None


class ContextSwitches(NamedTuple):
    """Of ONE thread, also where they stand in the status of a process: there they are those of its main thread."""

    voluntary: int
    involuntary: int


class CgroupPaths(NamedTuple):
    """Where a process stands in the hierarchies of control groups. None where it is in no such hierarchy."""

    unified: str | None
    cpu: str | None
    memory: str | None


def cpu_times(stat: bytes) -> CpuTimes:
    """/proc/stat. Old kernels have fewer columns: the modes they lack are absent."""
    first, _, _ = stat.partition(b"\n")
    words = first.split()
    if not words or words[0] != b"cpu":
        raise ValueError("no cpu line")
    ticks = dict(zip(CPU_MODES, map(int, words[1:]), strict=False))
    return CpuTimes(ticks, len(_ONLINE_CPU.findall(stat)))


def meminfo(text: bytes, names: tuple[str, ...]) -> dict[str, int]:
    """/proc/meminfo: the named lines that are there, in bytes."""
    found = {name: _field(text, f"{name}:".encode()) for name in names}
    return {name: value * _KIB for name, value in found.items() if value is not None}


def vmstat(text: bytes, names: tuple[str, ...]) -> dict[str, int]:
    """/proc/vmstat: the named counters that are there."""
    found = {name: _field(text, f"{name} ".encode()) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def load1(loadavg: bytes) -> float:
    """/proc/loadavg: the average over one minute."""
    return float(loadavg.split(None, 1)[0])


def uptime_s(uptime: bytes) -> float:
    """/proc/uptime: seconds since boot, suspended time included, as start times of processes are."""
    return float(uptime.split(None, 1)[0])


def pressure(text: bytes) -> dict[str, int]:
    """/proc/pressure/RESOURCE: microseconds stalled since boot, by "some" and "full". What is not there is absent."""
    return {kind.decode(): int(total) for kind, total in _PRESSURE.findall(text)}


def process_stat(stat: bytes) -> ProcessStat:
    """/proc/PID/stat. The name stands in parentheses, unescaped, and may contain spaces, newlines and parentheses itself."""
    start = stat.find(b"(")
    end = stat.rfind(_COMM_END)
    if start < 0 or end < start:
        raise ValueError("no name in parentheses")
    # Behind the name, field 3 (state) is the first; proc(5) counts from 1.
    fields = stat[end + 2 :].split(None, 20)
    if len(fields) < 20:
        raise ValueError(f"only {len(fields) + 2} fields")
    return ProcessStat(
        comm=stat[start + 1 : end],
        state=fields[0].decode("ascii", "replace"),
        major_faults=int(fields[9]),
        user_ticks=int(fields[11]),
        system_ticks=int(fields[12]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        parent_tgid=int(fields[1]),
        session=int(fields[3]),
    )


def process_memory(status: bytes) -> ProcessMemory:
    """/proc/PID/status, memory."""
    return ProcessMemory(*(_kib(status, name) for name in (b"RssAnon:", b"RssFile:", b"RssShmem:", b"VmSwap:")))


def context_switches(status: bytes) -> ContextSwitches | None:
    """/proc/PID/task/TID/status, context switches."""
    # They are the last two lines, and asked for of every thread: searched from the end.
    start = status.rfind(b"\nvoluntary_ctxt_switches:")
    words = status[start:].split() if start >= 0 else []
    if len(words) < 4 or words[2] != b"nonvoluntary_ctxt_switches:":
        return None
    return ContextSwitches(int(words[1]), int(words[3]))


def namespace_pids(status: bytes) -> tuple[int, ...]:
    """/proc/PID/status: the pid in each pid namespace that the process is in, the reader's first, its own last."""
    start = status.find(b"\nNSpid:")
    if start < 0:
        return ()
    line = status[start + 7 : status.find(b"\n", start + 1)]
    return tuple(int(word) for word in line.split())


def cpu_list(text: bytes) -> frozenset[int]:
    """CPUs as the kernel lists them: "0-3,8". Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(b",")):
        first, _, last = part.partition(b"-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def cpus_allowed(status: bytes) -> frozenset[int] | None:
    """/proc/PID/status: the CPUs that the main thread may run on."""
    start = status.find(b"\nCpus_allowed_list:")
    return None if start < 0 else cpu_list(status[start + 19 : status.find(b"\n", start + 1)])


def real_uid(status: bytes) -> int | None:
    """/proc/PID/status: the user that a process belongs to, whatever program it runs. (The owner of the folder is root for one that
    does not want to be dumped.) None where the file does not say."""
    return _field(status, b"Uid:")


def run_queue_ns(schedstat: bytes) -> int | None:
    """/proc/PID/task/TID/schedstat: nanoseconds that this one thread was ready and waited for a CPU."""
    words = schedstat.split()
    return int(words[1]) if len(words) >= 3 else None


def command_line(cmdline: bytes, most_chars: int = 120) -> str:
    """/proc/PID/cmdline as one line that is safe to show, without what may be a secret, cut to `most_chars`. Empty for a kernel
    thread."""
    parts = cmdline[: 8 * most_chars].rstrip(b"\0").split(b"\0")
    return printable(" ".join(masked([part.decode("utf-8", "replace") for part in parts])).encode(), most_chars)


def printable(text: bytes, most_chars: int = 120) -> str:
    """Text of a process as one line that moves no cursor, cut to `most_chars`."""
    line = " ".join(text[: 4 * most_chars].decode("utf-8", "replace").split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)[:most_chars]


def arguments(cmdline: bytes, most: int = 200, most_chars: int = 200) -> tuple[str, ...]:
    """/proc/PID/cmdline as arguments, each cut to `most_chars` and printable, no more than `most`. They may hold secrets: only the
    analysis may have them, which compares them and shows none (`analysis.arguments`)."""
    parts = cmdline.rstrip(b"\0").split(b"\0")[:most] if cmdline else []
    return tuple(printable(part, most_chars) for part in parts)


def cgroup_paths(cgroup: bytes) -> CgroupPaths:
    """/proc/PID/cgroup: the path in the unified hierarchy, and in those of v1 for cpu and memory."""
    paths: dict[str, str] = {}
    for line in cgroup.split(b"\n"):
        number, _, rest = line.partition(b":")
        controllers, colon, path = rest.partition(b":")
        if not colon:
            continue
        where = os.fsdecode(path)
        if number == b"0" and not controllers:
            paths["unified"] = where
        for controller in controllers.decode("ascii", "replace").split(","):
            paths.setdefault(controller, where)
    return CgroupPaths(paths.get("unified"), paths.get("cpu"), paths.get("memory"))


def container_id(cgroup: bytes) -> str | None:
    """/proc/PID/cgroup: the first 12 digits of the innermost container's id, as container runtimes show it. None outside of any."""
    found = _CONTAINER.findall(cgroup)
    return found[-1][:12].decode() if found else None


def udp_drops(table: bytes, inode: int) -> int | None:
    """/proc/net/udp or udp6: packets dropped at the socket with this inode, the last column. None where it is not listed."""
    wanted = str(inode).encode()
    for line in table.split(b"\n")[1:]:
        words = line.split()
        if len(words) >= 13 and words[9] == wanted:
            return int(words[-1])
    return None


def _field(text: bytes, name: bytes) -> int | None:
    """The integer behind `name` at the start of a line."""
    start = 0 if text.startswith(name) else text.find(b"\n" + name) + 1
    if start == 0 and not text.startswith(name):
        return None
    end = text.find(b"\n", start)
    words = text[start + len(name) : end if end >= 0 else len(text)].split(None, 1)
    return int(words[0]) if words else None


def _kib(text: bytes, name: bytes) -> int | None:
    value = _field(text, name)
    return None if value is None else value * _KIB
