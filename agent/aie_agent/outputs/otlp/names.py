"""What each metric is called in OpenTelemetry: a table of the semantic conventions where they have a name, and a rule for the rest.

The conventions are those of opentelemetry-semantic-conventions 0.66b2 (`hw.*`, `gen_ai.server.*`, `process.*`, `system.*`); a test
holds names, units and instruments against that package. The rule is the inverse of how Prometheus translates OTLP: the name loses
`_total` and its unit, so that Prometheus behind a collector shows the catalogue's name again, and rules and boards work there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from aie_telemetry.catalogue import CATALOGUE, Kind, Metric


class Instrument(StrEnum):
    """What a metric is in OpenTelemetry. A level that can be added up over its attributes is an up-down counter, not a gauge."""

    COUNTER = "counter"
    UP_DOWN_COUNTER = "updowncounter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Name(NamedTuple):
    """A metric in OpenTelemetry. `labels` are other names for labels of ours, `constants` attributes that all its points have,
    `values` other words for values of renamed labels."""

    name: str
    unit: str
    instrument: Instrument
    labels: Mapping[str, str] = MappingProxyType({})
    constants: Mapping[str, str] = MappingProxyType({})
    values: Mapping[str, str] = MappingProxyType({})


_UNITS: Final = {
    "seconds": ("s", "_seconds"),
    "bytes": ("By", "_bytes"),
    "bytes/s": ("By/s", "_bytes_per_second"),
    "bytes per second": ("By/s", "_bytes_per_second"),
    "celsius": ("Cel", "_celsius"),
    "watts": ("W", "_watts"),
    "joules": ("J", "_joules"),
    "hertz": ("Hz", "_hertz"),
    "ratio": ("1", "_ratio"),
    "1": ("", ""),
}
"""Our units in UCUM, and what Prometheus makes of them at the end of a name. Whatever is counted is an annotation: {request}."""

_INSTRUMENTS: Final = {Kind.COUNTER: Instrument.COUNTER, Kind.GAUGE: Instrument.GAUGE, Kind.HISTOGRAM: Instrument.HISTOGRAM}

# An engine sums over its operations (chat, completions): the conventions allow a name of one's own where none of theirs applies.
_SERVED: Final = {"engine": "gen_ai.provider.name", "model": "gen_ai.request.model"}
_ANY_OPERATION: Final = {"gen_ai.operation.name": "inference"}
_GPU: Final = {"gpu": "hw.id"}
_IS_GPU: Final = {"hw.type": "gpu"}
_ENGINE: Final = {"engine": "aie.engine"}


def _served(name: str) -> Name:
    return Name(f"gen_ai.server.{name}", "s", Instrument.HISTOGRAM, _SERVED, _ANY_OPERATION)


def _gpu_share(task: str) -> Name:
    return Name("hw.gpu.utilization", "1", Instrument.GAUGE, _GPU, {"hw.gpu.task": task})


def _resident(kind: str) -> Name:
    """The parts add up to what the conventions call memory usage."""
    return Name("process.memory.usage", "By", Instrument.UP_DOWN_COUNTER, _ENGINE, {"aie.memory.kind": kind})


def _paging(direction: str) -> Name:
    constants = {"system.paging.direction": direction, "system.paging.fault.type": "major"}
    return Name("system.paging.operations", "{operation}", Instrument.COUNTER, {}, constants)


CONVENTIONS: Final[Mapping[str, Name]] = {
    "aie_engine_time_to_first_token_seconds": _served("time_to_first_token"),
    "aie_engine_time_per_output_token_seconds": _served("time_per_output_token"),
    "aie_engine_request_duration_seconds": _served("request.duration"),
    "aie_gpu_memory_total_bytes": Name("hw.gpu.memory.limit", "By", Instrument.UP_DOWN_COUNTER, _GPU),
    "aie_gpu_memory_used_bytes": Name("hw.gpu.memory.usage", "By", Instrument.UP_DOWN_COUNTER, _GPU),
    "aie_gpu_utilization_ratio": _gpu_share("general"),
    "aie_gpu_encoder_utilization_ratio": _gpu_share("encoder"),
    "aie_gpu_decoder_utilization_ratio": _gpu_share("decoder"),
    "aie_gpu_power_watts": Name("hw.power", "W", Instrument.GAUGE, _GPU, _IS_GPU),
    "aie_gpu_energy_joules_total": Name("hw.energy", "J", Instrument.COUNTER, _GPU, _IS_GPU),
    "aie_gpu_temperature_celsius": Name(
        "hw.temperature", "Cel", Instrument.GAUGE, {**_GPU, "sensor": "hw.sensor_location"}, _IS_GPU
    ),
    "aie_gpu_xid_errors_total": Name("hw.errors", "{error}", Instrument.COUNTER, {**_GPU, "xid": "error.type"}, _IS_GPU),
    "aie_process_cpu_seconds_total": Name("process.cpu.time", "s", Instrument.COUNTER, {**_ENGINE, "mode": "cpu.mode"}),
    "aie_process_resident_anon_bytes": _resident("anonymous"),
    "aie_process_resident_file_bytes": _resident("file"),
    "aie_process_resident_shmem_bytes": _resident("shared"),
    "aie_process_threads": Name("process.thread.count", "{thread}", Instrument.UP_DOWN_COUNTER, _ENGINE),
    "aie_process_context_switches_total": Name(
        "process.context_switches", "{context_switch}", Instrument.COUNTER, {**_ENGINE, "kind": "process.context_switch.type"}
    ),
    "aie_process_major_faults_total": Name(
        "process.paging.faults", "{fault}", Instrument.COUNTER, _ENGINE, {"system.paging.fault.type": "major"}
    ),
    # softirq stays: the conventions have no word for it, and as a second "interrupt" it would be the same point.
    "aie_host_cpu_seconds_total": Name(
        "system.cpu.time", "s", Instrument.COUNTER, {"mode": "cpu.mode"}, values={"irq": "interrupt"}
    ),
    "aie_host_cpus": Name("system.cpu.logical.count", "{cpu}", Instrument.UP_DOWN_COUNTER),
    "aie_host_memory_total_bytes": Name("system.memory.limit", "By", Instrument.UP_DOWN_COUNTER),
    "aie_host_memory_available_bytes": Name("system.memory.linux.available", "By", Instrument.UP_DOWN_COUNTER),
    "aie_host_swap_used_bytes": Name("system.paging.usage", "By", Instrument.UP_DOWN_COUNTER, {}, {"system.paging.state": "used"}),
    "aie_host_swap_in_pages_total": _paging("in"),
    "aie_host_swap_out_pages_total": _paging("out"),
    "aie_host_major_faults_total": Name(
        "system.paging.faults", "{fault}", Instrument.COUNTER, {}, {"system.paging.fault.type": "major"}
    ),
    "aie_host_block_io_bytes_total": Name(
        "system.disk.io", "By", Instrument.COUNTER, {"device": "system.device", "op": "disk.io.direction"}
    ),
}
"""Metrics of the catalogue for which the semantic conventions have a name."""


def own_name(metric: Metric) -> Name:
    """A metric of the catalogue under a name of our own: `aie_engine_queue_seconds` is `aie.engine.queue` in seconds."""
    unit, suffix = _UNITS.get(metric.unit, (f"{{{metric.unit}}}", ""))
    name = metric.name.removesuffix("_total") if metric.kind is Kind.COUNTER else metric.name
    if metric.kind is not Kind.GAUGE and unit == "1":
        unit, suffix = "", ""  # Prometheus marks only gauges as ratios
    name = name.removesuffix(suffix) if suffix else name
    family, _, rest = name.removeprefix("aie_").partition("_")
    return Name(f"aie.{family}.{rest}" if rest else f"aie.{family}", unit, _INSTRUMENTS[metric.kind])


NAMES: Final[Mapping[str, Name]] = {metric.name: CONVENTIONS.get(metric.name) or own_name(metric) for metric in CATALOGUE.values()}
"""Every metric of the catalogue."""


def foreign_name(name: str, kind: Kind) -> Name:
    """What others sent over StatsD keeps its name; nobody knows its unit."""
    return Name(name, "", _INSTRUMENTS[kind])
