"""Simulated GPUs for the demo: who uses them, and the minute of troubles that they go through, over and over.

Nothing about them is real: a stand-in for the driver's library speaks, and everything that shows them says so. The engine of the
demo runs on the CPU and is not among their processes; these are placeholders that sleep.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from aie_agent.config_values import SimulatedGpus
from aie_agent.simulate import BuildError, Controller, Process, environment

GIB: Final = 1 << 30
HW_SLOWDOWN: Final = 0x8
HW_THERMAL: Final = 0x40
MINUTE_S: Final = 60.0
CONTEXT_BYTES: Final = GIB // 2


class Step(NamedTuple):
    """What happens to one GPU, so many seconds into each minute. On a host with fewer GPUs it happens to another one."""

    at_s: float
    gpu: int
    what: str
    do: Callable[[Controller, int], None]


def _falls_off(host: Controller, gpu: int) -> None:
    host.push_xid(gpu, 79)
    host.lose(gpu)


# By 30 s, when the report of HEADLESS=1 is taken, all four have happened.
WALK: Final = (
    Step(4.0, 2, "gets too hot: the hardware halves its clocks", lambda host, gpu: host.throttle(gpu, HW_SLOWDOWN | HW_THERMAL)),
    Step(9.0, 5, "reports XID 94", lambda host, gpu: host.push_xid(gpu, 94)),
    Step(14.0, 4, "negotiates 8 of its 16 PCIe lanes", lambda host, gpu: host.set_link(gpu, width=8)),
    Step(20.0, 6, "falls off the bus with XID 79", _falls_off),
    Step(40.0, 6, "is back", lambda host, gpu: host.lose(gpu, lost=False)),
    Step(45.0, 2, "has cooled down", lambda host, gpu: host.throttle(gpu, 0)),
    Step(50.0, 4, "has all its lanes again", lambda host, gpu: host.set_link(gpu, width=16)),
)


@dataclass(frozen=True)
class Gpus:
    """Simulated GPUs. `environment` is for programs that shall see them."""

    controller: Controller
    number: int
    environment: dict[str, str]

    async def walk(self, tell: Callable[[str], None]) -> None:
        """Goes through the minute again and again, until cancelled. `tell` gets a line for each step."""
        while True:
            clock_s = 0.0
            for step in WALK:
                await asyncio.sleep(step.at_s - clock_s)
                clock_s = step.at_s
                gpu = step.gpu % self.number
                step.do(self.controller, gpu)
                tell(f"simulated GPU {gpu} {step.what}")
            await asyncio.sleep(MINUTE_S - clock_s)


@contextlib.contextmanager
def simulated(wanted: SimulatedGpus, directory: Path) -> Iterator[Gpus]:
    """GPUs at work for placeholders, which end with the block.

    Raises:
        BuildError: the stand-in could not be compiled.
        ValueError: there is no such product.
    """
    state = directory / "simulated-gpus"
    seen_by = environment(state)
    with Controller.create(state, wanted.number, wanted.profile) as controller, contextlib.ExitStack() as stack:
        holders = [stack.enter_context(_placeholder(f"simulated-trainer-{rank}")) for rank in range(wanted.number)]
        for gpu, holder in enumerate(holders):
            # Each at its own pace, so that eight lines do not move as one.
            controller.set_load(gpu, 0.72 + 0.03 * (gpu % 4), 0.14, 14.0 + 3.0 * gpu)
            controller.set_processes(gpu, [*_launcher(gpu), Process(holder.pid, (44 + 3 * (gpu % 5)) * GIB)])
        yield Gpus(controller, wanted.number, seen_by)


def _launcher(gpu: int) -> list[Process]:
    """The demo itself, parent of the placeholders, with a context on the first GPU: a tree to look at."""
    return [Process(os.getpid(), CONTEXT_BYTES, sm_percent=0)] if gpu == 0 else []


@contextlib.contextmanager
def _placeholder(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that name that sleeps: NVML's processes must exist to be believed."""
    process = subprocess.Popen([name, "86400"], executable=shutil.which("sleep"), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


__all__ = ["BuildError", "Gpus", "simulated"]
