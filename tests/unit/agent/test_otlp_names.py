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
