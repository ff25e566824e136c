"""Where metrics go: `unix:///path/to/socket`, `udp://host:port`, or `off`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from aie_telemetry.endpoints import statsd_socket_to_send_to

ENVIRONMENT_VARIABLE: Final = "AIE_STATSD"
# sockaddr_un.sun_path holds 108 bytes, the terminating NUL included.
MAX_SOCKET_PATH_BYTES: Final = 107


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A Unix datagram socket. The kernel tells its owner who sent what, which is how an agent joins a process to its metrics."""

    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class UdpEndpoint:
    """A UDP port; `host` may be a name."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"udp://[{self.host}]:{self.port}" if ":" in self.host else f"udp://{self.host}:{self.port}"


Endpoint = UnixEndpoint | UdpEndpoint


def resolve(endpoint: str | None) -> Endpoint | None:
    """The endpoint that is meant: `endpoint`, else `$AIE_STATSD`, else the socket of this user's agent or of the host's.

    None means off. Raises ValueError as `parse` does.
    """
    if endpoint is None:
        endpoint = os.environ.get(ENVIRONMENT_VARIABLE) or f"unix://{statsd_socket_to_send_to()}"
    return parse(endpoint)


def parse(endpoint: str) -> Endpoint | None:
    """Reads an endpoint; None for `off`. Raises ValueError, naming what is accepted, for anything malformed."""
    if endpoint == "off":
        return None
    try:
        url = urlsplit(endpoint)
        port = url.port
    except ValueError as error:
        raise _malformed(endpoint, str(error)) from error
    if url.query or url.fragment or url.username is not None:
        raise _malformed(endpoint, "there is more in it than an address")
    if url.scheme == "unix":
        return UnixEndpoint(_socket_path(endpoint, url.netloc, url.path))
    if url.scheme == "udp":
        if not url.hostname or not port or url.path not in ("", "/"):
            raise _malformed(endpoint, "UDP takes a host and a port from 1 to 65535")
        return UdpEndpoint(url.hostname, port)
    raise _malformed(endpoint, f"the scheme {url.scheme!r} is unknown")


def _socket_path(endpoint: str, netloc: str, path: str) -> str:
    if netloc or not path.startswith("/") or path == "/" or "\0" in path:
        raise _malformed(endpoint, "a socket's path is absolute: three slashes")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH_BYTES:
        raise _malformed(endpoint, f"a socket's path takes at most {MAX_SOCKET_PATH_BYTES} bytes")
    return path


def _malformed(endpoint: str, reason: str) -> ValueError:
    return ValueError(f"StatsD endpoint {endpoint!r}: {reason}. Accepted: unix:///path/to/socket, udp://host:port, off")
