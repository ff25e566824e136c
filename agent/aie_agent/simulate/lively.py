"""Simulated GPUs that look as an inference host looks: at work, each a little differently, with memory held by processes."""

from collections.abc import Sequence
from typing import Final

from aie_agent.simulate.controller import Controller, Process

_LOADS: Final = (0.82, 0.74, 0.91, 0.55, 0.78, 0.66, 0.88, 0.35)
_SWING_RATIO: Final = 0.12
_MEMORY_RATIO: Final = 0.86
"""What an engine takes of the memory: weights and KV cache together (vLLM's default is 0.9 of the GPU)."""
_UNIFIED_BYTES: Final = 32 << 30


def enliven(controller: Controller, gpus: int, pids: Sequence[int]) -> None:
    """Puts the GPUs to work, and gives their memory to these processes in turn."""
    for gpu in range(gpus):
        controller.set_load(gpu, _LOADS[gpu % len(_LOADS)], _SWING_RATIO, period_s=9 + 2 * gpu)
        if pids:
            with controller.edit() as config:
                total_bytes = config.gpus[gpu].memory_total_bytes
            used_bytes = round(total_bytes * _MEMORY_RATIO) if total_bytes else _UNIFIED_BYTES
            controller.set_processes(gpu, [Process(pids[gpu % len(pids)], used_bytes)])
