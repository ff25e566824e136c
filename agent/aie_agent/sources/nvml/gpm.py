"""GPM: what the multiprocessors, tensor cores and memory of Hopper and later really did between two samples.

No privilege is needed, and profilers are not kept out. Two samples belong to a GPU for as long as the session lives; a reading is
the difference of them, so there is none at the first cycle, nor after one that failed.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from aie_agent.sources.nvml import units
from aie_agent.sources.nvml.door import Absent, Device, Door
from aie_agent.sources.nvml.units import Unit

# Two samples that are closer than this may be the same one.
MIN_INTERVAL_S: Final = 0.1
# Over a longer time the counters behind them may have wrapped, and it would be no reading of now. Where GPUs are read more rarely,
# one reading may be missed.
MAX_INTERVAL_S: Final = 30.0
_MAX_PERIODS: Final = 2.5
# So many readings in a row without a number, and it is had in another way, where there is one, until GPM tells it again.
_PATIENCE: Final = 3

_SUPPORT, _ALLOC, _FREE = "nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree"
_SAMPLE, _MIG_SAMPLE, _METRICS = "nvmlGpmSampleGet", "nvmlGpmMigSampleGet", "nvmlGpmMetricsGet"


# metricId, nvmlReturn, value, and three pointers to names: nvmlGpmMetric_t.
_METRIC: Final = struct.Struct("@IId24x")


class GpmRow(NamedTuple):
    """A metric of GPM, by NVML's number."""

    metric: str
    number: int
    unit: Unit
    labels: tuple[str, ...] = ()


GPU_ROWS: Final = (
    GpmRow("aie_gpu_graphics_active_ratio", 1, units.PERCENT),
    GpmRow("aie_gpu_sm_active_ratio", 2, units.PERCENT),
    GpmRow("aie_gpu_sm_occupancy_ratio", 3, units.PERCENT),
    GpmRow("aie_gpu_tensor_active_ratio", 5, units.PERCENT),
    GpmRow("aie_gpu_dram_active_ratio", 10, units.PERCENT),
    GpmRow("aie_gpu_pcie_bytes_per_second", 20, units.MIBIBYTES_PER_SECOND, ("tx",)),
    GpmRow("aie_gpu_pcie_bytes_per_second", 21, units.MIBIBYTES_PER_SECOND, ("rx",)),
)
MIG_ROWS: Final = (GpmRow("aie_gpu_mig_sm_active_ratio", 2, units.PERCENT),)


def is_supported(door: Door, device: Device) -> bool:
    """Whether this GPU has GPM: Hopper or later, with a driver from 520 on."""
    return support(door, device) is True


def support(door: Door, device: Device) -> bool | None:
    """As `is_supported`; None where the GPU does not say now."""
    answer = door.query(_SUPPORT, device)
    if isinstance(answer, Absent):
        return False if answer.is_for_good else None
    return bool(answer.isSupportedDevice)


class GpmReader:
    """The samples of one GPU, or of one GPU instance of it, and the numbers between them. `period_s` is how often they are read."""

    def __init__(
        self, door: Door, device: Device, rows: Sequence[GpmRow], gpu_instance: int | None = None, period_s: float = 1.0
    ) -> None:
        self._longest_s = max(MAX_INTERVAL_S, _MAX_PERIODS * period_s)
        self._door = door
        self._device = device
        self._rows = tuple(rows)
        self._gpu_instance = gpu_instance
        self._samples: list[Any] = []
        self._previous_s: float | None = None
        self._failures = [0] * len(self._rows)
        self.refused: frozenset[int] = frozenset()
        """Numbers of the metrics that GPM announced and does not tell now."""
        self._request = self._new_request()
        begin = type(self._request).metrics.offset
        # Read as they lie there: the binding's own structs cost a Python call for every member.
        self._metrics = memoryview(self._request).cast("B")[begin : begin + len(self._rows) * _METRIC.size]

    def read(self, monotonic_s: float | None = None) -> list[float | Absent] | None:
        """A number or an `Absent` for each row, since the reading before; None where there is no such reading yet."""
        now_s = time.monotonic() if monotonic_s is None else monotonic_s
        previous_s = self._previous_s
        if previous_s is not None and now_s - previous_s < MIN_INTERVAL_S:
            return None
        if not self._allocate() or not self._take():
            self._previous_s = None
            self._note([True] * len(self._rows))
            return None
        self._previous_s = now_s
        older, newer = self._samples
        self._samples.reverse()
        if previous_s is None or now_s - previous_s > self._longest_s:
            return None
        return self._between(older, newer)

    def tells(self, row: GpmRow) -> bool:
        """False once the GPU said that it does not have this one, and while it refuses it."""
        return row.number not in self.refused and (_METRICS, row.number) not in self._device.unsupported

    def close(self) -> None:
        """Gives the samples back."""
        for sample in self._samples:
            self._door.query(_FREE, None, sample)
        self._samples.clear()
        self._previous_s = None

    def _allocate(self) -> bool:
        while len(self._samples) < 2:
            sample = self._door.query(_ALLOC, None)
            if isinstance(sample, Absent):
                return False
            self._samples.append(sample)
        return True

    def _take(self) -> bool:
        newer = self._samples[1]
        if self._gpu_instance is None:
            answer = self._door.query(_SAMPLE, self._device, newer)
        else:
            answer = self._door.query(_MIG_SAMPLE, self._device, self._gpu_instance, newer)
        return not isinstance(answer, Absent)

    def _between(self, older: Any, newer: Any) -> list[float | Absent] | None:
        request = self._request
        request.sample1, request.sample2 = older, newer
        if isinstance(self._door.query(_METRICS, None, request), Absent):
            self._previous_s = None
            self._note([True] * len(self._rows))
            return None
        values = [
            self._value(row, code, value)
            for row, (_, code, value) in zip(self._rows, _METRIC.iter_unpack(self._metrics), strict=True)
        ]
        self._note([isinstance(value, Absent) for value in values])
        return values

    def _note(self, failed: Sequence[bool]) -> None:
        """Which numbers came, and which did not."""
        if self.refused or any(failed) or any(self._failures):
            self._failures = [before + 1 if now else 0 for before, now in zip(self._failures, failed, strict=True)]
            pairs = zip(self._rows, self._failures, strict=True)
            self.refused = frozenset(row.number for row, failures in pairs if failures >= _PATIENCE)

    def _value(self, row: GpmRow, code: int, answer: float) -> float | Absent:
        if code != 0:
            return self._door.code(_METRICS, self._device, (_METRICS, row.number), code)
        value = units.convert(answer, row.unit)
        return self._door.implausible(_METRICS) if value is None else value

    def _new_request(self) -> Any:
        nvml = self._door.nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._rows)
        for place, row in enumerate(self._rows):
            request.metrics[place].metricId = row.number
        return request
