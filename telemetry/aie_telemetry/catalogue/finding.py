"""What the agent holds to be wrong: `aie_finding`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, gauge

FINDING_METRICS: Final[tuple[Metric, ...]] = (
    gauge(
        "aie_finding",
        "1",
        ("cause", "subject", "severity", "model"),
        "1 while the agent holds that something is wrong: what (cause), with whom (subject), how bad (severity: info, warning, critical); which model, where it is of one only.",
    ),
)
