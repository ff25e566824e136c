"""What engines may say in aie's own names, over StatsD or on their pages. Other names are none of this module's concern."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.catalogue import CATALOGUE, Kind

_FROM_ENGINES: Final = ("aie_engine_", "aie_hooks_")
# The agent's own findings about an engine: nobody else may state them.
_AGENTS_OWN: Final = frozenset(
    {"aie_engine_up", "aie_engine_memory_physical_bytes", "aie_engine_memory_unaccounted_bytes", "aie_hooks_process"}
)


def refusal(name: str, kind: Kind, labels: Set[str]) -> Reason | None:
    """Why a metric `aie_*` from an engine is not taken, or None when it is.

    RESERVED_NAME: not in the catalogue, or not an engine's to say. KIND_CONFLICT: the catalogue has another kind.
    BAD_LABELS: a label that the catalogue does not give the metric, or none that says which engine it is about.
    """
    metric = CATALOGUE.get(name)
    if metric is None or name in _AGENTS_OWN or not name.startswith(_FROM_ENGINES):
        return Reason.RESERVED_NAME
    if metric.kind is not kind:
        return Reason.KIND_CONFLICT
    if "engine" not in labels or not labels <= set(metric.labels):
        return Reason.BAD_LABELS
    return None
