"""A page with the names and units of dcgm-exporter 4.8, so that boards and rules made for it work: percent, MiB, MHz, mJ.

Off by default. It repeats what the store holds under other names; what DCGM would say and the store does not hold is absent. Series
of a simulated GPU have a label of their own that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from aie_agent.analysis.window import rate
from aie_agent.samples import Tags
from aie_agent.series import Series
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind
from aie_telemetry.exposition import header, label_text, number
from aie_telemetry.xids import BY_NUMBER

_MIB: Final = 1 << 20
_RATE_WINDOW_S: Final = 10.0


def _as_it_is(value: float) -> float:
    return value


def _percent(ratio: float) -> float:
    return round(ratio * 100)


def _mib(value: float) -> float:
    return value // _MIB


def _mhz(hertz: float) -> float:
    return round(hertz / 1e6)


def _milli(value: float) -> float:
    return round(value * 1e3)


def _nanoseconds(seconds: float) -> float:
    return round(seconds * 1e9)


class Row(NamedTuple):
    """One of DCGM's names: the metric of ours, and the labels behind `gpu`, that it is made of, and how."""

    name: str
    kind: Kind
    help: str
    metric: str
    labels: Tags = ()
    convert: Callable[[float], float] = _as_it_is


_G: Final = Kind.GAUGE
_C: Final = Kind.COUNTER

# The names that dcgm-exporter 4.8 has on by default, and those that rules in the field ask for.
ROWS: Final[tuple[Row, ...]] = (
    Row("DCGM_FI_DEV_SM_CLOCK", _G, "SM clock frequency (in MHz).", "aie_gpu_clock_hertz", (("clock", "sm"),), _mhz),
    Row("DCGM_FI_DEV_MEM_CLOCK", _G, "Memory clock frequency (in MHz).", "aie_gpu_clock_hertz", (("clock", "memory"),), _mhz),
    Row("DCGM_FI_DEV_MEMORY_TEMP", _G, "Memory temperature (in C).", "aie_gpu_temperature_celsius", (("sensor", "memory"),)),
    Row("DCGM_FI_DEV_GPU_TEMP", _G, "GPU temperature (in C).", "aie_gpu_temperature_celsius", (("sensor", "gpu"),)),
    Row("DCGM_FI_DEV_POWER_USAGE", _G, "Power draw (in W).", "aie_gpu_power_watts"),
    Row("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", _C, "Total energy consumption (in mJ).", "aie_gpu_energy_joules_total", (), _milli),
    Row("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", _C, "Total number of PCIe retries.", "aie_gpu_pcie_replays_total"),
    Row("DCGM_FI_DEV_GPU_UTIL", _G, "GPU utilization (in %).", "aie_gpu_utilization_ratio", (), _percent),
    Row("DCGM_FI_DEV_MEM_COPY_UTIL", _G, "Memory utilization (in %).", "aie_gpu_memory_utilization_ratio", (), _percent),
    Row("DCGM_FI_DEV_ENC_UTIL", _G, "Encoder utilization (in %).", "aie_gpu_encoder_utilization_ratio", (), _percent),
    Row("DCGM_FI_DEV_DEC_UTIL", _G, "Decoder utilization (in %).", "aie_gpu_decoder_utilization_ratio", (), _percent),
    Row("DCGM_FI_DEV_FB_FREE", _G, "Framebuffer memory free (in MiB).", "aie_gpu_memory_free_bytes", (), _mib),
    Row("DCGM_FI_DEV_FB_USED", _G, "Framebuffer memory used (in MiB).", "aie_gpu_memory_used_bytes", (), _mib),
    Row("DCGM_FI_DEV_FB_RESERVED", _G, "Framebuffer memory reserved (in MiB).", "aie_gpu_memory_reserved_bytes", (), _mib),
    Row("DCGM_FI_DEV_FB_TOTAL", _G, "Framebuffer memory (in MiB).", "aie_gpu_memory_total_bytes", (), _mib),
    Row("DCGM_FI_DEV_POWER_VIOLATION", _C, "Throttling duration due to power constraints (in ns).",
        "aie_gpu_throttle_seconds_total", (("reason", "power"),), _nanoseconds),
    Row("DCGM_FI_DEV_THERMAL_VIOLATION", _C, "Throttling duration due to thermal constraints (in ns).",
        "aie_gpu_throttle_seconds_total", (("reason", "thermal"),), _nanoseconds),
    Row("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", _C, "Total number of single-bit volatile ECC errors.",
        "aie_gpu_ecc_errors_total", (("since", "volatile"), ("type", "corrected"))),
    Row("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", _C, "Total number of double-bit volatile ECC errors.",
        "aie_gpu_ecc_errors_total", (("since", "volatile"), ("type", "uncorrected"))),
    Row("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", _C, "Total number of single-bit persistent ECC errors.",
        "aie_gpu_ecc_errors_total", (("since", "aggregate"), ("type", "corrected"))),
    Row("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", _C, "Total number of double-bit persistent ECC errors.",
        "aie_gpu_ecc_errors_total", (("since", "aggregate"), ("type", "uncorrected"))),
    Row("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", _C, "Number of remapped rows for uncorrectable errors.",
        "aie_gpu_remapped_rows", (("type", "uncorrected"),)),
    Row("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", _C, "Number of remapped rows for correctable errors.",
        "aie_gpu_remapped_rows", (("type", "corrected"),)),
    Row("DCGM_FI_DEV_ROW_REMAP_FAILURE", _G, "Whether remapping of rows has failed.", "aie_gpu_row_remap_failed"),
    Row("DCGM_FI_DEV_PCIE_LINK_GEN", _G, "PCIe generation now.", "aie_gpu_pcie_link_generation"),
    Row("DCGM_FI_DEV_PCIE_LINK_WIDTH", _G, "PCIe lanes now.", "aie_gpu_pcie_link_width"),
    Row("DCGM_FI_DEV_PCIE_MAX_LINK_GEN", _G, "PCIe generation at most.", "aie_gpu_pcie_link_generation_max"),
    Row("DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH", _G, "PCIe lanes at most.", "aie_gpu_pcie_link_width_max"),
    Row("DCGM_FI_PROF_GR_ENGINE_ACTIVE", _G, "Ratio of time the graphics engine is active.", "aie_gpu_graphics_active_ratio"),
    Row("DCGM_FI_PROF_SM_ACTIVE", _G, "Ratio of cycles an SM has at least one warp assigned.", "aie_gpu_sm_active_ratio"),
    Row("DCGM_FI_PROF_SM_OCCUPANCY", _G, "Ratio of warps resident on an SM.", "aie_gpu_sm_occupancy_ratio"),
    Row("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", _G, "Ratio of cycles the tensor (HMMA) pipe is active.", "aie_gpu_tensor_active_ratio"),
    Row("DCGM_FI_PROF_DRAM_ACTIVE", _G, "Ratio of cycles the device memory interface is active.", "aie_gpu_dram_active_ratio"),
    Row("DCGM_FI_PROF_PCIE_TX_BYTES", _G, "PCIe data sent, in bytes per second.",
        "aie_gpu_pcie_bytes_per_second", (("direction", "tx"),), round),
    Row("DCGM_FI_PROF_PCIE_RX_BYTES", _G, "PCIe data received, in bytes per second.",
        "aie_gpu_pcie_bytes_per_second", (("direction", "rx"),), round),
)  # fmt: skip

