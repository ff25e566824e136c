"""What the agent says of itself and its host that never changes while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class About:
    """`start_s` is in seconds since the epoch."""

    version: str
    hostname: str
    kernel: str
    start_s: float
