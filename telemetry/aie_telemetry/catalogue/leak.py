"""Memory that grows without end, as the agent's analysis holds it to: `aie_leak_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, gauge

_LINE = ("engine", "device", "line")
LEAK_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_leak_state", "1", _LINE,
           "What a line of memory is held to be: 0 nothing, 1 suspect, 2 leak. Lines: allocated, cached (reserved less allocated), outside (physical less reserved), driver (asked of the CUDA driver), reserved, physical. Absent until it was seen for long enough."),
    gauge("aie_leak_rate_bytes_per_second", "bytes per second", _LINE, "How fast a line that is suspect or a leak rises (Theil-Sen slope of its block floors)."),
    gauge("aie_leak_time_to_full_seconds", "seconds", ("engine", "device"),
           "For how long the device's memory (its cgroup's limit, if that is less) lasts at the rate of the fastest of these lines. Absent where its size is not known."),
)  # fmt: skip
