"""Which processes belong to an engine because they compute beside it in its container, though they are no children of its: workers
that Ray or mpirun started.

A process joins an engine when all of this holds: it is in the same container, and the engine is the only one there; both come from
the same first process of that container (so nobody entered it from outside, as `docker exec` does); it began after the engine; it
is no engine itself; and it computes on a GPU, or calls itself one of the engine's workers. What else runs in a container (a proxy,
a monitor, a shell) never does.

Beside that: which Kubernetes pod a process belongs to, by the path of its control group.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

_COMPUTES: Final = frozenset({"/dev/nvidia-uvm", "/dev/kfd"})
"""Devices that a process of CUDA or ROCm holds; one that only asks for the state of a GPU (NVML) does not."""

_MOST_PARENTS: Final = 200

# .../kubepods/burstable/podUID/... (cgroupfs), .../kubepods-burstable-podUID.slice/... (systemd, where "-" in the UID is "_", or
# escaped). A static pod's UID is a hash without hyphens.
_HYPHEN: Final = rb"(?:-|_|\\x2d)"
_POD: Final = re.compile(
    rb"kubepods[^\n]*?[/-]pod([0-9a-f]{8}(?:" + _HYPHEN + rb"[0-9a-f]{4}){3}" + _HYPHEN + rb"[0-9a-f]{12}|[0-9a-f]{32})"
    rb"(?:\.slice)?(?=[:/\n]|$)"
)


class Member(NamedTuple):
    """What has to be known of a process."""

    parent_tgid: int
    start_ticks: int
    is_engine: bool = False
    is_worker_of: str = ""  # the kind of engine whose workers call themselves so


class Root(NamedTuple):
    """The process that was started as an engine, and of what kind that is."""

    tgid: int
    kind: str


def joined(
    roots: list[Root],
    members: Mapping[int, Member],
    grouped: frozenset[int],
    container_of: Callable[[int], str | None],
    computes: Callable[[int], bool],
) -> Iterator[tuple[int, int]]:
    """Pairs of a process that is in no group yet and the engine (its root) that it joins. `container_of` and `computes` are asked
    only of processes for which it matters."""
    alone: dict[str, Root | None] = {}
    for root in roots:
        container = container_of(root.tgid)
        if container is not None:
            alone[container] = None if container in alone else root
    engines = {container: root for container, root in alone.items() if root is not None}
    if not engines:
        return
    first_ticks = min(members[root.tgid].start_ticks for root in engines.values())
    for tgid, member in sorted(members.items()):
        if tgid in grouped or member.is_engine or member.start_ticks < first_ticks:
            continue
        container = container_of(tgid)
        engine = engines.get(container) if container is not None else None
        if engine is None or container is None or member.start_ticks < members[engine.tgid].start_ticks:
            continue
        same_first = _first(tgid, container, members, container_of) == _first(engine.tgid, container, members, container_of)
        if same_first and (member.is_worker_of == engine.kind or computes(tgid)):
            yield tgid, engine.tgid


def _first(tgid: int, container: str, members: Mapping[int, Member], container_of: Callable[[int], str | None]) -> int:
    """The ancestor of a process from which all of its container comes."""
    for _ in range(_MOST_PARENTS):
        parent = members[tgid].parent_tgid
        if parent not in members or container_of(parent) != container:
            break
        tgid = parent
    return tgid


def pod_uid(cgroup: bytes) -> str | None:
    """/proc/PID/cgroup: the UID of the innermost Kubernetes pod, as the API server writes it; of v1 and v2, of both cgroup drivers
    of the kubelet. None outside of any."""
    found = _POD.findall(cgroup)
    return re.sub(_HYPHEN, b"-", found[-1]).decode() if found else None


def computes_on_gpu(process: Path) -> bool:
    """Whether a process, a folder of /proc, holds a device that only those do which compute. False where that may not be read."""
    try:
        with os.scandir(process / "fd") as entries:
            return any(_link(entry.path) in _COMPUTES for entry in entries)
    except OSError:
        return False


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:  # closed meanwhile
        return ""
