"""An engine that is made for GPUs computes on the CPU, beside GPUs that do nothing: it is ten to a hundred times slower, and says
nothing.

The rule: of a kind in `GPU_KINDS` (or one whose page said "cuda" before it was restarted and says "cpu" now), it has had requests
running for `HELD_S` and uses at least `CORES` CPU cores; a GPU is there and none of its processes holds a context on any; and all
GPUs stood still all that time. The driver must tell who holds contexts: where it does not (`gpu_pid_namespace`), and with
simulated GPUs, nothing is said.

When it is wrong: where somebody serves on the CPU of a GPU host on purpose, with an engine of these kinds: then it is true and
wanted. llama.cpp, Triton and aie-engine are served on CPUs on purpose often enough to be left out, but for one that changed.
Chance plays no part: the false-alarm rate is 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.engine_causes.readings import RUNNING, held, is_positive, risen
from aie_agent.analysis.findings import View
from aie_telemetry.api import Evidence, Finding, Gpu

CAUSE: Final = "cpu_fallback"
INFO: Final = "aie_engine_info"
CPU: Final = "aie_process_cpu_seconds_total"
UTILIZATION: Final = "aie_gpu_utilization_ratio"

GPU_KINDS: Final = frozenset({"vllm", "sglang", "tgi", "tensorrt-llm"})
HELD_S: Final = 10.0
CORES: Final = 1.0
IDLE: Final = 0.01
_HIDDEN: Final = "gpu_pid_namespace"

_ADVICE: Final = (
    "Its log says at start which device it found. Look for a build without CUDA (`python -c 'import torch;"
    " print(torch.version.cuda, torch.cuda.is_available())'` in its environment), a driver older than its CUDA, an empty"
    " CUDA_VISIBLE_DEVICES, a container started without GPUs. Make it refuse to start without one."
)


def cpu_fallback(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `cpu_fallback` at `now_s`, or None."""
    gpus = [gpu for gpu in view.gpus() if gpu.up and not gpu.simulated]
    if not gpus or not held(view, engine, RUNNING, is_positive, now_s - HELD_S, now_s):
        return None
    fell = _fell(view, engine, now_s)
    if not fell and _kind(view, engine, now_s) not in GPU_KINDS:
        return None
    cores = (risen(view, engine, CPU, now_s - HELD_S, now_s) or 0.0) / HELD_S
    if cores < CORES or not all(_is_without(gpu, engine) for gpu in gpus) or not _are_idle(view, gpus, now_s):
        return None
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=now_s - HELD_S,
        summary=f"engine {engine} computes on the CPU, beside {len(gpus)} GPUs that do nothing",
        evidence=tuple(_evidence(engine, cores, len(gpus), fell)),
        advice=_ADVICE,
    )


def _kind(view: View, engine: str, now_s: float) -> str:
    current = [series for series in view.store.scalars(INFO, engine=engine) if series.valid_until_s >= now_s]
    return dict(current[-1].tags).get("kind", "") if current else ""


def _fell(view: View, engine: str, now_s: float) -> bool:
    """Whether its page says "cpu" and said "cuda" as far back as is remembered."""
    devices = {
        dict(series.tags).get("device", ""): series.valid_until_s >= now_s for series in view.store.scalars(INFO, engine=engine)
    }
    return devices.get("cpu", False) and any(device.startswith("cuda") and not now for device, now in devices.items())


def _is_without(gpu: Gpu, engine: str) -> bool:
    """Whether no process of the engine holds a context on the GPU, and that can be told."""
    hidden = any(fault.cause == _HIDDEN for fault in gpu.faults)
    return not hidden and not any(process.engine == engine for process in gpu.processes)


def _are_idle(view: View, gpus: list[Gpu], now_s: float) -> bool:
    """Whether each GPU tells how busy it is, and none was in the last seconds."""
    known = {
        series.tags: max(value for _, value in series.ring.since(now_s - HELD_S))
        for series in view.store.scalars(UTILIZATION)
        if series.valid_until_s >= now_s
    }
    seen = {dict(tags).get("gpu") for tags in known}
    return all(str(gpu.index) in seen for gpu in gpus) and all(value < IDLE for value in known.values())


def _evidence(engine: str, cores: float, gpus: int, fell: bool) -> Iterator[Evidence]:
    if fell:
        yield Evidence(text="its page says cpu, and said cuda before it was started last", metric=INFO)
    yield Evidence(text=f"requests ran for {HELD_S:g} s, with {cores:.1f} CPU cores in use (limit {CORES:g})", metric=CPU)
    yield Evidence(text=f"{gpus} GPUs were less than {IDLE:.0%} busy all that time", metric=UTILIZATION)
    yield Evidence(text="no process of it holds a context on any of them (limit 0)", metric="aie_gpu_processes")
