"""A process that is watched, and whether it is still the one that it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aie_ebpf.attaching import Attached
from aie_ebpf.messages import Coverage, Target


@dataclass(slots=True)
class Process:
    """A target, and what is attached to it. `held` are the sets that leave it alone, each with the reason; `in_look` while it is
    being looked at, a step at a time."""

    target: Target
    look_at_s: float = 0.0
    looks: int = 0
    here: bool = False
    in_look: bool = False
    gil: tuple[int, int] | None = None
    held: dict[str, str] = field(default_factory=dict)
    attached: dict[str, Attached] = field(default_factory=dict)
    coverage: dict[str, Coverage] = field(default_factory=dict)


def row(target: Target, name: str, reason: str, missing: tuple[str, ...] = ()) -> Coverage:
    """What a set without probes of its own sees of a process: nothing where there is a reason, else all but what is missing."""
    state = "off" if reason else "on"
    return Coverage(engine=target.engine, tgid=target.tgid, set=name, state=state, reason=reason, missing=missing)


def start_ticks(tgid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started (field 22 of its stat), or None: it is gone."""
    try:
        after_name = (proc / str(tgid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(after_name[19])
