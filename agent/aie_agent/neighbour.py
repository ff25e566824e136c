"""Another process on an engine's host, as the analysis sees it."""

from __future__ import annotations

from typing import Final, NamedTuple

_MOST_CHARS: Final = 40


class Neighbour(NamedTuple):
    """A process of no engine that uses the host's CPUs: so many since the look before, and since when it has been busy. `command`
    is its program's name: what its arguments say is its owner's business."""

    tgid: int
    command: str
    cpu_cores: float
    since_s: float


def called(neighbour: Neighbour) -> str:
    """Its program, cut, and its tgid, for a sentence."""
    command = program_name(neighbour.command) or "a process"
    cut = command if len(command) <= _MOST_CHARS else f"{command[: _MOST_CHARS - 3]}..."
    return f"{cut} ({neighbour.tgid})"


def program_name(command: str) -> str:
    """Of a command line the program, without its directory and without any argument; a name in brackets stays as it is."""
    if command.startswith("["):
        return command
    return command.split(" ", 1)[0].rpartition("/")[2]
