"""Point 2: how close two samples of GPM may be, and whether they need privilege."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping
from typing import Any, Final

from gpu_nobody import as_nobody
from gpu_nvml import AtHand, at_hand, name_of
from gpu_report import Context

_METRICS: Final = {1: "graphics", 2: "sm", 10: "dram", 20: "pcie_tx", 21: "pcie_rx"}
_PERCENT: Final = frozenset({"graphics", "sm", "dram"})
_INTERVALS_MS: Final = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500)
_RELIED_ON_MS: Final = 100
"""What the agent takes for the least interval."""
_ROUNDS: Final = 3
# The largest number of metrics that a driver of now may write; the struct ends where ours says how many there are.
_ROOM: Final = 512


class _Support(ctypes.Structure):
    """nvmlGpmSupport_t."""

    _fields_ = (("version", ctypes.c_uint), ("is_supported", ctypes.c_uint))


class _Metric(ctypes.Structure):
    """nvmlGpmMetric_t."""

    _fields_ = (
        ("metric", ctypes.c_uint),
        ("code", ctypes.c_uint),
        ("value", ctypes.c_double),
        ("names", ctypes.c_char_p * 3),
    )


class _Request(ctypes.Structure):
    """nvmlGpmMetricsGet_t."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("count", ctypes.c_uint),
        ("older", ctypes.c_void_p),
        ("newer", ctypes.c_void_p),
        ("metrics", _Metric * _ROOM),
    )


def gpm(context: Context) -> None:
    """On a device that works, so that 0 is no answer."""
    report = context.report
    report.fact("as_nobody", as_nobody(context, lambda hand: _between(hand, _RELIED_ON_MS / 1e3)))
    with at_hand(context) as hand:
        support = _Support(version=1)
        code = hand.nvml.ask("nvmlGpmQueryDeviceSupport", hand.gpu, ctypes.byref(support))
        report.fact("support", {"code": name_of(code), "is_supported": bool(support.is_supported)})
        if code or not support.is_supported:
            return
        with hand.busy():
            time.sleep(0.3)
            found = {interval: [_between(hand, interval / 1e3) for _ in range(_ROUNDS)] for interval in _INTERVALS_MS}
    report.fact("by_interval_ms", found)
    for interval, readings in found.items():
        if interval >= _RELIED_ON_MS:
            text = "; ".join(", ".join(f"{name} {value}" for name, value in reading.items()) for reading in readings)
            report.check(f"GPM has values after {interval} ms", all(map(is_plausible, readings)), text)
    usable = [interval for interval, readings in found.items() if all(map(is_plausible, readings))]
    report.fact("least_usable_interval_ms", min(usable, default=None))


def is_plausible(reading: Mapping[str, Any]) -> bool:
    """Whether a reading of a busy device is one: shares within 0 to 100 %, and some work."""
    shares = [reading.get(name) for name in _PERCENT]
    return all(isinstance(share, float) and 0 <= share <= 100 for share in shares) and any(shares)


def _between(hand: AtHand, interval_s: float) -> dict[str, float | str]:
    """A number of each metric between two samples that far apart, or the code that there was instead."""
    nvml = hand.nvml
    older, newer = ctypes.c_void_p(), ctypes.c_void_p()
    for sample in (older, newer):
        nvml.need("nvmlGpmSampleAlloc", ctypes.byref(sample))
    try:
        codes = [nvml.ask("nvmlGpmSampleGet", hand.gpu, older)]
        time.sleep(interval_s)
        codes.append(nvml.ask("nvmlGpmSampleGet", hand.gpu, newer))
        request = _Request(version=1, count=len(_METRICS), older=older.value, newer=newer.value)
        for place, metric in enumerate(_METRICS):
            request.metrics[place].metric = metric
        codes.append(nvml.ask("nvmlGpmMetricsGet", ctypes.byref(request)))
    finally:
        for sample in (older, newer):
            nvml.ask("nvmlGpmSampleFree", sample)
    if any(codes):
        return {"failed": ", ".join(map(name_of, codes))}
    rows = request.metrics[: len(_METRICS)]
    return {
        name: float(round(row.value, 2)) if row.code == 0 else name_of(row.code)
        for name, row in zip(_METRICS.values(), rows, strict=True)
    }
