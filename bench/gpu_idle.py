"""Whether the agent's readings keep a GPU from resting. A GPU at rest, without them, with them, and with GPM's as well.

Watts are those of the board's energy counter, which is read twice a time: asking for the power itself again and again is a reading
too. The power is asked for once, at the end, for comparison. NVML stays open throughout, and no CUDA context is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import time
from typing import Any, Final, NamedTuple

from gpu_driver import Driver
from gpu_nvml import AtHand, Nvml, name_of, simulated
from gpu_report import Context, NotRunError

_WINDOW_S, _WINDOW_SMALL_S = 8.0, 1.5
_SETTLE_S, _SETTLE_SMALL_S = 4.0, 0.1
_PERIOD_S, _PERIOD_SMALL_S = 1.0, 0.3
_MOST_W: Final = 5.0
_MOST_RATIO: Final = 0.1
"""By so much a board at rest may draw more with the readings: it wavers by some watts by itself."""


class Drawn(NamedTuple):
    """Watts in a window: on average, by the energy counter, and as the board shows them at its end (None: it does not)."""

    mean_w: float
    shown_w: float | None


def idle(context: Context) -> None:
    """Half the time without the agent comes before its readings and half after, so that a board that cools down favours nobody."""
    import msgspec  # noqa: F401 - what the agent's source needs is asked for before a minute is spent
    import pynvml  # noqa: F401

    with contextlib.nullcontext() if context.is_cuda else simulated(0.0):
        hand = _at_rest(context)
        if isinstance(_energy_mj(hand), str):
            raise NotRunError(f"needs a GPU that counts its energy: nvmlDeviceGetTotalEnergyConsumption gives {_energy_mj(hand)}")
        context.report.fact("before", _state(hand))
        drawn = asyncio.run(_measure(context, hand))
    context.report.fact("shown_watts", {name: one.shown_w for name, one in drawn.items()})
    _tell(context, {name: one.mean_w for name, one in drawn.items()})


def _at_rest(context: Context) -> AtHand:
    nvml = Nvml()
    if not context.is_cuda:
        return AtHand(nvml, nvml.by_index(0), None)
    driver = Driver(context.device_index)
    return AtHand(nvml, nvml.by_uuid(driver.uuids), driver)


async def _measure(context: Context, hand: AtHand) -> dict[str, Drawn]:
    window_s = _WINDOW_SMALL_S if context.small else _WINDOW_S
    settle_s = _SETTLE_SMALL_S if context.small else _SETTLE_S
    drawn = {"without_before": await _drawn(hand, window_s / 2, settle_s)}
    for name, gpm in (("readings", False), ("readings_and_gpm", True)):
        reading = asyncio.create_task(_read(gpm, _PERIOD_SMALL_S if context.small else _PERIOD_S))
        try:
            drawn[name] = await _drawn(hand, window_s, settle_s)
            if reading.done():
                reading.result()
                raise RuntimeError("the agent's source ended before it was told to")
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await reading
    return drawn | {"without_after": await _drawn(hand, window_s / 2, settle_s)}


async def _drawn(hand: AtHand, window_s: float, settle_s: float) -> Drawn:
    await asyncio.sleep(settle_s)
    began_s, first = time.monotonic(), _counted(hand)
    await asyncio.sleep(window_s)
    last, ended_s = _counted(hand), time.monotonic()
    shown_mw = ctypes.c_uint()
    code = hand.nvml.ask("nvmlDeviceGetPowerUsage", hand.gpu, ctypes.byref(shown_mw))
    return Drawn((last - first) / 1e3 / (ended_s - began_s), None if code else shown_mw.value / 1e3)


async def _read(gpm: bool, period_s: float) -> None:
    """The agent's source of GPUs, until it is cancelled."""
    from aie_agent.config import GpuSection
    from aie_agent.config_values import Duration
    from aie_agent.identity import Engines
    from aie_agent.sources.nvml.build import build
    from aie_agent.sources.procfs import Procfs

    procfs = Procfs()
    source = build(GpuSection(period=Duration(period_s), gpm=gpm), procfs, Engines(procfs.start_ticks))
    if source is None:
        raise RuntimeError("the agent has no source of GPUs here")
    try:
        while True:
            await source.collect(time.time())
            await asyncio.sleep(period_s)
    finally:
        await source.close()


def _tell(context: Context, watts: dict[str, float]) -> None:
    report = context.report
    without = (watts["without_before"] + watts["without_after"]) / 2
    report.fact("watts", {name: round(value, 2) for name, value in watts.items()})
    report.fact("added_watts", {name: round(watts[name] - without, 2) for name in ("readings", "readings_and_gpm")})
    report.check("a GPU at rest stays at rest while it is read without GPM", *rests(without, watts["readings"]))


def rests(without_w: float, read_w: float) -> tuple[bool, str]:
    """Whether readings leave a board at rest that draws so much without them, and the numbers that tell."""
    most_w = max(_MOST_W, _MOST_RATIO * without_w)
    return read_w - without_w <= most_w, f"{read_w - without_w:+.1f} W on {without_w:.1f} W, at most {most_w:.1f} W more"


def _counted(hand: AtHand) -> int:
    """Millijoules since the driver was loaded. Raises RuntimeError where the counter is not told any more."""
    found = _energy_mj(hand)
    if isinstance(found, str):
        raise RuntimeError(f"nvmlDeviceGetTotalEnergyConsumption gives {found}")
    return found


def _energy_mj(hand: AtHand) -> int | str:
    """Millijoules, or the code that there was instead."""
    value = ctypes.c_ulonglong()
    code = hand.nvml.ask("nvmlDeviceGetTotalEnergyConsumption", hand.gpu, ctypes.byref(value))
    return name_of(code) if code else value.value


def _state(hand: AtHand) -> dict[str, Any]:
    """Whether it was at rest: its performance state (0 is the fastest), and who else holds a context."""
    state = ctypes.c_int()
    code = hand.nvml.ask("nvmlDeviceGetPerformanceState", hand.gpu, ctypes.byref(state))
    return {"performance_state": None if code else state.value, "processes": len(hand.nvml.processes(hand.gpu))}
