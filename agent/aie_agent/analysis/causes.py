"""Every cause that the agent looks for. A new one is a function in a file of its own, and a row here; what it explains, and whether
it is steadied, are rows too."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import EngineCause, SubjectCause
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
)

SUBJECT_CAUSES: Final[tuple[SubjectCause, ...]] = ()

EXPLAINS: Final[dict[str, frozenset[str]]] = {
    "engine_hung": frozenset({"lock_contention", "gil_contention"}),
}
"""A cause, and those that it explains when both hold of subjects that have to do with each other."""

STEADINESS: Final[dict[str, Steadiness]] = {}
"""Causes whose signal flutters: how long they must hold, and how long they are shown after."""

WITH_STACKS: Final = frozenset({"engine_hung", "lock_contention", "gil_contention"})
"""Causes that Python stacks tell more of: they are taken when one begins."""
