"""Whether, where and how spans go, as the option and OpenTelemetry's standard variables say, to a collector that decodes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from fakes.collector import MetricsCollector
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aie_engine.config import EngineConfig
from aie_engine.span_settings import asked, traces_url
from aie_engine.tracing import otlp_tracing

BASE, OWN = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
UNUSABLE = {
    "OTEL_BSP_SCHEDULE_DELAY": "0",
    "OTEL_BSP_MAX_QUEUE_SIZE": "many",
    "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "99999",
    "OTEL_BSP_EXPORT_TIMEOUT": "soon",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "-1",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "abc",  # at which the SDK's import fails
    "OTEL_SPAN_EVENT_COUNT_LIMIT": "abc",
    "OTEL_EXPORTER_OTLP_TIMEOUT": "soon",
    "OTEL_EXPORTER_OTLP_COMPRESSION": "zstd",
    "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
    "OTEL_SDK_DISABLED": "perhaps",
}
ONE_SPAN = """
import logging, sys
logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(message)s")
from aie_engine.config import EngineConfig
from aie_engine.tracing import otlp_tracing, shut_down
tracing = otlp_tracing(EngineConfig(model="fake", name="chat-1"))
tracing.provider.get_tracer("test").start_span("s").end()
shut_down(tracing.provider)
print(tracing.counts.by_result()["ok"])
"""


@pytest.fixture(autouse=True)
def _nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def collector() -> Iterator[MetricsCollector]:
    served = MetricsCollector(kind=ExportTraceServiceRequest)
    yield served
    served.close()


def resource_of(request: Any) -> dict[str, str]:
    return {each.key: each.value.string_value for each in request.resource_spans[0].resource.attributes}


def send_one(config: EngineConfig) -> None:
    tracing = otlp_tracing(config)
    assert tracing is not None
    tracing.provider.get_tracer("test").start_span("s").end()
    tracing.provider.shutdown()
    assert tracing.counts.by_result()["ok"] == 1


def test_an_engine_starts_whatever_the_variables_say(collector: MetricsCollector) -> None:
    """In a process of its own, since the SDK reads one of them when it is imported."""
    environment = os.environ | UNUSABLE | {BASE: collector.url, "OTEL_SPAN_LINK_COUNT_LIMIT": ""}
    done = subprocess.run(
        [sys.executable, "-c", ONE_SPAN], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1"), done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    for name, value in UNUSABLE.items():
        assert len([line for line in lines if f"{name}={value!r}" in line]) == 1, done.stderr
    assert len(lines) == len(UNUSABLE), done.stderr
    assert collector.paths == ["/v1/traces"]


def test_variables_alone_switch_spans_on(collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    """One base is that of all signals: the path of this one is added to it."""
    monkeypatch.setenv(BASE, f"{collector.url}/otlp/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=inference")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "rack=7")
    send_one(EngineConfig(model="fake", name="chat-1"))
    assert collector.paths == ["/otlp/v1/traces"]
    assert {name.lower(): value for name, value in collector.headers[0].items()}["x-team"] == "inference"
    resource = resource_of(collector.requests[0])
    assert (resource["service.name"], resource["rack"]) == ("mine", "7")


def test_the_option_wins_and_the_engine_has_its_name(collector: MetricsCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OWN, "http://127.0.0.1:1/elsewhere")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    send_one(EngineConfig(model="fake", name="chat-1", otlp_endpoint=f"{collector.url}/otlp"))
    assert collector.paths == ["/otlp/v1/traces"]
    assert resource_of(collector.requests[0])["service.name"] == "chat-1"


def test_without_option_and_variables_the_sdk_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "0")  # nobody's business
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert otlp_tracing(EngineConfig(model="fake")) is None
    assert not caplog.records
    monkeypatch.delenv("OTEL_BSP_SCHEDULE_DELAY")
    monkeypatch.setenv(BASE, "http://127.0.0.1:1")
    assert otlp_tracing(EngineConfig(model="fake")) is None
    (said,) = caplog.records
    assert "pip install '.[otel]' in a checkout" in said.getMessage()
    assert said.exc_info is None


def test_what_the_sdk_stumbles_over_is_one_line(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Here for a number of a variable of its own, that no rule of ours is about."""
    monkeypatch.setattr("aie_engine.tracing.resource", lambda own: int("none"))
    assert otlp_tracing(EngineConfig(model="fake", otlp_endpoint="http://127.0.0.1:1")) is None
    (said,) = caplog.records
    assert "no spans are sent: ValueError" in said.getMessage()
    assert said.exc_info is None


@pytest.mark.parametrize(
    ("environment", "url", "says"),
    [
        ({}, None, []),
        ({BASE: "", OWN: " "}, None, []),
        ({BASE: "http://c:4318"}, "http://c:4318/v1/traces", []),
        ({BASE: "http://c:4318", OWN: "http://d/mine"}, "http://d/mine", []),
        ({BASE: "http://c:4318", OWN: "d"}, "http://c:4318/v1/traces", [f"{OWN}='d'"]),
        ({BASE: "http://[::1:4318"}, None, [f"{BASE}='http://[::1:4318'", "no spans are sent: no endpoint"]),
        (
            {BASE: "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            None,
            ["no spans are sent: they go by http/protobuf only"],
        ),
        (
            {
                BASE: "http://c:4317",
                OWN: "http://c:4318/v1/traces",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            "http://c:4318/v1/traces",
            [],
        ),
        ({BASE: "http://c", "OTEL_TRACES_EXPORTER": "none"}, None, []),
        ({BASE: "http://c", "OTEL_SDK_DISABLED": "true"}, None, []),
    ],
)
def test_where_variables_send_spans(environment: dict[str, str], url: str | None, says: list[str]) -> None:
    found = asked(None, dict(environment))
    assert found.url == url
    assert len(found.told) == len(says)
    assert all(part in line for part, line in zip(says, found.told, strict=True))


def test_a_batch_is_no_larger_than_the_queue_and_a_timeout_is_read() -> None:
    environment = {
        "OTEL_BSP_MAX_QUEUE_SIZE": "7",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT": "250",
    }
    found = asked("http://c", environment)
    assert environment["OTEL_BSP_MAX_EXPORT_BATCH_SIZE"] == "7"
    assert [line.split("=")[0] for line in found.told] == [
        "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
    ]
    assert found.timeout_s == 0.25


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("http://c:4318/otlp", "http://c:4318/otlp/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_where_spans_go_for_the_option(endpoint: str, url: str) -> None:
    assert traces_url(endpoint) == url
