"""One reader of GPUs for `gpu_cost.py`, in a process of its own: prints what its cycles cost as JSON."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAUSE_S = 0.11
"""Between cycles: GPM gives nothing for less."""
WARM_UP = 5


def aie_agent() -> Callable[[], int]:
    """The source with everything it has; slow rows at one cycle of ten, as with the agent's defaults."""
    from aie_agent.config import GpuSection
    from aie_agent.config_values import Duration
    from aie_agent.identity import Engines
    from aie_agent.sources.nvml.build import build
    from aie_agent.sources.procfs import Procfs

    procfs = Procfs()
    section = GpuSection(period=Duration(PAUSE_S), slow_period=Duration(10 * PAUSE_S))
    source = build(section, procfs, Engines(procfs.start_ticks))
    if source is None:
        raise SystemExit("no simulated GPUs here")
    loop = asyncio.new_event_loop()
    return lambda: len(loop.run_until_complete(source.collect(time.time())).points)


def nvitop() -> Callable[[], int]:
    """What nvitop's monitor takes of every device and process."""
    import nvitop as api

    devices = api.Device.all()

    def cycle() -> int:
        taken = api.take_snapshots(devices)
        return sum(_numbers(snapshot) for snapshot in (*taken.devices, *taken.gpu_processes))

    return cycle


def gpustat() -> Callable[[], int]:
    """What the program prints."""
    import gpustat as api

    def cycle() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            query = api.GPUStatCollection.new_query()
        return sum(_numbers(gpu.entry) for gpu in query.gpus)

    return cycle


def _numbers(row: Any) -> int:
    values = row.values() if isinstance(row, dict) else vars(row).values()
    return sum(isinstance(value, (int, float)) for value in values)


def main() -> None:
    name, cycles = sys.argv[1], int(sys.argv[2])
    cycle = {"aie-agent": aie_agent, "nvitop": nvitop, "gpustat": gpustat}[name]()
    descriptors, cpu_ms, numbers = [], [], 0
    for number in range(WARM_UP + cycles):
        time.sleep(PAUSE_S)
        began_s = time.process_time()
        numbers = cycle()
        if number >= WARM_UP:
            cpu_ms.append((time.process_time() - began_s) * 1e3)
            descriptors.append(len(os.listdir("/proc/self/fd")))
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    report = {"cpu_ms": cpu_ms, "resident_bytes": resident, "descriptors": [descriptors[0], descriptors[-1]], "numbers": numbers}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
