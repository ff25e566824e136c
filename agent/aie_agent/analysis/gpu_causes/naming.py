"""How findings call a GPU: their subject is what relates them to engines, their summary what people read."""

from __future__ import annotations

from aie_agent.analysis.findings import View
from aie_agent.progress import RUNNING
from aie_telemetry.api import Gpu


def subject(gpu: Gpu) -> str:
    """`gpu3`, as in the labels of metrics."""
    return f"gpu{gpu.index}"


def title(gpu: Gpu) -> str:
    """GPU 3, or simulated GPU 3. What follows it in a summary has no number of its own, so that the same of several GPUs reads
    the same."""
    return f"simulated GPU {gpu.index}" if gpu.simulated else f"GPU {gpu.index}"


def engines_on(gpu: Gpu) -> tuple[str, ...]:
    """The engines with a process on it."""
    return tuple(sorted({each.engine for each in gpu.processes if each.engine is not None}))


def serves(view: View, gpu: Gpu, now_s: float) -> bool:
    """Whether an engine on it has requests running."""
    return any(view.store.current(RUNNING, now_s, engine=engine) for engine in engines_on(gpu))
