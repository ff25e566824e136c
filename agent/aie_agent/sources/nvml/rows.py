"""The table of what is asked of each GPU. A new metric is a new row.

Rows of one metric and the same labels are ways to the same number, the best first: the first that the GPU supports is used. Rows of
one call with the same arguments share one call. Field values (`FIELDS`) of a GPU are read in one call together.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple

from aie_agent.sources.nvml import units
from aie_agent.sources.nvml.units import Unit

FIELDS: Final = "nvmlDeviceGetFieldValues"
ALL_LINKS: Final = 0xFFFFFFFF
"""The scope of a field value that is summed over all NVLinks: by the driver, or, where it counts each link apart, by us."""


def _whole(value: Any) -> Any:
    return value


class Pace(Enum):
    """When a row is asked: at every cycle; now and then, for it hardly changes; on a thread apart, for the call takes its time."""

    FAST = "fast"
    SLOW = "slow"
    APART = "apart"


class Row(NamedTuple):
    """`labels` are the values of the metric's labels behind `gpu`, `args` those of `call` behind the handle: for `FIELDS` the
    field's id and scope. `pick` takes the number out of the answer. `each_link` calls it for every NVLink (whose number goes
    before `args`), and picks from the list; a field value is asked of each link, and the answer is their sum. `per_second` makes a
    rate of what is a counter. `since` is the driver or the architecture from which on it is there; where it is not, the GPU says so
    and is not asked again."""

    metric: str
    call: str
    unit: Unit
    labels: tuple[str, ...] = ()
    args: tuple[int, ...] = ()
    pick: Callable[[Any], Any] = _whole
    pace: Pace = Pace.FAST
    since: str = ""
    each_link: bool = False
    per_second: bool = False


def _first(pair: Any) -> Any:
    return pair[0]


def _second(pair: Any) -> Any:
    return pair[1]


def _field(metric: str, field: int, unit: Unit, *labels: str, scope: int = 0, pace: Pace = Pace.FAST, since: str = "") -> Row:
    return Row(metric, FIELDS, unit, labels, (field, scope), pace=pace, since=since)


def _link_field(metric: str, field: int, unit: Unit, label: str, pace: Pace = Pace.FAST) -> Row:
    return Row(metric, FIELDS, unit, (label,), (field, ALL_LINKS), pace=pace, since="NVLink 5", each_link=True)


_CLOCKS: Final = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}

CLOCK_EVENTS: Final = {
    "idle": 0x1,
    "app_clocks": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
    "display_clocks": 0x100,
    "board_limit": 0x200,
    "reliability": 0x400,
}
"""Reasons for which clocks are down, by their bit. Every other bit is "other"."""

_OTHER_EVENTS: Final = ~sum(CLOCK_EVENTS.values())


def _has_bits(bits: int) -> Callable[[Any], Any]:
    # The sentinel is no set of reasons.
    return lambda reasons: reasons if reasons in (0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) else bool(reasons & bits)


# The reason: the field's id, and the policy's number for the call of old.
_THROTTLES: Final = {
    "power": (74, 0),
    "thermal": (75, 1),
    "sync_boost": (76, 2),
    "board_limit": (77, 3),
    "low_utilization": (78, 4),
    "reliability": (79, 5),
}

_TEMPERATURE_LIMITS: Final = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
# The type and since when: the field's id, and the two arguments of the call of old.
_ECC: Final = {
    ("corrected", "volatile"): (3, (0, 0)),
    ("uncorrected", "volatile"): (4, (1, 0)),
    ("corrected", "aggregate"): (5, (0, 1)),
    ("uncorrected", "aggregate"): (6, (1, 1)),
}
# The kind: the field's id, and the number for the call of old.
_NVLINK_ERRORS: Final = {"replay": (52, 0), "recovery": (59, 1), "crc_flit": (38, 2), "crc_data": (45, 3)}
# From NVLink 5 on links count packets, and none of those above. Left out are the error rates of bits (they are no counters), and
# 215, which is the sum of both recoveries.
_NVLINK5_ERRORS: Final = {
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "link_integrity": 211,
    "transmit_discard": 212,
    "recovery": 213,
    "recovery_failed": 214,
    "effective": 219,
    "symbol": 221,
}

_FAST: Final = (
    Row("aie_gpu_utilization_ratio", "nvmlDeviceGetUtilizationRates", units.PERCENT, pick=_first),
    Row("aie_gpu_memory_utilization_ratio", "nvmlDeviceGetUtilizationRates", units.PERCENT, pick=_second),
    Row("aie_gpu_encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", units.PERCENT, pick=_first),
    Row("aie_gpu_decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", units.PERCENT, pick=_first),
    *(
        Row("aie_gpu_clock_hertz", "nvmlDeviceGetClockInfo", units.MEGAHERTZ, (name,), (number,))
        for name, number in _CLOCKS.items()
    ),
    *(
        Row("aie_gpu_clock_event_active", call, units.FLAG, (reason,), pick=_has_bits(bits), since=since)
        for call, since in (
            ("nvmlDeviceGetCurrentClocksEventReasons", "driver 535"),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", ""),
        )
        for reason, bits in (CLOCK_EVENTS | {"other": _OTHER_EVENTS}).items()
    ),
    *(_field("aie_gpu_throttle_seconds_total", field, units.NANOSECONDS, reason) for reason, (field, _) in _THROTTLES.items()),
    *(
        Row(
            "aie_gpu_throttle_seconds_total",
            "nvmlDeviceGetViolationStatus",
            units.NANOSECONDS,
            (reason,),
            (policy,),
            lambda times: times.violationTime,
        )
        for reason, (_, policy) in _THROTTLES.items()
    ),
    Row("aie_gpu_performance_state", "nvmlDeviceGetPerformanceState", units.STATE),
    Row("aie_gpu_power_watts", "nvmlDeviceGetPowerUsage", units.MILLIWATTS),
    _field("aie_gpu_energy_joules_total", 83, units.MILLIJOULES, since="Volta"),
    Row("aie_gpu_energy_joules_total", "nvmlDeviceGetTotalEnergyConsumption", units.MILLIJOULES, since="Volta"),
    Row("aie_gpu_temperature_celsius", "nvmlDeviceGetTemperature", units.CELSIUS, ("gpu",), (0,)),
    Row("aie_gpu_temperature_celsius", "nvmlDeviceGetTemperatureV", units.CELSIUS, ("gpu",), (0,), since="driver 570"),
    _field("aie_gpu_temperature_celsius", 82, units.CELSIUS, "memory", since="boards with HBM"),
    Row("aie_gpu_pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", units.GENERATION),
    Row("aie_gpu_pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", units.LANES),
    _field("aie_gpu_pcie_replays_total", 94, units.COUNT),
    Row("aie_gpu_pcie_replays_total", "nvmlDeviceGetPcieReplayCounter", units.COUNT),
    _field("aie_gpu_nvlink_bytes_total", 138, units.KIBIBYTES, "tx", scope=ALL_LINKS, since="Ampere"),
    _field("aie_gpu_nvlink_bytes_total", 139, units.KIBIBYTES, "rx", scope=ALL_LINKS, since="Ampere"),
    _link_field("aie_gpu_nvlink_bytes_total", 202, units.BYTES, "tx"),
    _link_field("aie_gpu_nvlink_bytes_total", 204, units.BYTES, "rx"),
    *(_field("aie_gpu_nvlink_errors_total", field, units.COUNT, kind) for kind, (field, _) in _NVLINK_ERRORS.items()),
    *(_field("aie_gpu_ecc_errors_total", field, units.COUNT, *labels) for labels, (field, _) in _ECC.items()),
    *(
        Row("aie_gpu_ecc_errors_total", "nvmlDeviceGetTotalEccErrors", units.COUNT, labels, args)
        for labels, (_, args) in _ECC.items()
    ),
    *(
        Row("aie_gpu_pcie_bytes_per_second", FIELDS, units.BYTES, (direction,), (field, 0), since="Hopper", per_second=True)
        for direction, field in (("tx", 197), ("rx", 198))
    ),
    _field("aie_gpu_row_remap_pending", 144, units.FLAG, since="Ampere"),
    _field("aie_gpu_row_remap_failed", 145, units.FLAG, since="Ampere"),
)

_SLOW: Final = (
    *(
        Row("aie_gpu_clock_max_hertz", "nvmlDeviceGetMaxClockInfo", units.MEGAHERTZ, (name,), (number,), pace=Pace.SLOW)
        for name, number in _CLOCKS.items()
    ),
    Row("aie_gpu_power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", units.MILLIWATTS, pace=Pace.SLOW),
    Row("aie_gpu_power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", units.MILLIWATTS, pace=Pace.SLOW),
    *(
        Row(
            "aie_gpu_temperature_limit_celsius",
            "nvmlDeviceGetTemperatureThreshold",
            units.CELSIUS,
            (name,),
            (number,),
            pace=Pace.SLOW,
        )
        for name, number in _TEMPERATURE_LIMITS.items()
    ),
    Row("aie_gpu_fan_speed_ratio", "nvmlDeviceGetFanSpeed", units.FAN_PERCENT, pace=Pace.SLOW),
    Row("aie_gpu_pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration", units.GENERATION, pace=Pace.SLOW),
    Row("aie_gpu_pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth", units.LANES, pace=Pace.SLOW),
    _field("aie_gpu_remapped_rows", 142, units.COUNT, "corrected", pace=Pace.SLOW, since="Ampere"),
    _field("aie_gpu_remapped_rows", 143, units.COUNT, "uncorrected", pace=Pace.SLOW, since="Ampere"),
    *(
        Row(metric, "nvmlDeviceGetRemappedRows", unit, labels, pick=pick, pace=Pace.SLOW, since="Ampere, driver 450")
        for metric, unit, labels, pick in (
            ("aie_gpu_remapped_rows", units.COUNT, ("corrected",), lambda rows: rows[0]),
            ("aie_gpu_remapped_rows", units.COUNT, ("uncorrected",), lambda rows: rows[1]),
            ("aie_gpu_row_remap_pending", units.FLAG, (), lambda rows: rows[2]),
            ("aie_gpu_row_remap_failed", units.FLAG, (), lambda rows: rows[3]),
        )
    ),
    _field("aie_gpu_retired_pages", 29, units.COUNT, "single_bit", pace=Pace.SLOW, since="until Volta"),
    _field("aie_gpu_retired_pages", 30, units.COUNT, "double_bit", pace=Pace.SLOW, since="until Volta"),
    *(
        Row("aie_gpu_nvlink_links", "nvmlDeviceGetNvLinkState", units.COUNT, (state,), pick=pick, pace=Pace.SLOW, each_link=True)
        for state, pick in (("active", sum), ("inactive", lambda states: len(states) - sum(states)))
    ),
    *(_link_field("aie_gpu_nvlink_errors_total", field, units.COUNT, kind, Pace.SLOW) for kind, field in _NVLINK5_ERRORS.items()),
    *(
        Row(
            "aie_gpu_nvlink_errors_total",
            "nvmlDeviceGetNvLinkErrorCounter",
            units.COUNT,
            (kind,),
            (number,),
            sum,
            Pace.SLOW,
            each_link=True,
        )
        for kind, (_, number) in _NVLINK_ERRORS.items()
    ),
    Row("aie_gpu_persistence_mode", "nvmlDeviceGetPersistenceMode", units.FLAG, pace=Pace.SLOW),
    Row("aie_gpu_mig_mode", "nvmlDeviceGetMigMode", units.FLAG, pick=_first, pace=Pace.SLOW, since="Ampere"),
)

# About 20 ms a call: it watches the link for as long.
_APART: Final = tuple(
    Row(
        "aie_gpu_pcie_bytes_per_second",
        "nvmlDeviceGetPcieThroughput",
        units.KILOBYTES_PER_SECOND,
        (direction,),
        (number,),
        pace=Pace.APART,
    )
    for direction, number in (("tx", 0), ("rx", 1))
)

ROWS: Final[tuple[Row, ...]] = _FAST + _SLOW + _APART
