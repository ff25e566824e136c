"""GPUs as the API shows them, from the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from aie_agent.analysis.gpu_problems import Live, Others, faults
from aie_agent.analysis.window import level_history, rate
from aie_agent.outputs.gpu_since import Since
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
    "sm_occupancy_ratio": ("aie_gpu_sm_occupancy_ratio", ()),
    "tensor_active_ratio": ("aie_gpu_tensor_active_ratio", ()),
    "dram_active_ratio": ("aie_gpu_dram_active_ratio", ()),
    "sm_clock_hertz": ("aie_gpu_clock_hertz", (("clock", "sm"),)),
    "sm_clock_max_hertz": ("aie_gpu_clock_max_hertz", (("clock", "sm"),)),
    "memory_clock_hertz": ("aie_gpu_clock_hertz", (("clock", "memory"),)),
    "power_watts": ("aie_gpu_power_watts", ()),
    "power_limit_watts": ("aie_gpu_power_limit_watts", ()),
    "energy_joules": ("aie_gpu_energy_joules_total", ()),
    "fan_speed_ratio": ("aie_gpu_fan_speed_ratio", ()),
    "temperature_celsius": ("aie_gpu_temperature_celsius", (("sensor", "gpu"),)),
    "memory_temperature_celsius": ("aie_gpu_temperature_celsius", (("sensor", "memory"),)),
    "slowdown_celsius": ("aie_gpu_temperature_limit_celsius", (("limit", "slowdown"),)),
    "pcie_tx_bytes_per_second": ("aie_gpu_pcie_bytes_per_second", (("direction", "tx"),)),
    "pcie_rx_bytes_per_second": ("aie_gpu_pcie_bytes_per_second", (("direction", "rx"),)),
    "pcie_replays": ("aie_gpu_pcie_replays_total", ()),
    **{
        f"ecc_{kind}{suffix}": ("aie_gpu_ecc_errors_total", (("since", since), ("type", kind)))
        for kind in ("corrected", "uncorrected")
        for suffix, since in (("", "volatile"), ("_lifetime", "aggregate"))
    },
}
_FLAGS: Final = {"remap_pending": "aie_gpu_row_remap_pending", "remap_failed": "aie_gpu_row_remap_failed"}
# Field of api.Gpu that holds a number for each value of a label -> metric and label.
_BY_LABEL: Final = {
    "throttled_seconds": ("aie_gpu_throttle_seconds_total", "reason"),
    "nvlink_errors": ("aie_gpu_nvlink_errors_total", "kind"),
    "remapped_rows": ("aie_gpu_remapped_rows", "type"),
    "retired_pages": ("aie_gpu_retired_pages", "cause"),
}
_MIG: Final = {
    "memory_total_bytes": "aie_gpu_mig_memory_total_bytes",
    "memory_used_bytes": "aie_gpu_mig_memory_used_bytes",
    "sm_active_ratio": "aie_gpu_mig_sm_active_ratio",
}
_WHOLE: Final[dict[str, tuple[str, Tags]]] = {
    "pcie_generation": ("aie_gpu_pcie_link_generation", ()),
    "pcie_generation_max": ("aie_gpu_pcie_link_generation_max", ()),
    "pcie_width": ("aie_gpu_pcie_link_width", ()),
    "pcie_width_max": ("aie_gpu_pcie_link_width_max", ()),
    "nvlinks_active": ("aie_gpu_nvlink_links", (("state", "active"),)),
    "numa_node": ("aie_gpu_numa_node", ()),
}
_RATES: Final[dict[str, tuple[str, Tags]]] = {
    "nvlink_tx_bytes_per_second": ("aie_gpu_nvlink_bytes_total", (("direction", "tx"),)),
    "nvlink_rx_bytes_per_second": ("aie_gpu_nvlink_bytes_total", (("direction", "rx"),)),
    "pcie_replays_per_second": ("aie_gpu_pcie_replays_total", ()),
}
_HISTORIES: Final = {
    "utilization_history": "aie_gpu_utilization_ratio",
    "memory_used_history": "aie_gpu_memory_used_bytes",
    "power_history": "aie_gpu_power_watts",
}


_NOT_UP: Final = "not up"


class Details(Protocol):
    """Who knows of GPUs what is no number."""

    def processes(self, gpu: int) -> tuple[api.GpuProcess, ...]:
        """Those on a GPU, by its index."""

    def faults(self, gpu: int) -> tuple[api.GpuFault, ...]:
        """What is wrong with a GPU that no number tells, by its index."""


def gpus(
    store: Store, now_s: float, window_s: float, details: Details | None = None, since: Since | None = None
) -> tuple[api.Gpu, ...]:
    """Every GPU that is there or should be, by index. Without `since` it is not known how long anything holds."""
    return GpuRows(store, window_s, details, since).rows(now_s)


class GpuRows:
    """Every GPU that is there or should be, at each look. Which series are whose is found out when a series came or went, and not
    at each. Without `since` it is not known how long anything holds."""

    def __init__(self, store: Store, window_s: float, details: Details | None = None, since: Since | None = None) -> None:
        self._store = store
        self._window_s = window_s
        self._details = details
        self._since = since
        self._layout = -1
        self._grouped: dict[str, dict[str, dict[Tags, Series]]] = {}
        self._all: list[Series] = []
        self._expired: list[Series] | None = None
        self._live: Mapping[str, Live] = {}
        self._fields: Mapping[str, _Fields] = {}

    def rows(self, now_s: float, *, for_people: bool = True) -> tuple[api.Gpu, ...]:
        """By index. Rates and histories, of which no cause makes anything, are only `for_people`."""
        live_by_gpu = self._current(now_s)
        found = {int(index): live for index, live in live_by_gpu.items() if index.isdecimal() and "aie_gpu_up" in live}
        fields = {int(index): of_gpu for index, of_gpu in self._fields.items() if index.isdecimal()}
        rows = []
        for index in sorted(found):
            row = _gpu(index, found[index], fields[index], _without(found, index), now_s, self._details)
            if for_people and row.up:
                row = msgspec.structs.replace(row, **_courses(found[index], now_s, self._window_s))
            rows.append(_with_since(row, now_s, self._since))
        return tuple(rows)

    def _current(self, now_s: float) -> Mapping[str, Live]:
        """Series that still count, by GPU: the same as at the last look where none came, went, expired or was renewed since."""
        if self._layout != self._store.layout:
            self._layout, self._grouped, self._expired = self._store.layout, _by_gpu(self._store), None
            self._all = [series for of_gpu in self._grouped.values() for named in of_gpu.values() for series in named.values()]
        expired = [series for series in self._all if series.valid_until_s < now_s]
        if self._expired is None or expired != self._expired:
            self._expired = expired
            self._live = {gpu: _not_expired(all_series, now_s) for gpu, all_series in self._grouped.items()}
            self._fields = {gpu: _Fields(live) for gpu, live in self._live.items()}
        return self._live


def _not_expired(all_series: Mapping[str, Mapping[Tags, Series]], now_s: float) -> Live:
    return {
        name: current
        for name, named in all_series.items()
        if (current := {rest: series for rest, series in named.items() if series.valid_until_s >= now_s})
    }


def _by_gpu(store: Store) -> dict[str, dict[str, dict[Tags, Series]]]:
    found: dict[str, dict[str, dict[Tags, Series]]] = {}
    for name in _NAMES:
        for series in store.scalars(name):
            gpu, rest = _whose(series.tags)
            found.setdefault(gpu, {}).setdefault(name, {})[rest] = series
    return found


def _whose(tags: Tags) -> tuple[str, Tags]:
    """A GPU's index, and the other labels."""
    return dict(tags).get("gpu", ""), tuple(tag for tag in tags if tag[0] != "gpu")


