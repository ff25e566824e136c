"""The one table of metrics: every name that aie sends, exports, stores or draws stands here, once.

The StatsD lines, the Prometheus pages, `aie-top` and the generated `docs/metrics.md` use these names; tests fail when one of
them uses a name that is not in the table. Naming follows Prometheus: base units in the suffix, `_total` on counters only,
one `_info` gauge per entity for what is descriptive. A file a family; `python -m aie_telemetry.catalogue` prints the reference.
"""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.agent import AGENT_METRICS
from aie_telemetry.catalogue.cuda import CUDA_METRICS
from aie_telemetry.catalogue.drift import DRIFT_METRICS
from aie_telemetry.catalogue.engine import ENGINE_METRICS
from aie_telemetry.catalogue.finding import FINDING_METRICS
from aie_telemetry.catalogue.gpu import GPU_METRICS
from aie_telemetry.catalogue.hooks import HOOK_METRICS
from aie_telemetry.catalogue.host import HOST_METRICS
from aie_telemetry.catalogue.leak import LEAK_METRICS
from aie_telemetry.catalogue.metric import Kind, Metric
from aie_telemetry.catalogue.process import PROCESS_METRICS

__all__ = ["CATALOGUE", "FAMILIES", "OUTCOMES", "RESERVED_PREFIX", "Kind", "Metric"]

OUTCOMES: Final = ("ok", "error", "cancelled", "timeout", "rejected")
"""How a request ends. Every request an engine received ends in exactly one of them."""

FAMILIES: Final[tuple[tuple[str, tuple[Metric, ...]], ...]] = (
    ("Engines (`aie_engine_*`)", ENGINE_METRICS),
    ("Engine processes (`aie_process_*`)", PROCESS_METRICS),
    ("Host (`aie_host_*`)", HOST_METRICS),
    ("GPUs (`aie_gpu_*`)", GPU_METRICS),
    ("CUDA calls (`aie_cuda_*`)", CUDA_METRICS),
    ("Leaks (`aie_leak_*`)", LEAK_METRICS),
    ("Drift (`aie_drift_*`)", DRIFT_METRICS),
    ("Findings (`aie_finding`)", FINDING_METRICS),
    ("The agent about itself (`aie_agent_*`)", AGENT_METRICS),
    ("Hooks (`aie_hooks_*`)", HOOK_METRICS),
)
"""Titles and rows, in the order in which pages and documents show them."""

CATALOGUE: Final[dict[str, Metric]] = {metric.name: metric for _, family in FAMILIES for metric in family}

RESERVED_PREFIX: Final = "aie_"
"""Names that begin so belong to the catalogue; a foreign metric may not use one that is not in it."""
