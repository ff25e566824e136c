"""What is told of a standard variable that is not used as it is."""

from __future__ import annotations

import pytest

from aie_telemetry.otel_environment import HTTP_URL, TIMEOUT, Told, ignore_unusable

NAME = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("user:secret@collector:4318", "***@collector:4318"),
        ("https://u:s@cr@et@host:99999", "https://***@host:99999"),
        ("http://[::1:4318?api-key=secret", "http://[::1:4318?***"),
        ("u:secret@[::1:4318/x?a=secret", "***@[::1:4318/x?***"),
        ("http://[::1:4318/x?a=secret@b", "http://***@b"),
        ("http://user:se/cr?et@c:port", "http://***@c:port"),
        ("http:/user:secret@c:4318", "***@c:4318"),
        ("http://host:port/a", "http://host:port/a"),
    ],
)
def test_no_password_is_told(value: str, shown: str) -> None:
    environment = {NAME: value}
    (told,) = ignore_unusable(environment, {NAME: HTTP_URL})
    assert str(told) == f"{NAME}={shown!r}: it is ignored: accepted: http://HOST:PORT or https://HOST:PORT"
    assert environment == {}


@pytest.mark.parametrize(("value", "used"), [("90", "0.09"), ("250", "0.25"), ("999", "0.999")])
def test_less_than_a_second_in_milliseconds_is_told_for_seconds_may_have_been_meant(value: str, used: str) -> None:
    environment = {"T": value}
    assert ignore_unusable(environment, {"T": TIMEOUT}) == [Told("T", value, TIMEOUT.accepted, used)]
    assert environment == {"T": used}


@pytest.mark.parametrize("value", ["5", "60", "1000", "10000"])
def test_what_is_meant_is_used_without_a_word(value: str) -> None:
    assert ignore_unusable(environment := {"T": value}, {"T": TIMEOUT}) == []
    assert environment == {"T": value}
