"""Another process on an engine's host, as the analysis sees it."""

from __future__ import annotations

from typing import Final, NamedTuple

_MOST_CHARS: Final = 60


class Neighbour(NamedTuple):
    """A process of no engine that uses the host's CPUs: so many since the look before, and since when it has been busy."""

    tgid: int
    command: str
    cpu_cores: float
    since_s: float


def called(neighbour: Neighbour) -> str:
    """Its command, cut, and its tgid, for a sentence."""
    command = neighbour.command or "a process"
    cut = command if len(command) <= _MOST_CHARS else f"{command[: _MOST_CHARS - 3]}..."
    return f"{cut} ({neighbour.tgid})"
