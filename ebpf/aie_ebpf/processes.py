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


Image = tuple[bytes, ...]
"""Where the code of a program begins and ends, and its first stack: fields 26 to 28 of /proc/PID/stat. The kernel puts them
elsewhere each time that a program is executed (where addresses are random, as they are by default)."""


@dataclass(slots=True)
class Process:
    """A target, and what is attached to it. `held` are the sets that leave it alone, each with the reason; `in_look` while it is
    being looked at, a step at a time. `ended` once it is known to be gone: what the maps have of it is reported once more.
    `became_another` where it is gone by having executed another program, not the one of `image`.
    `news_until_s` is how long it is looked at each period whether it has loaded CUDA; `pages` is what it had mapped then."""

    target: Target
    look_at_s: float = 0.0
    looks: int = 0
    here: bool = False
    in_look: bool = False
    ended: bool = False
    news_until_s: float | None = None
    pages: int = 0
    image: Image | None = None
    became_another: bool = False
    gil: tuple[int, int] | None = None
    held: dict[str, str] = field(default_factory=dict)
    attached: dict[str, Attached] = field(default_factory=dict)
    coverage: dict[str, Coverage] = field(default_factory=dict)


def row(target: Target, name: str, reason: str, missing: tuple[str, ...] = (), state: str = "off") -> Coverage:
    """What a set without probes of its own sees of a process: nothing where there is a reason (it is "off", or "none": nothing is
    there to be seen), else all but what is missing."""
    state = state if reason else "on"
    return Coverage(engine=target.engine, tgid=target.tgid, set=name, state=state, reason=reason, missing=missing)


def image_of(tgid: int, proc: Path = Path("/proc")) -> Image | None:
    """Which program a process runs; None where it is gone."""
    try:
        return tuple(read_small(f"{proc}/{tgid}/stat").rpartition(b")")[2].split()[23:26])
    except OSError:
        return None


def has_executed_another(process: Process, proc: Path = Path("/proc")) -> bool:
    """Whether a process that has CUDA's probes runs another program than when it was looked at first. Its number and its start are
    the same; its memory, its contexts and its breakpoints are gone."""
    if process.image is None or process.attached.keys().isdisjoint(CUDA_SETS):
        return False
    image = image_of(process.target.tgid, proc)
    return image is not None and image != process.image


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
