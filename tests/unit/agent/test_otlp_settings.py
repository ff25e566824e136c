"""Where the agent pushes to and how often: the configuration before OpenTelemetry's own variables, and what is said of those that
cannot be used."""

from __future__ import annotations

import pytest

from aie_agent.commands.check_otlp import otlp_rows
from aie_agent.config import OtlpSection
from aie_agent.config_values import Duration, HttpUrl
from aie_agent.outputs.otlp.build import LostOutput, NoOutput, Target, asked, build, build_or_say_why, metrics_url

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TIMEOUT, INTERVAL, PROTOCOL = "OTEL_EXPORTER_OTLP_TIMEOUT", "OTEL_METRIC_EXPORT_INTERVAL", "OTEL_EXPORTER_OTLP_PROTOCOL"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the machine's own settings counts."""
    for name in (ENDPOINT, "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", TIMEOUT, INTERVAL, PROTOCOL):
        monkeypatch.delenv(name, raising=False)


def test_nothing_is_pushed_where_nobody_asked() -> None:
    assert isinstance(build(OtlpSection(), "host"), NoOutput)
    for off in ({"OTEL_SDK_DISABLED": "True "}, {"OTEL_METRICS_EXPORTER": "none"}, {ENDPOINT: " "}):
        assert asked(OtlpSection(), {ENDPOINT: "http://c:4318", "OTEL_METRIC_EXPORT_INTERVAL": "soon"} | off) == (None, ())


DEFAULTS = Target("http/protobuf", "http://c/v1/metrics", 60.0, 10.0)


@pytest.mark.parametrize(
    ("variables", "changed", "says"),
    [
        ({PROTOCOL: "http/json"}, {}, "accepted: http/protobuf, grpc"),
        ({INTERVAL: "60s"}, {}, "accepted: 1000 to 3600000"),
        ({INTERVAL: "nan"}, {}, "accepted: 1000 to 3600000"),
        ({INTERVAL: "-1"}, {}, "accepted: 1000 to 3600000"),
        ({INTERVAL: "500"}, {"interval_s": 1.0}, "1000 is used"),
        ({INTERVAL: "7200000"}, {"interval_s": 3600.0}, "3.6e+06 is used"),
        ({TIMEOUT: "inf"}, {}, "accepted: up to 60"),
        ({TIMEOUT: "-1"}, {}, "accepted: up to 60"),
        ({TIMEOUT: "120000"}, {"timeout_s": 60.0}, "60000 is used"),
        ({"OTEL_EXPORTER_OTLP_METRICS_TIMEOUT": "soon", TIMEOUT: "2000"}, {"timeout_s": 2.0}, "METRICS_TIMEOUT='soon'"),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "zstd"}, {}, "accepted: none, gzip, deflate"),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://[::1:4318"}, {}, "is ignored: accepted: http://HOST:PORT"),
        ({"OTEL_SDK_DISABLED": "yes"}, {}, "accepted: true, false"),
        # What the specification allows, and a blank that is no part of it: nothing to tell.
        ({PROTOCOL: " HTTP/protobuf "}, {}, ""),
        ({PROTOCOL: ""}, {}, ""),
        ({TIMEOUT: "250"}, {"timeout_s": 0.25}, "0.25 is used"),
        ({TIMEOUT: "5"}, {"timeout_s": 5.0}, ""),
        ({INTERVAL: "2000"}, {"interval_s": 2.0}, ""),
        ({"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}, {"compression": "gzip"}, ""),
    ],
)
def test_a_variable_that_cannot_be_used_is_told_and_ignored(
    variables: dict[str, str], changed: dict[str, object], says: str
) -> None:
    found = asked(OtlpSection(), {ENDPOINT: "http://c"} | variables)
    assert found.target == DEFAULTS._replace(**changed)
    assert len(found.told) == bool(says)
    assert all(says in str(each) for each in found.told)


@pytest.mark.parametrize("endpoint", ["http://[::1:4318", "http://", "localhost:4318", "http://h:port", "http://h:0", "http://h h"])
def test_an_endpoint_that_is_none_ends_nothing(
    endpoint: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENDPOINT, endpoint)
    (row,) = otlp_rows(OtlpSection())
    assert (row.visible, row.needed) == (False, True)
    assert repr(endpoint) in row.found
    monkeypatch.setenv(ENDPOINT, endpoint)
    assert isinstance(build_or_say_why(OtlpSection(), "host"), LostOutput)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("aie_agent")]
    assert len(said) == 2
    assert repr(endpoint) in said[0]
    assert "nothing is pushed" in said[1]


def test_a_password_in_what_is_no_url_is_not_told() -> None:
    (told,) = asked(OtlpSection(), {ENDPOINT: "http://me:secret@[::1"}).told
    assert "secret" not in str(told)


def test_the_configuration_wins_over_the_environment() -> None:
    section = OtlpSection(endpoint=HttpUrl("http://a:1"), protocol="http/protobuf", interval=Duration(5.0))
    found = asked(section, {ENDPOINT: "http://b:2", PROTOCOL: "grpc", INTERVAL: "9000"})
    assert found == (Target("http/protobuf", "http://a:1/v1/metrics", 5.0, 10.0), ())


@pytest.mark.parametrize(
    "base", ["http://a:1/otlp", "http://a:1/otlp/", "http://a:1/otlp/v1/metrics", "http://a:1/otlp/v1/metrics/"]
)
def test_a_path_is_what_otlp_s_own_lies_below(base: str) -> None:
    assert metrics_url(base) == "http://a:1/otlp/v1/metrics"


@pytest.mark.parametrize(
    ("variables", "url"),
    [
        ({ENDPOINT: "http://a:1/otlp/"}, "http://a:1/otlp/v1/metrics"),
        ({ENDPOINT: "http://a:1/otlp?key=k"}, "http://a:1/otlp/v1/metrics?key=k"),
        ({ENDPOINT: "http://a:1", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://b:2/mine"}, "http://b:2/mine"),
        ({ENDPOINT: "a:1", PROTOCOL: "grpc"}, "a:1"),
        ({ENDPOINT: "http://a:1", PROTOCOL: "grpc"}, "http://a:1"),
    ],
)
def test_a_base_has_the_signal_s_path_added_and_the_signal_s_own_variable_has_not(variables: dict[str, str], url: str) -> None:
    found = asked(OtlpSection(), variables)
    assert found.target is not None
    assert found.target.url == url


@pytest.mark.parametrize(("text", "seconds"), [("5", 5.0), ("0.5", 0.5), ("60", 60.0), ("10000", 10.0), ("1000", 1.0)])
def test_a_timeout_is_of_milliseconds_or_seconds(text: str, seconds: float) -> None:
    """The specification means the former, Python's SDK the latter."""
    found = asked(OtlpSection(), {ENDPOINT: "http://c", TIMEOUT: text})
    assert found.target is not None
    assert (found.target.timeout_s, found.told) == (seconds, ())
