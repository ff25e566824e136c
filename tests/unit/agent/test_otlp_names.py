"""Names, units and instruments, held against the package of the semantic conventions, and against Prometheus' rules."""

from __future__ import annotations

import importlib
import inspect
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating import attributes as _incubating
from opentelemetry.semconv.schemas import Schemas

from aie_agent.outputs.otlp.build import SCHEMA_URL
from aie_agent.outputs.otlp.names import CONVENTIONS, NAMES, Instrument, Name, foreign_name, own_name
from aie_agent.sources.procfs_text import CPU_MODES
from aie_telemetry.catalogue import CATALOGUE, Kind

_MODULES = {"hw": "hw_metrics", "gen_ai": "gen_ai_metrics", "process": "process_metrics", "system": "system_metrics"}


class _Meter:
    """Notes what the package would create: its name, unit and instrument."""

    def __init__(self) -> None:
        self.created: tuple[str, str, str] | None = None

    def __getattr__(self, method: str) -> Any:
        instrument = method.removeprefix("create_").removeprefix("observable_").replace("up_down_counter", "updowncounter")

        def create(name: str, *args: Any, unit: str = "", **_: Any) -> None:
            self.created = (name, unit or next((each for each in args if isinstance(each, str)), ""), instrument)

        return create


def _convention(name: str) -> tuple[str, str, str] | None:
    module = importlib.import_module(f"opentelemetry.semconv._incubating.metrics.{_MODULES[name.split('.')[0]]}")
    for function_name, function in inspect.getmembers(module, inspect.isfunction):
        if function_name.startswith("create_"):
            meter = _Meter()
            function(meter, *([()] if "callbacks" in inspect.signature(function).parameters else []))
            if meter.created is not None and meter.created[0] == name:
                return meter.created
    return None


@pytest.mark.parametrize("name", sorted({each.name for each in CONVENTIONS.values()}))
def test_the_conventions_have_it_so(name: str) -> None:
    ours = {(each.name, each.unit, str(each.instrument)) for each in CONVENTIONS.values() if each.name == name}
    theirs = _convention(name)
    assert theirs is not None, f"the package knows no {name}"
    assert ours == {theirs}


def test_the_schema_is_the_package_s() -> None:
    assert list(Schemas)[-1].value == SCHEMA_URL


@pytest.mark.parametrize("name", sorted(CONVENTIONS))
def test_renamed_labels_are_labels_of_the_metric(name: str) -> None:
    assert set(CONVENTIONS[name].labels) <= set(CATALOGUE[name].labels)


def test_no_two_metrics_give_the_same_points() -> None:
    """Where several metrics are one in the conventions, an attribute that all its points have tells them apart."""
    same: dict[str, list[Name]] = defaultdict(list)
    for name in NAMES.values():
        same[name.name].append(name)
    for names in same.values():
        assert len({(each.unit, each.instrument) for each in names}) == 1
        told = {tuple(sorted(each.constants.items())) + tuple(sorted(each.labels.items())) for each in names}
        assert len(told) == len(names)


def _as_prometheus_has_it(name: Name) -> str:
    """How Prometheus' OTLP translation builds a name: otlptranslator's rules, for the units that we use."""
    units = {
        "s": "seconds",
        "By": "bytes",
        "By/s": "bytes_per_second",
        "Cel": "celsius",
        "W": "watts",
        "J": "joules",
        "Hz": "hertz",
    }
    text = re.sub(r"[^a-zA-Z0-9]+", "_", name.name)
    if name.unit in units:
        text += f"_{units[name.unit]}"
    if name.unit == "1" and name.instrument is Instrument.GAUGE:
        text += "_ratio"
    if name.instrument is Instrument.COUNTER:
        text += "_total"
    return text


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_prometheus_makes_the_catalogue_s_name_of_ours(metric: Any) -> None:
    name = own_name(metric)
    assert name.name.startswith("aie.")
    assert _as_prometheus_has_it(name) == metric.name


def test_every_metric_of_the_catalogue_has_a_name() -> None:
    assert set(NAMES) == set(CATALOGUE)


def test_what_others_sent_keeps_its_name() -> None:
    assert foreign_name("queue.depth", Kind.GAUGE) == Name("queue.depth", "", Instrument.GAUGE)


def _attributes_of_the_package() -> set[str]:
    found: set[str] = set()
    for file in Path(_incubating.__path__[0]).glob("*_attributes.py"):
        module = importlib.import_module(f"{_incubating.__name__}.{file.stem}")
        found |= {value for name, value in vars(module).items() if name.isupper() and isinstance(value, str)}
    return found


def test_attributes_are_those_of_the_conventions() -> None:
    used = {each for name in CONVENTIONS.values() for each in (*name.labels.values(), *name.constants)}
    assert {each for each in used if not each.startswith("aie.")} <= _attributes_of_the_package()


def _values_of_the_package() -> dict[str, set[str]]:
    """By attribute what its enumeration has; those without one are not there. An enumeration is called as its attribute is."""
    found: dict[str, set[str]] = {}
    for file in Path(_incubating.__path__[0]).glob("*_attributes.py"):
        module = importlib.import_module(f"{_incubating.__name__}.{file.stem}")
        for name, attribute in vars(module).items():
            enumeration = vars(module).get("".join(part.capitalize() for part in name.split("_")) + "Values")
            if name.isupper() and isinstance(attribute, str) and enumeration is not None:
                found[attribute] = {each.value for each in enumeration}
    return found


SAID = {
    ("aie_host_cpu_seconds_total", "mode"): CPU_MODES,
    ("aie_process_cpu_seconds_total", "mode"): ("user", "system"),
    ("aie_process_context_switches_total", "kind"): ("voluntary", "involuntary"),
    ("aie_host_block_io_bytes_total", "op"): ("read", "write"),
}
"""What our labels say that are attributes with an enumeration in the conventions."""
OWN_VALUES = {"cpu.mode": {"softirq"}, "gen_ai.operation.name": {"inference"}}
"""Words that the conventions lack, where they allow one's own: docs/otlp.md has each."""


def test_values_are_those_of_the_conventions_but_for_what_the_document_says() -> None:
    theirs = _values_of_the_package()
    assert {"cpu.mode", "hw.type", "hw.gpu.task", "disk.io.direction", "system.paging.direction"} <= set(theirs)
    unknown = set()
    free = {"gen_ai.provider.name", "error.type"}  # the engine's name, as the document says; an XID's number
    for metric, name in CONVENTIONS.items():
        for attribute, value in name.constants.items():
            if attribute in theirs and value not in theirs[attribute]:
                unknown.add((attribute, value))
        for label, attribute in name.labels.items():
            if attribute in theirs and attribute not in free:
                values = [name.values.get(each, each) for each in SAID[metric, label]]
                assert len(set(values)) == len(values), "two points would be one"
                unknown |= {(attribute, value) for value in values if value not in theirs[attribute]}
    assert unknown == {(attribute, value) for attribute, values in OWN_VALUES.items() for value in values}
    document = (Path(__file__).parents[3] / "docs" / "otlp.md").read_text()
    assert all(f"`{value}`" in document for _, value in unknown)
