"""Where metrics go: what is accepted, what is not, and what is meant when nothing is said."""

from __future__ import annotations

import pytest

from aie_hooks.endpoint import ENVIRONMENT_VARIABLE, UdpEndpoint, UnixEndpoint, parse, resolve
from aie_telemetry.endpoints import statsd_socket


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("unix:///run/aie/statsd.sock", UnixEndpoint("/run/aie/statsd.sock")),
        ("udp://127.0.0.1:8125", UdpEndpoint("127.0.0.1", 8125)),
        ("udp://[::1]:8125", UdpEndpoint("::1", 8125)),
        ("udp://statsd.example:1", UdpEndpoint("statsd.example", 1)),
        ("off", None),
    ],
)
def test_accepted(text: str, endpoint: object) -> None:
    assert parse(text) == endpoint
    if endpoint is not None:
        assert parse(str(endpoint)) == endpoint


@pytest.mark.parametrize(
    "text",
    [
        "", "OFF", "unix:", "unix://", "unix:///", "unix://relative/path", "unix:///run/a?b", "unix:///run/a\0b",
        "/run/aie/statsd.sock", "unix:///" + "x" * 200, "udp://", "udp://host", "udp://host:", "udp://host:0", "udp://host:65536", "udp://host:x",
        "udp://host:1/path", "udp://user@host:1", "udp://host:1#x", "udp://:8125", "udp://[::1", "tcp://host:1", "http://host:1",
    ],
)  # fmt: skip
def test_refused_with_what_would_be_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="Accepted: unix:///path/to/socket, udp://host:port, off"):
        parse(text)


def test_the_environment_speaks_when_nobody_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "udp://127.0.0.1:9")
    assert resolve(None) == UdpEndpoint("127.0.0.1", 9)
    assert resolve("off") is None
    monkeypatch.delenv(ENVIRONMENT_VARIABLE)
    assert resolve(None) == UnixEndpoint(str(statsd_socket()))
