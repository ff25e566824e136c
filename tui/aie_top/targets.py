"""Which agents to ask: from what the user typed to an address, credentials apart, and a label that is safe to show."""

from __future__ import annotations

from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from aie_telemetry.endpoints import AGENT_HTTP_PORT

DEFAULT: Final = f"http://127.0.0.1:{AGENT_HTTP_PORT}"


class Target(msgspec.Struct, frozen=True):
    """`url` has no credentials, so it may be shown, logged and printed. `user` and `password` are for HTTP basic auth."""

    url: str
    user: str | None = None
    password: str = ""


def parse_target(text: str) -> Target:
    """HOST, HOST:PORT (http, the agent's port) or a URL, taken as it is. Raises ValueError with a sentence for the user."""
    wanted = text.strip()
    with_scheme = "://" in wanted
    parts = _split(wanted if with_scheme else f"http://{wanted}")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme}:// is not spoken here: use http:// or https://")
    if not parts.hostname:
        raise ValueError("no host in it: give HOST, HOST:PORT or a URL")
    if parts.query or parts.fragment:
        raise ValueError("it has a query or a fragment: give the agent's base URL, such as http://HOST:9465")
    port = parts.port if parts.port is not None or with_scheme else AGENT_HTTP_PORT
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    address = f"{host}:{port}" if port is not None else host
    user = unquote(parts.username) if parts.username is not None else None
    return Target(f"{parts.scheme}://{address}{parts.path.rstrip('/')}", user, unquote(parts.password or ""))


def _split(url: str) -> SplitResult:
    parts = urlsplit(url)
    try:
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"its port is no number from 0 to 65535 ({error})") from error
    return parts
