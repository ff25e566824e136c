"""Every cause that the agent looks for. A new one is a function in a file of its own, and a row here; what it explains, and whether
it is steadied, are rows too."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import EngineCause, SubjectCause
from aie_agent.analysis.host_causes.cpu import cpu_starved, cpu_steal, cpu_throttled
from aie_agent.analysis.host_causes.disk import disk_stall, disk_stall_of_host
from aie_agent.analysis.host_causes.memory import host_memory_low, page_faults, swapping
from aie_agent.analysis.hung import engine_hung
from aie_agent.analysis.lock_contention import gil_contention, lock_contention
from aie_agent.analysis.series_refused import series_refused
from aie_agent.analysis.steady import Steadiness
from aie_agent.analysis.stopped import engine_stopped

ENGINE_CAUSES: Final[tuple[EngineCause, ...]] = (
    engine_hung,
    engine_stopped,
    lock_contention,
    gil_contention,
    series_refused,
    cpu_starved,
    cpu_throttled,
    page_faults,
    disk_stall,
)

SUBJECT_CAUSES: Final[tuple[SubjectCause, ...]] = (
    cpu_steal,
    swapping,
    host_memory_low,
    disk_stall_of_host,
)

EXPLAINS: Final[dict[str, frozenset[str]]] = {
    "engine_hung": frozenset({"lock_contention", "gil_contention"}),
    # Threads that wait for a lock sleep: that none gets a CPU makes their wait longer, and does not begin it.
    "cpu_throttled": frozenset({"cpu_starved"}),
    "cpu_steal": frozenset({"cpu_starved"}),
    "swapping": frozenset({"page_faults", "disk_stall"}),
    "page_faults": frozenset({"disk_stall"}),
    "host_memory_low": frozenset({"swapping", "page_faults"}),
}
"""A cause, and those that it explains when both hold of subjects that have to do with each other."""

STEADINESS: Final[dict[str, Steadiness]] = {
    "cpu_starved": Steadiness(lingers_s=10.0),
    "cpu_throttled": Steadiness(lingers_s=10.0),
    "cpu_steal": Steadiness(lingers_s=10.0),
    "page_faults": Steadiness(lingers_s=10.0),
    "swapping": Steadiness(lingers_s=10.0),
    "disk_stall": Steadiness(lingers_s=10.0),
    "host_memory_low": Steadiness(lingers_s=5.0),
}
"""Causes whose signal flutters: how long they must hold, and how long they are shown after."""

WITH_STACKS: Final = frozenset({"engine_hung", "lock_contention", "gil_contention"})
"""Causes that Python stacks tell more of: they are taken when one begins."""