def _without(found: Mapping[int, Live], index: int) -> list[Live]:
    return [live for other, live in found.items() if other != index]


def _gpu(index: int, live: Live, fields: _Fields, others: Others, now_s: float, details: Details | None) -> api.Gpu:
    up_tags, up = next(iter(live["aie_gpu_up"].items()))
    info = dict(next(iter(live.get("aie_gpu_info", {})), ()))
    is_up = up.value == 1
    wrong = (*(details.faults(index) if details else ()), *(faults(live, now_s, others) if is_up else ()))
    return api.Gpu(
        index=index,
        name=info.get("name", ""),
        uuid=info.get("uuid", ""),
        pci_bus_id=info.get("pci_bus_id", ""),
        architecture=info.get("architecture") or None,
        simulated=info.get("simulated") == "true",
        up=is_up,
        reason=dict(up_tags).get("reason") or None,
        xids=fields.xids(),
        problems=tuple(fault.text for fault in wrong),
        faults=wrong,
        **(fields.values(live) if is_up else {}),  # type: ignore[arg-type]
        processes=details.processes(index) if details and is_up else (),
    )


def _with_since(gpu: api.Gpu, now_s: float, since: Since | None) -> api.Gpu:
    if since is None:
        return gpu
    causes = [fault.cause for fault in gpu.faults]
    known = since.of(gpu.index, (*(gpu.clock_events if gpu.up else (_NOT_UP,)), *causes), now_s)
    return msgspec.structs.replace(
        gpu,
        faults=tuple(msgspec.structs.replace(fault, since_s=known[fault.cause]) for fault in gpu.faults),
        not_up_since_s=known.get(_NOT_UP),
        clock_events_since_s={event: known[event] for event in gpu.clock_events if event in known},
    )


