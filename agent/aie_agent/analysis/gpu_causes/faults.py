"""What is wrong with a GPU's memory, links, limits and processes: each fault of `api.Gpu.faults` as a finding of its own cause.

The rules, when they are wrong and their false-alarm rates stand where they judge: `analysis/gpu_problems.py`, `analysis/links.py`,
`sources/nvml/process_join.py`. Nothing is judged twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import subject, title
from aie_agent.analysis.words import sentence
from aie_telemetry.api import Evidence, Finding, Gpu, GpuFault


class _Fault(NamedTuple):
    """What the summary says (None: the fault's own sentence, without its numbers), and from which metric it is known."""

    words: str | None
    metric: str


FAULTS: Final[dict[str, _Fault]] = {
    "gpu_row_remap_failed": _Fault(None, "aie_gpu_row_remap_failed"),
    "gpu_ecc": _Fault("ECC errors that could not be corrected", "aie_gpu_ecc_errors_total"),
    "gpu_row_remap": _Fault("a memory row waits to be replaced", "aie_gpu_row_remap_pending"),
    "gpu_nvlink_errors": _Fault(None, "aie_gpu_nvlink_errors_total"),
    "gpu_orphan": _Fault("orphan processes hold memory", "aie_gpu_orphan_processes"),
    "gpu_link_width": _Fault(None, "aie_gpu_pcie_link_width"),
    "gpu_slot_width": _Fault(None, "aie_gpu_pcie_slot_width"),
    "gpu_link_generation": _Fault(None, "aie_gpu_pcie_link_generation"),
    "gpu_nvlink_inactive": _Fault(None, "aie_gpu_nvlink_links"),
    "gpu_power_limit": _Fault(None, "aie_gpu_power_limit_watts"),
    "gpu_pid_namespace": _Fault("processes on it cannot be told apart", "aie_gpu_processes"),
}
"""By the cause of `api.GpuFault`."""

_MIB: Final = 1 << 20
_ORPHANS: Final = (
    "Look at who started them; `kill` frees the memory, a process in state D needs a reset of the GPU (nvidia-smi --gpu-reset)."
)


def gpu_faults(view: View, now_s: float) -> list[Finding]:
    """A finding for each fault of each GPU, with the fault's cause and severity."""
    return [_finding(gpu, fault, now_s) for gpu in view.gpus() for fault in gpu.faults]


def _finding(gpu: Gpu, fault: GpuFault, now_s: float) -> Finding:
    row = FAULTS.get(fault.cause, _Fault(None, "aie_gpu_up"))
    what, _, do = fault.text.partition(": ")
    words = what.partition(" (")[0] if what.endswith(")") else what
    return Finding(
        cause=fault.cause,
        subject=subject(gpu),
        severity=fault.severity,
        since_s=now_s if fault.since_s is None else fault.since_s,
        summary=f"{title(gpu)}: {row.words or words}",
        evidence=(Evidence(text=what, metric=row.metric), *_details(gpu, fault)),
        advice=_ORPHANS if fault.cause == "gpu_orphan" else sentence(do),
        runbook=f"docs/runbooks/{fault.cause}.md",
    )


def _details(gpu: Gpu, fault: GpuFault) -> Iterator[Evidence]:
    if fault.cause == "gpu_orphan":
        for each in gpu.processes:
            if each.orphan:
                size = "an unknown amount" if each.memory_bytes is None else f"{each.memory_bytes // _MIB} MiB"
                text = f"process {each.tgid} ({each.command}) holds {size} (limit 0)"
                yield Evidence(text=text, metric="aie_gpu_orphan_memory_bytes")
