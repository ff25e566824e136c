"""How long a value counts as current after it came, and when a series was silent before it. Pure."""

from __future__ import annotations

from aie_agent.samples import Batch
from aie_agent.series import AnySeries
from aie_telemetry.catalogue import Kind

# A value counts as current for two periods of its source and a half, and no less than this.
_VALID_S = 5.0
# StatsD senders speak only when something changes; but hooks repeat their levels every ten seconds.
_VALID_STATSD_S = 300.0
_VALID_HOOK_LEVEL_S = 30.0


def patience_s(batch: Batch) -> float:
    """How long what came with a batch counts as current, if its source is one that tells everything each time."""
    return max(_VALID_S, 2.5 * batch.period_s)


def valid_s(series: AnySeries, batch: Batch) -> float:
    """How long the value that a batch brought of this series counts as current."""
    if batch.source != "statsd":
        return patience_s(batch)
    is_hook_level = series.kind is Kind.GAUGE and series.name.startswith("aie_engine_")
    return _VALID_HOOK_LEVEL_S if is_hook_level else _VALID_STATSD_S


def was_silent(series: AnySeries, batch: Batch) -> bool:
    """Whether the series had no value of the collection before this one."""
    return batch.time_s - series.last_time_s > 1.5 * batch.period_s
