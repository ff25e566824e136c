"""What looks like a leak of each class and is normal, live on a real store; and what probes see that grows, as reports tell it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aie_agent.samples import Batch
from aie_agent.sources.bpf.points import WHOLE, Levels, add_up
from aie_ebpf import messages as m
from tests.fakes.leak_world import GB, HOUR, LEAK_S, MB, World, gpu

Shape = Callable[[World], Callable[[float], dict[str, float]]]


def _steps(second: float, hours: tuple[float, ...], size: float) -> float:
    return size * sum(second >= hour * HOUR for hour in hours)


def _longer_requests(world: World) -> Callable[[float], dict[str, float]]:
    """Live tensors: a new largest batch now and then, and the allocator keeps up with it."""

    def shape(second: float) -> dict[str, float]:
        allocated = 8 * GB + _steps(second, (3.0, 5.5, 13.0), 512 * MB) + world.noise()
        return {"allocated": allocated, "reserved": 12 * GB, "physical": 12.4 * GB}

    return shape


def _less_in_use(_: World) -> Callable[[float], dict[str, float]]:
    """Fragmentation: less and less of what the allocator has is in use, and it takes no more of it."""
    return lambda second: {"allocated": 15 * GB - LEAK_S * second, "reserved": 16 * GB, "physical": 16.4 * GB}


def _kernels_loaded_late(world: World) -> Callable[[float], dict[str, float]]:
    """Outside the allocator: kernels and workspaces that are loaded at their first use, within the first hours."""

    def shape(second: float) -> dict[str, float]:
        context = 0.4 * GB + _steps(second, (1.0, 1.5, 2.5, 4.0, 9.0), 32 * MB)
        return {"allocated": 8 * GB, "reserved": 9 * GB, "physical": 9 * GB + context + world.noise(2.0)}

    return shape


def _a_notebook(world: World) -> Callable[[float], dict[str, float]]:
    """Another process: loads a model once, and works."""

    def shape(second: float) -> dict[str, float]:
        others = 2 * GB + _steps(second, (10.0,), 4 * GB) + abs(world.noise(200.0))
        world.gpus = (gpu(int(others), 9 * GB + others),)
        return {"allocated": 8 * GB, "reserved": 8.5 * GB, "physical": 9 * GB}

    return shape


def _an_allocator_that_grows_with_its_driver(world: World) -> Callable[[float], dict[str, float]]:
    """Memory asked of the driver: all of what is asked is the allocator's, which fills a cache for four hours."""

    def shape(second: float) -> dict[str, float]:
        reserved = 8 * GB + min(second, 4 * HOUR) * 10 * MB
        tell(world, ("libc10_cuda.so", 2 << 20, reserved + 0.2 * GB))
        return {"allocated": 6 * GB + world.noise(), "reserved": reserved}

    return shape


def tell(world: World, *held: tuple[str, int, float]) -> None:
    """A report of the probes: what modules hold of the driver, in allocations of a size."""
    rows = tuple(
        m.Allocations("device", size, module, int(size_bytes), 1, int(size_bytes), 1, 0, 0) for module, size, size_bytes in held
    )
    report = m.Report(period_s=1.0, processes=(m.ProcessReport(engine="e", tgid=100, cuda=m.Cuda(allocations=rows)),))
    sums = add_up([report], Levels(m.Ready(sets=(), cost_ns={}, bcc_version="1"), (), {"e": ("device",)}))
    world.store.apply(Batch("bpf", world.now_s + 1, sums.points(), whole=WHOLE))


@pytest.mark.parametrize(
    "make",
    [_longer_requests, _less_in_use, _kernels_loaded_late, _a_notebook, _an_allocator_that_grows_with_its_driver],
    ids=lambda make: make.__name__.strip("_"),
)
def test_what_is_normal_is_no_leak(make: Shape) -> None:
    world = World("cuda0")
    world.run(30, make(world))
    assert world.found() == []


def test_module_and_size_that_grow_stand_in_the_evidence() -> None:
    world = World("cuda0")

    def shape(second: float) -> dict[str, float]:
        grown = LEAK_S * second
        tell(world, ("libc10_cuda.so", 2 << 20, 9 * GB), ("libnccl.so.2", 4 << 20, GB + grown), ("libcublas.so.12", 8 << 20, GB))
        return {"allocated": 8 * GB + world.noise(), "reserved": 9 * GB}

    world.run(26, shape)
    finding = world.only()
    assert (finding.cause, finding.severity) == ("memory_leak", "warning")
    told = [each.text for each in finding.evidence]
    assert any("asked for by libnccl.so.2" in each for each in told)
    assert any(f"in allocations of up to {4 << 20} bytes" in each for each in told)
    assert {"aie_cuda_memory_module_bytes", "aie_cuda_memory_class_bytes"} <= {each.metric for each in finding.evidence}
