"""`aie-agent check`: whether there is a collector where metrics are pushed to."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

from aie_agent.commands.check_rows import Row
from aie_agent.config import OtlpSection
from aie_agent.outputs.otlp.build import OtlpError, Target, exporter, target

_TIMEOUT_S = 2.0
_PORTS = {"http": 80, "https": 443}
_GRPC_PORT = 4317


def otlp_rows(section: OtlpSection) -> Iterator[Row]:
    """None where nobody asked for OTLP."""
    try:
        wanted = target(section)
        if wanted is not None:
            exporter(wanted)
    except OtlpError as error:
        yield Row("OTLP", False, True, str(error))
        return
    if wanted is not None:
        yield _collector(wanted)


def _collector(wanted: Target) -> Row:
    # gRPC's endpoints may be HOST:PORT, without a scheme.
    parts = urlsplit(wanted.url if "://" in wanted.url else f"grpc://{wanted.url}")
    what = f"OTLP to {wanted.url} ({wanted.protocol})"
    try:
        port = parts.port or _PORTS.get(parts.scheme, _GRPC_PORT)
        with socket.create_connection((parts.hostname or "localhost", port), timeout=_TIMEOUT_S):
            return Row(what, True, True, f"somebody listens; metrics are pushed every {wanted.interval_s:.0f} s")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        return Row(what, False, True, reason, "start the collector, or mend otlp.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT")
