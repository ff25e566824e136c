"""Faults of GPUs, which are simulated: a stand-in for the driver's library says them. No two have both GPU and cause in common."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from aie_agent import simulate
from tests.faultlab.faults import GPUS, Fault, Inject
from tests.faultlab.judge import Answer
from tests.faultlab.world import GIB, World, stranger

_HW_SLOWDOWN: Final = 0x8
_HW_THERMAL: Final = 0x40
_HW_POWER_BRAKE: Final = 0x80
_PCIE_FULL_KB_PER_S: Final = 50_000_000
"""Of 63 GB/s that 16 lanes of generation 5 could carry, most is not packets."""


def _gpu(
    begin: Callable[[simulate.Controller], None], end: Callable[[simulate.Controller], None]
) -> Callable[[World], contextlib.AbstractContextManager[None]]:
    @contextlib.contextmanager
    def inject(world: World) -> Iterator[None]:
        begin(world.simulated())
        try:
            yield
        finally:
            end(world.simulated())

    return inject


def _falls_off(host: simulate.Controller) -> None:
    host.push_xid(4, 79)
    host.lose(4)


def _full_link(host: simulate.Controller) -> None:
    host.fix(6, "pcie_rx_kb_per_s", _PCIE_FULL_KB_PER_S)


@contextlib.contextmanager
def _tenant(world: World) -> Iterator[None]:
    own = simulate.Process(world.engine.pid, 40 * GIB)
    with stranger("somebodys-training") as other:
        world.simulated().set_processes(7, [own, simulate.Process(other.pid, 24 * GIB, sm_percent=45)])
        try:
            yield
        finally:
            world.simulated().set_processes(7, [own])


@contextlib.contextmanager
def _orphan(world: World) -> Iterator[None]:
    """A process that is gone, of which the driver still holds the memory."""
    own = simulate.Process(world.engine.pid, 30 * GIB)
    with stranger("its-worker") as worker:
        pid = worker.pid
    world.simulated().set_processes(2, [own, simulate.Process(pid, 20 * GIB)])
    try:
        yield
    finally:
        world.simulated().set_processes(2, [own])


_throttle = _gpu(lambda host: host.throttle(0, _HW_SLOWDOWN | _HW_THERMAL), lambda host: host.throttle(0, 0))
_brake = _gpu(lambda host: host.throttle(1, _HW_SLOWDOWN | _HW_POWER_BRAKE), lambda host: host.throttle(1, 0))
_narrow = _gpu(lambda host: host.set_link(3, width=8), lambda host: host.set_link(3, width=16))
_falls_with_79 = _gpu(_falls_off, lambda host: host.lose(4, lost=False))
_lost = _gpu(lambda host: host.lose(5), lambda host: host.lose(5, lost=False))
_xid_48 = _gpu(lambda host: host.push_xid(0, 48), lambda host: None)
_xid_31 = _gpu(lambda host: host.push_xid(1, 31), lambda host: None)
_pcie = _gpu(_full_link, lambda host: host.unfix(6, "pcie_rx_kb_per_s"))


def _fault(name: str, what: str, inject: Inject, answer: Answer, beside: tuple[str, ...] = ()) -> Fault:
    return Fault(name, what, GPUS, inject, answer, beside, apart=True)


_HOT: Final = Answer("gpu_thermal", "gpu0", "warning", says=r"gives hw_thermal as the reason")
_BRAKED: Final = Answer("gpu_power_brake", "gpu1", "warning", says=r"gives hw_power_brake as the reason")
_NARROW: Final = Answer("gpu_link_width", "gpu3", "warning", says=r"has 8 lanes of 16")
_FULL: Final = Answer("pcie_bound", "gpu6", "warning", says=r"GB/s from the host", never=r"GB/s to the host")
_LOST_79: Final = Answer("gpu_lost", "gpu4", "critical", says=r"XID 79 came once")
_LOST: Final = Answer("gpu_lost", "gpu5", "critical", never=r"XID")
_XID_48: Final = Answer("gpu_xid_memory", "gpu0", "critical", says=r"XID 48: ")
_XID_31: Final = Answer("gpu_xid_application", "gpu1", "info", says=r"XID 31: ")
_ORPHAN: Final = Answer("gpu_orphan", "gpu2", "warning", says=r"^process \d+ \(.*\) holds 20480 MiB")
_OTHERS: Final = Answer("gpu_neighbour", "gpu7", "warning", says=r"^process \d+ \(somebodys-training\) uses 24576 MiB")

GPU_FAULTS: Final = (
    _fault("thermal", "hardware slowdown: too hot", _throttle, _HOT),
    _fault("power-brake", "hardware slowdown: power brake", _brake, _BRAKED),
    _fault("link-narrow", "8 of 16 PCIe lanes", _narrow, _NARROW, ("pcie_bound",)),
    _fault("pcie-full", "copies fill the PCIe link", _pcie, _FULL),
    _fault("xid-79", "XID 79, and off the bus", _falls_with_79, _LOST_79, ("gpu_xid_link",)),
    _fault("gpu-lost", "off the bus without a word", _lost, _LOST),
    _fault("xid-48", "XID 48: double-bit ECC error", _xid_48, _XID_48),
    _fault("xid-31", "XID 31: the application's page fault", _xid_31, _XID_31),
    _fault("orphan", "a process that is gone holds 20 GiB", _orphan, _ORPHAN),
    _fault("tenant", "another's training on the same GPU", _tenant, _OTHERS),
)
