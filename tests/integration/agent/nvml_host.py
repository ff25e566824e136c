"""A host of simulated GPUs with the agent's source on it: what the tests of the NVML source share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from aie_agent import simulate
from aie_agent.config import GpuSection
from aie_agent.config_values import Duration
from aie_agent.samples import Batch, Point
from aie_agent.simulate import Controller
from aie_agent.sources.base import SourceError
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.sources.nvml.xids import Xids


@contextlib.contextmanager
def simulated(state_file: Path, gpus: int, profile: str) -> Iterator[Controller]:
    """Frozen GPUs in this process, and no session of NVML but the source's own."""
    with simulate.install(gpus, profile, state_file=state_file) as controller:
        controller.freeze()
        try:
            yield controller
        finally:
            simulate.uninstall()


Numbers = dict[tuple[str, ...], float]


def section(**keys: Any) -> GpuSection:
    """[gpu] of an agent that looks often; durations in seconds."""
    times = {"period": 0.1, "slow_period": 0.1, "hung_after": 0.5, "retry": 0.0, "released_for": 60.0}
    durations = {name: Duration(keys.pop(name, value)) for name, value in times.items()}
    return GpuSection(**durations, **keys)


def source(
    config: GpuSection | None = None,
    memory: Memory | None = None,
    load: Callable[[], Any] | None = None,
    xids: bool = False,
) -> NvmlSource:
    """A source that joins no processes, and by default counts no XIDs: they have tests of their own."""
    return NvmlSource(config or section(), lambda: memory, Xids() if xids else None, load=load)


def numbers(batch: Batch) -> Numbers:
    """All points, by metric and the values of its labels in the order of their names."""
    return {(point.name, *(value for _, value in point.tags)): point.value for point in batch.points}


async def look(at: NvmlSource) -> Numbers:
    """One collection, all calls apart from it included."""
    batch = await at.collect(time.time())
    await at._end_apart()
    return numbers(batch)


async def reason(at: NvmlSource) -> str:
    """Why nothing can be collected."""
    try:
        await at.collect(time.time())
    except SourceError as error:
        return str(error)
    raise AssertionError("it collects")


async def until(at: NvmlSource, is_so: Callable[[Numbers], bool], timeout_s: float = 60.0) -> Numbers:
    """Looks again and again until a condition holds."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = await look(at)
        if is_so(found):
            return found
        assert time.monotonic() < deadline_s, "waited in vain"
        await asyncio.sleep(0.02)


def up(found: Numbers) -> dict[str, str]:
    """The reason of each GPU, "" for one that is up, by its index."""
    rows = {}
    for (name, *labels), value in found.items():
        if name == "aie_gpu_up":
            assert value == (labels[1] == "")
            rows[labels[0]] = labels[1]
    return rows


def of_gpu(points: list[Point], gpu: int) -> list[Point]:
    """The points of one GPU."""
    return [point for point in points if ("gpu", str(gpu)) in point.tags]


def quiet(controller: Controller, gpus: int) -> None:
    """Time stands still, and no call takes its time: the same question gets the same answer."""
    controller.freeze()
    controller.delay("nvmlDeviceGetPcieThroughput", 0.0)
    for gpu in range(gpus):
        controller.set_load(gpu, 0.5)
