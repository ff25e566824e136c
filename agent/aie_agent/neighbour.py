"""Another process on an engine's host, as the analysis sees it."""

from __future__ import annotations

from typing import NamedTuple


class Neighbour(NamedTuple):
    """A process of no engine that uses the host's CPUs: so many since the look before, and since when it has been busy."""

    tgid: int
    command: str
    cpu_cores: float
    since_s: float
