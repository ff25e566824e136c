"""The hooks about themselves: `aie_hooks_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, counter, gauge

HOOK_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_hooks_process", "1", ("engine", "pid"),
           "The hello line: which process emits for which engine. Consumed by the agent to join processes, never stored as a series."),
    counter("aie_hooks_dropped_total", "metrics", ("engine", "reason"),
             "Metrics that the emitter dropped: would_block (receiver slow), budget (packet budget spent, or too much waits to be sent, spans included), no_receiver, invalid."),
)  # fmt: skip
