"""Values of the configuration that no TOML type says: durations with a unit, addresses, paths, URLs, names.

Each is the Python type it stands for, with a `parse` that raises ValueError with what is accepted.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from aie_telemetry.durations import ACCEPTED, parse_duration
from aie_telemetry.endpoints import AGENT_HTTP_PORT

OFF: Final = "off"


def is_loopback(host: str) -> bool:
    """Whether a host name or address is the loopback, without asking a name server."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Duration(float):
    """Seconds, written with a unit: "500ms", "10s", "5m", "1h"."""

    @classmethod
    def parse(cls, value: object) -> Duration:
        """Raises ValueError for anything but a string with a number and a unit."""
        if not isinstance(value, str):
            raise ValueError(f"expected {ACCEPTED}, got {value!r}")
        return cls(parse_duration(value))


class Address(str):
    """HOST:PORT, with IPv6 hosts in brackets."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """Without brackets."""
        return urlsplit(f"//{self}").hostname or ""

    @property
    def port(self) -> int:
        """0 lets the system choose."""
        return urlsplit(f"//{self}").port or 0

    @property
    def is_loopback(self) -> bool:
        """Whether only this host can reach it."""
        return is_loopback(self.host)

    @classmethod
    def parse(cls, value: object) -> Address:
        """Raises ValueError for anything but a string HOST:PORT."""
        if isinstance(value, str):
            try:
                parts = urlsplit(f"//{value}")
                if parts.hostname and parts.port is not None and parts.netloc == value and "@" not in value:
                    return cls(value)
            except ValueError:
                pass
        raise ValueError(f'expected "HOST:PORT", such as "127.0.0.1:{AGENT_HTTP_PORT}", got {value!r}')


class AddressOrOff(Address):
    """HOST:PORT, or "off"."""

    __slots__ = ()

    @property
    def is_off(self) -> bool:
        """Whether the part is switched off."""
        return self == OFF

    @classmethod
    def parse(cls, value: object) -> AddressOrOff:
        """Raises ValueError for anything but HOST:PORT or "off"."""
        return cls(value) if value == OFF else cls(Address.parse(value))


class StateFilePath(str):
    """An absolute path for a file, or "off"."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> StateFilePath:
        """Raises ValueError for a relative path."""
        if not isinstance(value, str) or not (value == OFF or value.startswith("/")):
            raise ValueError(f'expected an absolute path or "off", got {value!r}')
        return cls(value)


class SocketPath(str):
    """An absolute path for a Unix socket, or "off"."""

    __slots__ = ()

    @property
    def path(self) -> Path | None:
        """None when switched off."""
        return None if self == OFF else Path(self)

    @classmethod
    def parse(cls, value: object) -> SocketPath:
        """Raises ValueError for a relative path or one that is too long for a Unix socket (107 bytes)."""
        if value == OFF:
            return cls(value)
        if isinstance(value, str) and value.startswith("/") and value.isprintable() and len(value.encode()) <= 107:
            return cls(value)
        raise ValueError(f'expected an absolute path of at most 107 bytes, or "off", got {value!r}')


class Upstream(str):
    """Where StatsD packets are passed on to: udp://HOST:PORT, unix:///PATH, or "off"."""

    __slots__ = ()

    @classmethod
    def parse(cls, value: object) -> Upstream:
        """Raises ValueError for any other form."""
        if isinstance(value, str):
            if value == OFF or (value.startswith("unix:///") and len(value) > 8):
                return cls(value)
            if value.startswith("udp://"):
                try:
                    Address.parse(value.removeprefix("udp://"))
                except ValueError:
                    pass
                else:
                    return cls(value)
        raise ValueError(f'expected "udp://HOST:PORT", "unix:///PATH" or "off", got {value!r}')


class SimulatedGpus(str):
    """N or N:PROFILE, such as "8:H100": how many GPUs to simulate, of which product."""

    __slots__ = ()

    @property
    def number(self) -> int:
        """1 to 16."""
        return int(self.partition(":")[0])

    @property
    def profile(self) -> str:
        """The product's name, as the stand-in library knows it."""
        return self.partition(":")[2] or "H100"

    @classmethod
    def parse(cls, value: object) -> SimulatedGpus:
        """Raises ValueError for any other form; whether there is such a product is seen when it is made."""
        if isinstance(value, str) and re.fullmatch(r"([1-9]|1[0-6])(:[A-Za-z0-9_-]+)?", value):
            return cls(value)
        raise ValueError(f'expected "N" or "N:PROFILE" with N from 1 to 16, such as "8:H100", got {value!r}')


class HttpUrl(str):
    """An http:// or https:// URL."""

    __slots__ = ()

    @property
    def host(self) -> str:
        """Without brackets."""
        return urlsplit(self).hostname or ""

    @property
    def port(self) -> int:
        """The scheme's own where the URL names none."""
        parts = urlsplit(self)
        return parts.port or (443 if parts.scheme == "https" else 80)

    @classmethod
    def parse(cls, value: object) -> HttpUrl:
        """Raises ValueError for any other scheme, or a URL without a host."""
        if isinstance(value, str):
            try:
                parts = urlsplit(value)
                clean = value.isprintable() and " " not in value
                if clean and parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                    return cls(value)
            except ValueError:
                pass
        raise ValueError(f'expected a URL such as "http://127.0.0.1:8000/metrics", got {value!r}')