_XID: Final = "DCGM_FI_DEV_XID_ERRORS"
_NVLINK: Final = "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"


class DcgmPage:
    """Renders the page from what is current in the store. `hostname` is the host's."""

    def __init__(self, store: Store, hostname: str) -> None:
        self._store = store
        self._hostname = hostname

    def render(self, now_s: float) -> str:
        """The page at `now_s`, by name."""
        gpus = self._labels(now_s)
        families = [
            (row.name, row.kind, row.help, [(gpus[gpu], row.convert(series.value)) for gpu, series in self._rows(row, now_s, gpus)])
            for row in ROWS
        ]
        families.append((_XID, _G, "Value of the last XID error encountered.", self._xids(now_s, gpus)))
        families.append((_NVLINK, _G, "NVLink bandwidth over all lanes (in MB/s).", self._nvlinks(now_s, gpus)))
        return "".join(
            header(name, str(kind), help_) + "".join(f"{name}{label_text(tags)} {number(value)}\n" for tags, value in samples)
            for name, kind, help_, samples in sorted(families, key=lambda family: family[0])
            if samples
        )

    def _labels(self, now_s: float) -> dict[str, Tags]:
        """The labels of each GPU's series, as dcgm-exporter has them. Its `Hostname` became `hostname` in 4.8.3: both are there."""
        labels: dict[str, Tags] = {}
        for series in self._current("aie_gpu_info", now_s):
            info = dict(series.tags)
            gpu = info.get("gpu", "")
            labels[gpu] = (
                ("gpu", gpu),
                ("UUID", info.get("uuid", "")),
                ("pci_bus_id", info.get("pci_bus_id", "")),
                ("device", f"nvidia{gpu}"),
                ("modelName", info.get("name", "")),
                ("Hostname", self._hostname),
                ("hostname", self._hostname),
                ("DCGM_FI_DRIVER_VERSION", info.get("driver", "")),
                *((("simulated", "true"),) if info.get("simulated") == "true" else ()),
            )
        return labels

    def _rows(self, row: Row, now_s: float, gpus: Mapping[str, Tags]) -> Iterable[tuple[str, Series]]:
        wanted = set(row.labels)
        for series in self._current(row.metric, now_s):
            gpu = dict(series.tags).get("gpu", "")
            if gpu in gpus and wanted.issubset(series.tags):
                yield gpu, series

    def _xids(self, now_s: float, gpus: Mapping[str, Tags]) -> list[tuple[Tags, float]]:
        """The last XID of each GPU; 0 where none came, which is known only while somebody listens."""
        last: dict[str, tuple[float, str]] = {}
        for series in self._current("aie_gpu_xid_last_timestamp_seconds", now_s):
            tags = dict(series.tags)
            last[tags["gpu"]] = max(last.get(tags["gpu"], (0.0, "0")), (series.value, tags["xid"]))
        listens = any(series.value == 1 for series in self._current("aie_gpu_xid_source_up", now_s))
        return [
            ((*tags, ("err_code", xid), ("err_msg", _message(xid))), float(xid))
            for gpu, tags in gpus.items()
            if gpu in last or listens
            for xid in (last.get(gpu, (0.0, "0"))[1],)
        ]

    def _nvlinks(self, now_s: float, gpus: Mapping[str, Tags]) -> list[tuple[Tags, float]]:
        samples: list[tuple[Tags, float]] = []
        for gpu, tags in gpus.items():
            series = [each for each in self._current("aie_gpu_nvlink_bytes_total", now_s) if ("gpu", gpu) in each.tags]
            bandwidth = rate(series, now_s - _RATE_WINDOW_S, now_s)
            if bandwidth is not None:
                samples.append((tags, round(bandwidth / 1e6)))
        return samples

    def _current(self, metric: str, now_s: float) -> list[Series]:
        return [series for series in self._store.scalars(metric) if series.valid_until_s >= now_s]


def _message(xid: str) -> str:
    known = BY_NUMBER.get(int(xid))
    return "No Error" if xid == "0" else known.meaning if known is not None else "Unknown Error"
