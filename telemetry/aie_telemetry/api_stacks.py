"""The part of the API's schema (`api.py`, which has all of this too) that gives an engine's Python stacks."""

from __future__ import annotations

import msgspec


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a stack. `line` is 0 where it is not known."""

    function: str
    file: str
    line: int


class ThreadStack(msgspec.Struct, frozen=True, kw_only=True):
    """A thread at the moment of a dump: `frames` from the leaf on. `state` is the letter of /proc/PID/stat, null where it is not
    known; `futex` the address (hexadecimal) that it waits on, if it does; `place` where it waits or runs in the program, outside of
    the standard library's `threading` and the like: `file:line (function)`."""

    name: str
    tid: int | None = None
    state: str | None = None
    futex: str | None = None
    holds_gil: bool = False
    place: str | None = None
    frames: tuple[Frame, ...] = ()


class StackDump(msgspec.Struct, frozen=True, kw_only=True):
    """The threads of one process at `time_s`, read without stopping it."""

    tgid: int
    time_s: float
    threads: tuple[ThreadStack, ...]


class StacksPage(msgspec.Struct, frozen=True, kw_only=True):
    """`/api/v1/stacks?engine=ENGINE`: the dumps that were taken last of an engine, because something was found wrong with it: two
    of each process, the first ones first. `problems` say why some could not be read."""

    version: int
    engine: str
    dumps: tuple[StackDump, ...] = ()
    problems: tuple[str, ...] = ()
