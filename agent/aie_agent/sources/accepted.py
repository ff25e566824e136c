"""What engines may say in aie's own names, over StatsD or on their pages. Other names are none of this module's concern."""

from __future__ import annotations

from collections.abc import Set
from typing import Final

from aie_telemetry.catalogue import CATALOGUE, Kind

_FROM_ENGINES: Final = ("aie_engine_", "aie_hooks_")
# The agent's own findings about an engine: nobody else may state them.
_AGENTS_OWN: Final = frozenset(
    {"aie_engine_up", "aie_engine_memory_physical_bytes", "aie_engine_memory_unaccounted_bytes", "aie_hooks_process"}
)


def refusal(name: str, kind: Kind, labels: Set[str]) -> str | None:
    """Why a metric `aie_*` from an engine is not taken, or None when it is.

    "reserved_name": not in the catalogue, or not an engine's to say. "kind_conflict": the catalogue has another kind.
    "bad_labels": a label that the catalogue does not give the metric, or none that says which engine it is about.
    """
    metric = CATALOGUE.get(name)
    if metric is None or name in _AGENTS_OWN or not name.startswith(_FROM_ENGINES):
        return "reserved_name"
    if metric.kind is not kind:
        return "kind_conflict"
    if "engine" not in labels or not labels <= set(metric.labels):
        return "bad_labels"
    return None
