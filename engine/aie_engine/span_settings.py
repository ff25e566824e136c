"""Whether and where spans go: the option, and OpenTelemetry's standard variables. Imports nothing of OpenTelemetry, which reads the
variables when it is imported: they are put right before that."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import Final, NamedTuple

from aie_telemetry import otel_environment as otel

QUEUE_SIZE: Final = "OTEL_BSP_MAX_QUEUE_SIZE"
BATCH_SIZE: Final = "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"
DEFAULT_BATCH_SIZE: Final = 512
_DEFAULT_QUEUE_SIZE: Final = 2048
_LARGEST_QUEUE: Final = 1_000_000
_LONGEST_DELAY_MS: Final = 24 * 3600 * 1000
_LARGEST_LIMIT: Final = 2**31 - 1

_TRACES_PATH: Final = "/v1/traces"
_EXPORTER: Final = "OTEL_TRACES_EXPORTER"
_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_COMPRESSIONS: Final = ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
_LIMITS: Final = (
    "OTEL_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT",
    "OTEL_SPAN_EVENT_COUNT_LIMIT",
    "OTEL_SPAN_LINK_COUNT_LIMIT",
    "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT",
    "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT",
)
_HTTP, _GRPC = "http/protobuf", "grpc"
_EXPORT_TIMEOUT_S: Final = 5.0
_RULES: Final = {
    "OTEL_SDK_DISABLED": otel.FLAG,
    **dict.fromkeys(_PROTOCOLS, otel.one_of(_HTTP, _GRPC)),
    **dict.fromkeys(_TIMEOUTS, otel.TIMEOUT),
    **dict.fromkeys(_COMPRESSIONS, otel.one_of("none", "gzip", "deflate")),
    "OTEL_BSP_SCHEDULE_DELAY": otel.whole(1, _LONGEST_DELAY_MS),
    "OTEL_BSP_EXPORT_TIMEOUT": otel.whole(0, _LONGEST_DELAY_MS),
    QUEUE_SIZE: otel.whole(1, _LARGEST_QUEUE),
    **dict.fromkeys(_LIMITS, otel.whole(0, _LARGEST_LIMIT)),
}


class Asked(NamedTuple):
    """Where spans go, None where they go nowhere; for how long one batch is tried; and what is to be told, a line each."""

    url: str | None
    timeout_s: float
    told: tuple[str, ...]


def asked(option: str | None, environment: MutableMapping[str, str] = os.environ) -> Asked:
    """What is asked for; the option wins over the environment. Where spans are asked for, takes out of `environment` what cannot be
    used of the standard variables, at which the SDK would raise."""
    by_variable = otel.is_on(environment, _EXPORTER) and any(environment.get(name, "").strip() for name in _ENDPOINTS)
    if option is None and not by_variable:
        return Asked(None, _EXPORT_TIMEOUT_S, ())
    found = otel.ignore_unusable(environment, _RULES)
    found += otel.ignore_unusable(environment, {BATCH_SIZE: otel.whole(1, queue_size(environment))})
    if option is None:
        found += otel.ignore_unusable(environment, dict.fromkeys(_ENDPOINTS, otel.HTTP_URL))
    told = [str(each) for each in found]
    url = traces_url(option) if option is not None else _url_of_variables(environment, told)
    return Asked(url, otel.timeout_s(environment, _TIMEOUTS, _EXPORT_TIMEOUT_S), tuple(told))


def traces_url(endpoint: str) -> str:
    """Where spans go for a collector's URL: OTLP's own path below it, as with OTEL_EXPORTER_OTLP_ENDPOINT, unless it ends so."""
    return otel.signal_url(endpoint, _TRACES_PATH)


def queue_size(environment: Mapping[str, str] = os.environ) -> int:
    """How many spans may wait for the exporter: OpenTelemetry's variable, or its default where that is no number above 0."""
    text = environment.get(QUEUE_SIZE, "").strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) > 0 else _DEFAULT_QUEUE_SIZE


def _url_of_variables(environment: Mapping[str, str], told: list[str]) -> str | None:
    own, shared = (environment.get(name) for name in _ENDPOINTS)
    if not (own or shared):
        told.append("no spans are sent: no endpoint that can be used is named")
        return None
    if otel.first(environment, _PROTOCOLS) == _GRPC:
        told.append(
            f"no spans are sent: they go by {_HTTP} only, and {' or '.join(_PROTOCOLS)} says {_GRPC}: set the variables of traces"
            " to a collector's HTTP port, or --otlp-endpoint"
        )
        return None
    return own or otel.below(shared or "", _TRACES_PATH)
