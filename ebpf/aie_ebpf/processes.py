"""A process that is watched, and whether it is still the one that it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aie_ebpf.attaching import Attached
from aie_ebpf.cuda_libraries import uses_cuda
from aie_ebpf.lives import read_small
from aie_ebpf.messages import Coverage, Target
from aie_ebpf.probes import CUDA_SETS

NEWS_S: Final = 60.0
"""For how long after it is known a process is looked at each period; later, at its turn."""


@dataclass(slots=True)
class Process:
    """A target, and what is attached to it. `held` are the sets that leave it alone, each with the reason; `in_look` while it is
    being looked at, a step at a time. `ended` once it is known to be gone: what the maps have of it is reported once more.
    `news_until_s` is how long it is looked at each period whether it has loaded CUDA; `pages` is what it had mapped then."""

    target: Target
    look_at_s: float = 0.0
    looks: int = 0
    here: bool = False
    in_look: bool = False
    ended: bool = False
    news_until_s: float | None = None
    pages: int = 0
    gil: tuple[int, int] | None = None
    held: dict[str, str] = field(default_factory=dict)
    attached: dict[str, Attached] = field(default_factory=dict)
    coverage: dict[str, Coverage] = field(default_factory=dict)


def row(target: Target, name: str, reason: str, missing: tuple[str, ...] = (), state: str = "off") -> Coverage:
    """What a set without probes of its own sees of a process: nothing where there is a reason (it is "off", or "none": nothing is
    there to be seen), else all but what is missing."""
    state = state if reason else "on"
    return Coverage(engine=target.engine, tgid=target.tgid, set=name, state=state, reason=reason, missing=missing)


def has_loaded_cuda(process: Process, now_s: float, proc: Path = Path("/proc")) -> bool:
    """Whether a process has loaded CUDA's driver since it was looked at last, within the first minute: what it allocates before its
    probes are attached is not seen. Its maps are read only where it has mapped something since."""
    if process.news_until_s is None:
        process.news_until_s = now_s + NEWS_S
    if now_s >= process.news_until_s or not process.attached.keys().isdisjoint(CUDA_SETS):
        return False
    pages = _pages(process.target.tgid, proc)
    if pages == process.pages:
        return False
    process.pages = pages
    if not uses_cuda(process.target.tgid, proc):
        return False
    process.news_until_s = now_s
    return True


def _pages(tgid: int, proc: Path) -> int:
    """How much it has mapped."""
    try:
        return int(read_small(f"{proc}/{tgid}/statm").split()[0])
    except (OSError, IndexError):  # gone
        return 0
