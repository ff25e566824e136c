"""GPUs as the API shows them, from the store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from aie_agent.analysis.gpu_problems import Live, problems
from aie_agent.analysis.window import level_history, rate
from aie_agent.samples import Tags
from aie_agent.series import Series
from aie_agent.store import Store
from aie_telemetry import api
from aie_telemetry.catalogue.gpu import GPU_METRICS

HISTORY_POINTS: Final = 60
HISTORY_STEP_S: Final = 1.0

_NAMES: Final = tuple(metric.name for metric in GPU_METRICS if metric.labels[:1] == ("gpu",))

# Field of api.Gpu -> metric, and the labels that it must have.
_LEVELS: Final[dict[str, tuple[str, Tags]]] = {
    "memory_total_bytes": ("aie_gpu_memory_total_bytes", ()),
    "memory_used_bytes": ("aie_gpu_memory_used_bytes", ()),
    "memory_reserved_bytes": ("aie_gpu_memory_reserved_bytes", ()),
    "memory_free_bytes": ("aie_gpu_memory_free_bytes", ()),
    "utilization_ratio": ("aie_gpu_utilization_ratio", ()),
    "sm_active_ratio": ("aie_gpu_sm_active_ratio", ()),
    "tensor_active_ratio": ("aie_gpu_tensor_active_ratio", ()),
    "dram_active_ratio": ("aie_gpu_dram_active_ratio", ()),
    "sm_clock_hertz": ("aie_gpu_clock_hertz", (("clock", "sm"),)),
    "sm_clock_max_hertz": ("aie_gpu_clock_max_hertz", (("clock", "sm"),)),
    "memory_clock_hertz": ("aie_gpu_clock_hertz", (("clock", "memory"),)),
    "power_watts": ("aie_gpu_power_watts", ()),
    "power_limit_watts": ("aie_gpu_power_limit_watts", ()),
    "temperature_celsius": ("aie_gpu_temperature_celsius", (("sensor", "gpu"),)),
    "memory_temperature_celsius": ("aie_gpu_temperature_celsius", (("sensor", "memory"),)),
    "slowdown_celsius": ("aie_gpu_temperature_limit_celsius", (("limit", "slowdown"),)),
    "pcie_tx_bytes_per_second": ("aie_gpu_pcie_bytes_per_second", (("direction", "tx"),)),
    "pcie_rx_bytes_per_second": ("aie_gpu_pcie_bytes_per_second", (("direction", "rx"),)),
}
_WHOLE: Final[dict[str, tuple[str, Tags]]] = {
    "pcie_generation": ("aie_gpu_pcie_link_generation", ()),
    "pcie_generation_max": ("aie_gpu_pcie_link_generation_max", ()),
    "pcie_width": ("aie_gpu_pcie_link_width", ()),
    "pcie_width_max": ("aie_gpu_pcie_link_width_max", ()),
    "nvlinks_active": ("aie_gpu_nvlink_links", (("state", "active"),)),
    "numa_node": ("aie_gpu_numa_node", ()),
}
_RATES: Final[dict[str, Tags]] = {
    "nvlink_tx_bytes_per_second": (("direction", "tx"),),
    "nvlink_rx_bytes_per_second": (("direction", "rx"),),
}
_HISTORIES: Final = {
    "utilization_history": "aie_gpu_utilization_ratio",
    "memory_used_history": "aie_gpu_memory_used_bytes",
    "power_history": "aie_gpu_power_watts",
}


class Details(Protocol):
    """Who knows of GPUs what is no number."""

    def processes(self, gpu: int) -> tuple[api.GpuProcess, ...]:
        """Those on a GPU, by its index."""

    def problems(self, gpu: int) -> tuple[str, ...]:
        """Sentences about a GPU, by its index."""


def gpus(store: Store, now_s: float, window_s: float, details: Details | None = None) -> tuple[api.Gpu, ...]:
    """Every GPU that is there or should be, by index."""
    rows = [
        _gpu(int(index), live, now_s, window_s, details)
        for index, live in _by_gpu(store, now_s).items()
        if index.isdecimal() and "aie_gpu_up" in live
    ]
    return tuple(sorted(rows, key=lambda row: row.index))


def _by_gpu(store: Store, now_s: float) -> dict[str, dict[str, dict[Tags, Series]]]:
    found: dict[str, dict[str, dict[Tags, Series]]] = {}
    for name in _NAMES:
        for series in store.scalars(name):
            if series.valid_until_s >= now_s:
                gpu = next((value for label, value in series.tags if label == "gpu"), "")
                rest = tuple(tag for tag in series.tags if tag[0] != "gpu")
                found.setdefault(gpu, {}).setdefault(name, {})[rest] = series
    return found


def _gpu(index: int, live: Live, now_s: float, window_s: float, details: Details | None) -> api.Gpu:
    up_tags, up = next(iter(live["aie_gpu_up"].items()))
    info = dict(next(iter(live.get("aie_gpu_info", {})), ()))
    is_up = up.value == 1
    return api.Gpu(
        index=index,
        name=info.get("name", ""),
        uuid=info.get("uuid", ""),
        pci_bus_id=info.get("pci_bus_id", ""),
        architecture=info.get("architecture") or None,
        simulated=info.get("simulated") == "true",
        up=is_up,
        reason=dict(up_tags).get("reason") or None,
        xids=_xids(live),
        problems=(*(details.problems(index) if details else ()), *(problems(live, now_s) if is_up else ())),
        **(_values(live, now_s, window_s) if is_up else {}),  # type: ignore[arg-type]
        processes=details.processes(index) if details and is_up else (),
    )


def _values(live: Live, now_s: float, window_s: float) -> dict[str, object]:
    """The fields that a GPU has only while it answers."""
    values: dict[str, object] = {field: _level(live, metric, tags) for field, (metric, tags) in _LEVELS.items()}
    for field, (metric, tags) in _WHOLE.items():
        value = _level(live, metric, tags)
        values[field] = None if value is None else int(value)
    for field, tags in _RATES.items():
        series = live.get("aie_gpu_nvlink_bytes_total", {}).get(tags)
        values[field] = None if series is None else rate([series], now_s - window_s, now_s)
    for field, metric in _HISTORIES.items():
        values[field] = level_history(list(live.get(metric, {}).values()), now_s, HISTORY_POINTS, HISTORY_STEP_S)
    pending = _level(live, "aie_gpu_row_remap_pending", ())
    return values | {
        "unified_memory": _level(live, "aie_gpu_memory_unified", ()) == 1,
        "clock_events": tuple(_clock_events(live)),
        "ecc_uncorrected": _level(live, "aie_gpu_ecc_errors_total", (("since", "volatile"), ("type", "uncorrected"))),
        "remap_pending": None if pending is None else pending == 1,
        "mig_instances": tuple(f"{tags['mig']} {tags['profile']}".strip() for tags in map(dict, live.get("aie_gpu_mig_info", {}))),
    }


def _level(live: Live, metric: str, tags: Tags) -> float | None:
    series = live.get(metric, {}).get(tags)
    return None if series is None else series.value


def _clock_events(live: Live) -> Iterable[str]:
    """Why the clocks are down. A GPU that idles does not need them up."""
    for tags, series in live.get("aie_gpu_clock_event_active", {}).items():
        reason = dict(tags)["reason"]
        if series.value == 1 and reason != "idle":
            yield reason


def _xids(live: Live) -> dict[str, float]:
    counts = {dict(tags)["xid"]: series.value for tags, series in live.get("aie_gpu_xid_errors_total", {}).items()}
    return {xid: count for xid, count in sorted(counts.items(), key=lambda item: int(item[0])) if count > 0}
