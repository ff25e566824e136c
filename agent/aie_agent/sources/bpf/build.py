"""Whether there are probes at all: the source, or why there is none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from aie_agent.config import BpfSection
from aie_agent.identity import Engines
from aie_agent.samples import Count
from aie_agent.sources.bpf.lock_windows import Looked
from aie_agent.sources.bpf.source import EVERYTHING, BpfSource, XidTeller, nobody
from aie_agent.sources.procfs import Procfs
from aie_ebpf import prerequisites
from aie_ebpf.prerequisites import Prerequisite
from aie_telemetry import api


class Probes(Protocol):
    """What probes tell of an engine that is no series."""

    def locks(self, engine: str) -> tuple[api.Lock, ...]:
        """The locks that its threads waited for longest."""

    async def lock_stacks(self, engine: str, locks: Sequence[tuple[int, int]], seconds: float) -> Looked:
        """Stacks of its threads that begin to wait at these locks within `seconds`."""

    def coverage(self, engine: str) -> tuple[api.Coverage, ...]:
        """What can be seen of it, and what cannot."""

    def note(self, engine: str) -> str | None:
        """Which of its processes are not watched."""

    def counts(self) -> Iterable[Count]:
        """For the agent's own metrics."""


class NoProbes:
    """Nothing is seen, for one reason."""

    def __init__(self, reason: str = "", remedy: str = "") -> None:
        self._coverage = (api.Coverage(set=EVERYTHING, state="off", reason=reason, remedy=remedy),) if reason else ()

    def locks(self, engine: str) -> tuple[api.Lock, ...]:
        """None."""
        return ()

    async def lock_stacks(self, engine: str, locks: Sequence[tuple[int, int]], seconds: float) -> Looked:
        """None, for the reason."""
        return Looked((), "; ".join(each.reason for each in self._coverage) or "there are no probes")

    def coverage(self, engine: str) -> tuple[api.Coverage, ...]:
        """The reason, the same for every engine."""
        return self._coverage

    def note(self, engine: str) -> str | None:
        """None: the coverage says it."""
        return None

    def counts(self) -> Iterable[Count]:
        """None."""
        return ()


def build(
    section: BpfSection,
    engines: Engines,
    procfs: Procfs,
    window_s: float,
    tell_xid: XidTeller = nobody,
    found: Sequence[Prerequisite] | None = None,
) -> BpfSource | NoProbes:
    """The source, unless the configuration or the host rules it out. `found` is what the host offers, for tests."""
    if not section.enabled:
        return NoProbes("switched off (bpf.enabled, --no-bpf)")
    unmet = prerequisites.unmet(prerequisites.check() if found is None else found)
    if unmet:
        return NoProbes("; ".join(f"{item.name}: {item.found}" for item in unmet), unmet[0].remedy)
    return BpfSource(engines, procfs, section, window_s, tell_xid)
