"""Who else is on a GPU that an engine is on: a process of no engine that takes its memory or its time.

An orphan is a finding of its own, and no neighbour in the seconds before it is known to be one. What holds a context and uses
nothing (a monitor, a desktop) is left alone. False alarms: a neighbour that is wanted there, for as long as it is; it is told as a
warning only where it takes `HEAVY_SHARE` of the memory or of the multiprocessors, else as information.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import engines_on, subject, title
from aie_telemetry.api import Evidence, Finding, Gpu, GpuProcess

LIGHT_MEMORY_SHARE: Final = 0.02
LIGHT_SM_RATIO: Final = 0.05
HEAVY_SHARE: Final = 0.1

_MIB: Final = float(1 << 20)
_NO_SM: Final = "how much of the GPU it uses: the driver does not tell it by process"


def gpu_neighbour(view: View, now_s: float) -> list[Finding]:
    """The finding `gpu_neighbour` for each GPU with an engine and others that use it. It must hold for some seconds
    (`causes.STEADINESS`): a check that runs for one is none."""
    found = []
    for gpu in view.gpus():
        others = [each for each in gpu.processes if each.engine is None and not (each.orphan or each.ended) and _uses(each, gpu)]
        if gpu.up and others and engines_on(gpu) and not any(fault.cause == "gpu_pid_namespace" for fault in gpu.faults):
            found.append(_finding(gpu, others, now_s))
    return found


def _memory_share(process: GpuProcess, gpu: Gpu) -> float:
    return (process.memory_bytes or 0) / gpu.memory_total_bytes if gpu.memory_total_bytes else 0.0


def _uses(process: GpuProcess, gpu: Gpu) -> bool:
    return _memory_share(process, gpu) >= LIGHT_MEMORY_SHARE or (process.sm_ratio or 0.0) >= LIGHT_SM_RATIO


def _finding(gpu: Gpu, others: Sequence[GpuProcess], now_s: float) -> Finding:
    memory = sum(_memory_share(each, gpu) for each in others)
    busy = sum(each.sm_ratio or 0.0 for each in others)
    first = others[0]
    return Finding(
        cause="gpu_neighbour",
        subject=subject(gpu),
        severity="warning" if max(memory, busy) >= HEAVY_SHARE else "info",
        since_s=now_s,
        summary=f"{title(gpu)}: a process of no engine uses it beside {', '.join(engines_on(gpu))}",
        evidence=tuple(_evidence(each, gpu) for each in others),
        advice=(
            f"See whose it is (`ps -o user,lstart,args -p {first.tgid}`), and move it to another GPU (CUDA_VISIBLE_DEVICES, another"
            " node), or divide the GPU (MIG). If both are to stay, let the engine take less of the memory (vLLM"
            " --gpu-memory-utilization, SGLang --mem-fraction-static)."
        ),
        not_visible=(_NO_SM,) if any(each.sm_ratio is None for each in others) else (),
        runbook="docs/runbooks/gpu_neighbour.md",
    )


def _evidence(process: GpuProcess, gpu: Gpu) -> Evidence:
    size = "memory that the driver does not tell"
    if process.memory_bytes is not None:
        share = f"{_memory_share(process, gpu):.0%} of the GPU's, limit {LIGHT_MEMORY_SHARE:.0%}"
        size = f"{process.memory_bytes / _MIB:.0f} MiB ({share})"
    busy = "" if process.sm_ratio is None else f" and {process.sm_ratio:.0%} of its multiprocessors (limit {LIGHT_SM_RATIO:.0%})"
    return Evidence(text=f"process {process.tgid} ({process.command}) uses {size}{busy}", metric="aie_gpu_processes")
