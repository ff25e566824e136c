"""Point 5: what a cycle of the agent's NVML source costs on this GPU, and whether what it makes of it can be true."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections import Counter
from typing import Any, Final

from gpu_load import busy
from gpu_nvml import simulated
from gpu_report import Context

_PAUSE_S: Final = 0.11
"""Between cycles: GPM gives nothing for less."""
_SLOW_EVERY: Final = 10
_CYCLES, _CYCLES_SMALL = 80, 12
_WARM_UP: Final = 3


def cycle(context: Context) -> None:
    """With everything that the source has, and slow rows at one cycle of ten, as by default."""
    import pynvml

    with busy(context.device_index) if context.is_cuda else simulated():
        asyncio.run(_measure(context))
    context.report.fact("binding", getattr(pynvml, "__file__", ""))


async def _measure(context: Context) -> None:
    from aie_agent.config import GpuSection
    from aie_agent.config_values import Duration
    from aie_agent.identity import Engines
    from aie_agent.sources.nvml.build import build
    from aie_agent.sources.procfs import Procfs

    procfs = Procfs()
    section = GpuSection(period=Duration(_PAUSE_S), slow_period=Duration(_SLOW_EVERY * _PAUSE_S), expected=1)
    source = build(section, procfs, Engines(procfs.start_ticks))
    if source is None:
        raise RuntimeError("the agent has no source of GPUs here")
    cpu_ms, wall_ms = [], []
    points: list[Any] = []
    first_ms = 0.0
    try:
        for number in range(_WARM_UP + (_CYCLES_SMALL if context.small else _CYCLES)):
            await asyncio.sleep(_PAUSE_S)
            cpu_s, began_s = time.process_time(), time.perf_counter()
            points = (await source.collect(time.time())).points
            took_ms = (time.perf_counter() - began_s) * 1e3
            if number == 0:
                first_ms = took_ms
            elif number >= _WARM_UP:
                wall_ms.append(took_ms)
                cpu_ms.append((time.process_time() - cpu_s) * 1e3)
    finally:
        await source.close()
    _tell(context, source, points, {"first_wall_ms": first_ms, **_spread("wall_ms", wall_ms), **_spread("cpu_ms", cpu_ms)})


def _spread(name: str, values: list[float]) -> dict[str, float]:
    """The median cycle is one without slow rows; the most costly has them."""
    return {f"{name}_median": statistics.median(values), f"{name}_most": max(values)}


def _tell(context: Context, source: Any, points: list[Any], cost: dict[str, float]) -> None:
    report = context.report
    gpus = len(source.entries)
    report.fact("cost", {name: round(value, 3) for name, value in cost.items()} | {"gpus": gpus, "points": len(points)})
    report.fact("metrics", dict(sorted(Counter(point.name for point in points).items())))
    seconds = {tags[0]: value for name, tags, value in source.counts() if name == "aie_agent_nvml_seconds_total"}
    errors = {"/".join(tags): value for name, tags, value in source.counts() if name == "aie_agent_nvml_errors_total"}
    report.fact("seconds_by_call", {call: round(value, 5) for call, value in sorted(seconds.items(), key=lambda item: -item[1])})
    report.fact("errors", errors)
    implausible = sorted(name for name in errors if name.endswith("/implausible"))
    up = [entry.index for entry in source.entries if entry.reason is None]
    report.check("all GPUs are up", gpus > 0 and len(up) == gpus, f"{len(up)} of {gpus}")
    report.check("no answer is implausible", not implausible, ", ".join(implausible) or f"in {len(seconds)} calls")
    report.check("memory adds up", *_adds_up(points))
    wrong = sorted({point.name for point in points if _is_wrong(point)})
    report.check("ratios are ratios", not wrong, ", ".join(wrong) or f"of {len(points)} numbers")


def _adds_up(points: list[Any]) -> tuple[bool, str]:
    """used + reserved + free = total of each GPU, within a page."""
    prefix, suffix = "aie_gpu_memory_", "_bytes"
    by_gpu: dict[Any, dict[str, float]] = {}
    for point in points:
        what = point.name.removeprefix(prefix).removesuffix(suffix)
        if point.name == f"{prefix}{what}{suffix}" and what in ("used", "reserved", "free", "total"):
            by_gpu.setdefault(point.tags, {})[what] = point.value
    parts = ("used", "reserved", "free")
    off = [sum(found.get(part, 0) for part in parts) - found.get("total", 0) for found in by_gpu.values()]
    return bool(off) and all(abs(value) <= 4096 for value in off), f"{off} bytes off"


def _is_wrong(point: Any) -> bool:
    return not math.isfinite(point.value) or (point.name.endswith("_ratio") and not 0 <= point.value <= 1)