class _Fields:
    """Which series the fields of a GPU come from that it has only while it answers: found out once for as long as the same ones are
    current, which is a hundred lookups, and read at each look."""

    def __init__(self, live: Live) -> None:
        self._levels = _found(live, _LEVELS)
        self._whole = _found(live, _WHOLE)
        self._flags = _found(live, {field: (metric, ()) for field, metric in _FLAGS.items()})
        self._unified = live.get("aie_gpu_memory_unified", {}).get(())
        self._events = _named(live, "aie_gpu_clock_event_active", "reason")
        self._by_label = {field: _named(live, metric, label) for field, (metric, label) in _BY_LABEL.items()}
        self._xids = sorted(_named(live, "aie_gpu_xid_errors_total", "xid"), key=lambda named: int(named[0]))

    def values(self, live: Live) -> dict[str, object]:
        """The fields, but for those that it does not have."""
        values: dict[str, object] = {field: series.value for field, series in self._levels}
        values |= {field: int(series.value) for field, series in self._whole}
        values |= {field: series.value == 1 for field, series in self._flags}
        values |= {field: {name: series.value for name, series in named} for field, named in self._by_label.items()}
        values["unified_memory"] = self._unified is not None and self._unified.value == 1
        # Why the clocks are down. A GPU that idles does not need them up.
        values["clock_events"] = tuple(reason for reason, series in self._events if series.value == 1 and reason != "idle")
        if "aie_gpu_mig_info" in live:
            values["mig_instances"] = tuple(
                f"{tags['mig']} {tags['profile']}".strip() for tags in map(dict, live["aie_gpu_mig_info"])
            )
            values["mig"] = tuple(_mig(live))
        return values

    def xids(self) -> dict[str, float]:
        """By number, the smallest first, only those above 0."""
        return {xid: series.value for xid, series in self._xids if series.value > 0}


def _found(live: Live, fields: Mapping[str, tuple[str, Tags]]) -> list[tuple[str, Series]]:
    return [(field, series) for field, (metric, tags) in fields.items() if (series := live.get(metric, {}).get(tags)) is not None]


def _named(live: Live, metric: str, label: str) -> list[tuple[str, Series]]:
    """The series of a metric by the value of a label."""
    return [(dict(tags)[label], series) for tags, series in live.get(metric, {}).items()]


def _courses(live: Live, now_s: float, window_s: float) -> dict[str, object]:
    """The fields that look back."""
    courses: dict[str, object] = {"throttled_ratio": _throttled(live, now_s, window_s)}
    for field, (metric, tags) in _RATES.items():
        series = live.get(metric, {}).get(tags)
        courses[field] = None if series is None else rate([series], now_s - window_s, now_s)
    for field, metric in _HISTORIES.items():
        courses[field] = level_history(list(live.get(metric, {}).values()), now_s, HISTORY_POINTS, HISTORY_STEP_S)
    return courses


def _level(live: Live, metric: str, tags: Tags) -> float | None:
    series = live.get(metric, {}).get(tags)
    return None if series is None else series.value


def _throttled(live: Live, now_s: float, window_s: float) -> dict[str, float]:
    """Which share of the window each reason held the clocks down. The driver's clock is not the agent's: at most all of it."""
    rates = {
        dict(tags)["reason"]: rate([series], now_s - window_s, now_s)
        for tags, series in live.get("aie_gpu_throttle_seconds_total", {}).items()
    }
    return {reason: min(share, 1.0) for reason, share in rates.items() if share is not None}


def _mig(live: Live) -> Iterable[api.MigInstance]:
    for tags in sorted(map(dict, live.get("aie_gpu_mig_info", {})), key=lambda tags: tags["mig"]):
        levels = {field: _level(live, metric, (("mig", tags["mig"]),)) for field, metric in _MIG.items()}
        yield api.MigInstance(mig=tags["mig"], profile=tags["profile"], uuid=tags["uuid"], **levels)
