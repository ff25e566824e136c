"""What a dump of a Python process says: its threads, their frames, and where the kernel has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MOST_THREADS: Final = 1024
MOST_FRAMES: Final = 256
"""Of a thread, from its leaf on: a deep recursion says at its leaf what it is at."""

_MOST_CHARS: Final = 200


def clean(text: str, most_chars: int = _MOST_CHARS) -> str:
    """A name as it comes from a process, safe to show: no control characters, none that turn a line round, at most `most_chars`."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text[:most_chars])


@dataclass(frozen=True, slots=True)
class Frame:
    """One call: `function` as CPython qualifies it, `file` as short as it is still told from others, `path` in full, and the line
    that runs (0 where it is not known)."""

    function: str
    file: str
    path: str
    line: int

    @property
    def place(self) -> str:
        """As sentences name it: `file:line (function)`."""
        return f"{self.file}:{self.line} ({self.function})"


@dataclass(frozen=True, slots=True)
class Thread:
    """A Python thread. `tid` is the kernel's, as the agent's pid namespace has it, None where it is not known. `frames` begin at
    the leaf. `state` is the letter of /proc/PID/stat (R, S, D, T, ...) just after the dump, "" where it is not known; `futex` is
    the address that it waits on, None where it waits on none, or that cannot be seen."""

    tid: int | None
    name: str
    frames: tuple[Frame, ...]
    state: str = ""
    futex: int | None = None
    holds_gil: bool = False


@dataclass(frozen=True, slots=True)
class Dump:
    """All threads of one process at `time_s`, read while it ran on: frames of a thread that runs may belong to two moments. With
    `start_ticks` (field 22 of /proc/PID/stat) it is told from a later process of the same number."""

    tgid: int
    time_s: float
    threads: tuple[Thread, ...]
    start_ticks: int | None = None
