"""What a control group says of CPU quota and memory: cgroup v2, and v1 where a host still has it.

A process can stand in a group that is not visible here (the agent in a container of its own sees paths that begin with "/.."), or
that is gone by now: then there is nothing to say, which is no error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.sources.procfs import read_file
from aie_agent.sources.procfs_text import CgroupPaths

# v1 says "no limit" with the largest number of pages that it can count.
_V1_UNLIMITED: Final = 1 << 62
# Limits change when somebody changes them: looking up the whole path every second would cost more than all else here. What is held
# below them is looked up with them: who warns of it waits for minutes.
_LIMITS_KEPT_S: Final = 10.0
# One look at a path for a whole group; who sets a quota finds the engine slow at once.
_QUOTA_KEPT_S: Final = 2.0
_MAX_KEPT: Final = 256


class Throttling(NamedTuple):
    """The CPU quota that binds a group: whose it is, its enforcement periods, those in which it stopped the group, how long."""

    group: str
    periods: int
    throttled_periods: int
    throttled_s: float


class MemoryUse(NamedTuple):
    """Memory charged to a group, and the tightest limit of it and its ancestors (None without one), in bytes.

    `held_ratio` is of the one of them that is nearest to its own limit: how much of it is held by what the kernel cannot take back
    (anonymous and shared memory of all that is in the group, each page once). None without a limit, and where memory.stat does not
    say.
    """

    group: str
    used: int
    limit: int | None
    held_ratio: float | None


class _Bounds(NamedTuple):
    """What MemoryUse says of limits."""

    limit: int | None
    held_ratio: float | None


class _Dialect(NamedTuple):
    """How one version of cgroups says it: file names and the factor from its unit of throttled time to seconds."""

    quota: str
    throttled_key: bytes
    throttled_unit_s: float
    memory_used: str
    memory_limit: str
    held: tuple[bytes, bytes]


_V1: Final = _Dialect(
    "cpu.cfs_quota_us", b"throttled_time", 1e-9, "memory.usage_in_bytes", "memory.limit_in_bytes", (b"total_rss", b"total_shmem")
)
_V2: Final = _Dialect("cpu.max", b"throttled_usec", 1e-6, "memory.current", "memory.max", (b"anon", b"shmem"))


def has_quota(text: bytes) -> bool:
    """Whether cpu.max ("max 100000" is none) or cpu.cfs_quota_us (-1 is none) sets a quota."""
    words = text.split(None, 1)
    return bool(words) and words[0] != b"max" and not words[0].startswith(b"-")


def limit_bytes(text: bytes) -> int | None:
    """memory.max or memory.limit_in_bytes; None for no limit."""
    word = text.strip()
    if not word.isdigit():
        return None
    value = int(word)
    return value if value < _V1_UNLIMITED else None


def flat_keyed(text: bytes) -> dict[bytes, int]:
    """cpu.stat or memory.stat: its numbers by name. Raises ValueError for what is none."""
    return {words[0]: int(words[1]) for words in map(bytes.split, text.split(b"\n")) if len(words) == 2}


def lineage(path: str) -> list[str]:
    """A group and its ancestors, nearest first, the root ("") last. Empty for a path outside of what is mounted here."""
    if not path.startswith("/") or "/../" in f"{path}/":
        return []
    parts = [part for part in path.split("/") if part]
    return ["".join(f"/{part}" for part in parts[:depth]) for depth in range(len(parts), -1, -1)]


class Cgroups:
    """The control groups mounted at `root`. Remembers for some seconds where limits stand, and nothing else."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup")) -> None:
        unified = root if (root / "cgroup.controllers").exists() else root / "unified"
        self._unified = str(unified)
        self._v1 = {
            controller: str(root / mount)
            for controller, mounts in (("cpu", ("cpu,cpuacct", "cpu")), ("memory", ("memory",)))
            for mount in mounts
            if (root / mount).is_dir()
        }
        self._quotas: dict[str, tuple[float, str | None]] = {}
        self._bounds: dict[str, tuple[float, _Bounds]] = {}

    def throttling(self, paths: CgroupPaths, now_s: float) -> Throttling | None:
        """The quota nearest above a process; None where none is set or the group cannot be seen. OSError when unreadable."""
        dialect, mount, path = self._where("cpu", paths.cpu, paths.unified)
        group = self._quota_group(dialect, mount, path, now_s)
        content = None if group is None else read_file(f"{group}/cpu.stat")
        if group is None or content is None:
            return None
        stat = flat_keyed(content)
        if dialect.throttled_key not in stat or b"nr_periods" not in stat:
            return None
        throttled_s = stat[dialect.throttled_key] * dialect.throttled_unit_s
        return Throttling(group, stat[b"nr_periods"], stat.get(b"nr_throttled", 0), throttled_s)

    def memory(self, paths: CgroupPaths, now_s: float) -> MemoryUse | None:
        """Memory charged to the group of a process; None for the root group of v1, which is the host, and for unseen ones."""
        dialect, mount, path = self._where("memory", paths.memory, paths.unified)
        groups = lineage(path)
        if not groups or (dialect is _V1 and groups[0] == ""):
            return None
        content = read_file(f"{mount}{groups[0]}/{dialect.memory_used}")
        if content is None:
            return None
        return MemoryUse(f"{mount}{groups[0]}", int(content), *self._memory_bounds(dialect, mount, groups, now_s))

    def _where(self, controller: str, v1_path: str | None, unified_path: str | None) -> tuple[_Dialect, str, str]:
        mount = self._v1.get(controller)
        if mount is not None and v1_path is not None:
            return _V1, mount, v1_path
        return _V2, self._unified, unified_path or ""

    def _quota_group(self, dialect: _Dialect, mount: str, path: str, now_s: float) -> str | None:
        key = f"{mount}{path}"
        kept = self._quotas.get(key)
        if kept is not None and 0 <= now_s - kept[0] < _QUOTA_KEPT_S:
            return kept[1]
        found = None
        for group in lineage(path):
            content = read_file(f"{mount}{group}/{dialect.quota}")
            if content is not None and has_quota(content):
                found = f"{mount}{group}"
                break
        if len(self._quotas) >= _MAX_KEPT:
            self._quotas.clear()
        self._quotas[key] = (now_s, found)
        return found

    def _memory_bounds(self, dialect: _Dialect, mount: str, groups: list[str], now_s: float) -> _Bounds:
        key = f"{mount}{groups[0]}"
        kept = self._bounds.get(key)
        if kept is not None and 0 <= now_s - kept[0] < _LIMITS_KEPT_S:
            return kept[1]
        contents = ((f"{mount}{group}", read_file(f"{mount}{group}/{dialect.memory_limit}")) for group in groups)
        found = ((group, limit_bytes(content)) for group, content in contents if content is not None)
        limits = {group: limit for group, limit in found if limit is not None}
        shares = [
            held / limit for group, limit in limits.items() if limit > 0 and (held := _held_bytes(dialect, group)) is not None
        ]
        bounds = _Bounds(min(limits.values(), default=None), max(shares, default=None))
        if len(self._bounds) >= _MAX_KEPT:
            self._bounds.clear()
        self._bounds[key] = (now_s, bounds)
        return bounds


def _held_bytes(dialect: _Dialect, group: str) -> int | None:
    """What a group and all below it hold that is no page cache; None where the kernel does not say all of it."""
    content = read_file(f"{group}/memory.stat")
    stat = {} if content is None else flat_keyed(content)
    return sum(stat[key] for key in dialect.held) if all(key in stat for key in dialect.held) else None
