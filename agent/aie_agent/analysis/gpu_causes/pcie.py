"""A PCIe link that is full: copies between host and GPU wait for it.

Of what a link could carry by its generation and lanes, packets and acknowledgements take some fifth; `NEAR_SHARE` of the rest is
near its maximum. It must be so on average over `WINDOW_S` while requests run: weights that are loaded fill the link, too, and are
no trouble. No shorter time is enough, however full the link: a burst of six seconds would pass for trouble.

False alarms: an engine that offloads on purpose (KV cache or weights in the host's memory) is bound by its link by design, and told
so. Otherwise none: what an engine that serves from its GPU's memory sends is a hundredth of the limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import serves, subject, title
from aie_agent.analysis.sustained import live, mean_of
from aie_agent.series import Series
from aie_telemetry.api import Evidence, Finding, Gpu

BYTES: Final = "aie_gpu_pcie_bytes_per_second"
WINDOW_S: Final = 8.0
LEAST_READINGS: Final = 5
NEAR_SHARE: Final = 0.65
LANE_BYTES: Final[dict[int, float]] = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""What one lane carries in one direction in a second, by generation: its transfers less its line code."""

_DIRECTIONS: Final = {"rx": "from the host", "tx": "to the host"}


def pcie_bound(view: View, now_s: float) -> list[Finding]:
    """The finding `pcie_bound` for each GPU whose link carries at least `NEAR_SHARE` of what it could, in one direction."""
    return [found for gpu in view.gpus() if (found := _of(view, gpu, now_s)) is not None]


def _filled(current: Sequence[Series], most: float, now_s: float) -> float | None:
    """Bytes a second in one direction, of `most`; None where the link is not near its maximum, or not known to be."""
    mean = mean_of(current, now_s - WINDOW_S, now_s, LEAST_READINGS)
    return mean if mean is not None and mean >= NEAR_SHARE * most else None


def _of(view: View, gpu: Gpu, now_s: float) -> Finding | None:
    lane = LANE_BYTES.get(gpu.pcie_generation or 0)
    if not gpu.up or lane is None or not gpu.pcie_width or gpu.unified_memory or not serves(view, gpu, now_s):
        return None
    most = lane * gpu.pcie_width
    full = {
        words: found
        for direction, words in _DIRECTIONS.items()
        if (found := _filled(live(view.store.scalars(BYTES, gpu=str(gpu.index), direction=direction), now_s), most, now_s))
    }
    if not full:
        return None
    link = f"generation {gpu.pcie_generation} with {gpu.pcie_width} lanes (limit {NEAR_SHARE:.0%})"
    return Finding(
        cause="pcie_bound",
        subject=subject(gpu),
        severity="warning",
        since_s=now_s - WINDOW_S,
        summary=f"{title(gpu)}: its PCIe link is full, and copies wait for it",
        evidence=tuple(
            Evidence(
                text=f"{mean / 1e9:.1f} GB/s {words} over the last {WINDOW_S:g} s, {mean / most:.0%} of {link}",
                metric=BYTES,
            )
            for words, mean in full.items()
        ),
        advice=(
            "Copy less: a smaller offload (vLLM --cpu-offload-gb; a KV cache kept on the GPU), pinned buffers, copies that run"
            " beside the computation. A link with fewer lanes or of an older generation than it could be is a finding of its own."
        ),
        runbook="docs/runbooks/pcie_bound.md",
    )
