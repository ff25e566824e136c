"""Whether and where to push: the configuration, and the standard OTEL_* variables. Imports OpenTelemetry only where it is used."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from aie_agent.config import OtlpSection
from aie_agent.outputs.otlp.refused import Refused
from aie_agent.samples import Count
from aie_agent.store import AnySeries
from aie_telemetry import otel_environment as otel
from aie_telemetry.bounded_http import bounded_session
from aie_telemetry.extras import install

if TYPE_CHECKING:
    from aie_agent.outputs.otlp.push import Exporter

log = logging.getLogger(__name__)

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_COMPRESSIONS: Final = ("OTEL_EXPORTER_OTLP_METRICS_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION")
_EXPORTER: Final = "OTEL_METRICS_EXPORTER"
_INTERVAL: Final = "OTEL_METRIC_EXPORT_INTERVAL"
_HTTP, _GRPC = "http/protobuf", "grpc"
_PACKAGES: Final = {_HTTP: install("otel"), _GRPC: "pip install opentelemetry-exporter-otlp-proto-grpc"}
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that `names.py` has its names from."""

_METRICS_PATH: Final = "/v1/metrics"
_DEFAULT_INTERVAL_S: Final = 60.0
_DEFAULT_TIMEOUT_S: Final = 10.0
_RULES: Final = {
    "OTEL_SDK_DISABLED": otel.FLAG,
    **dict.fromkeys(_PROTOCOLS, otel.one_of(_HTTP, _GRPC)),
    **dict.fromkeys(_TIMEOUTS, otel.TIMEOUT),
    **dict.fromkeys(_COMPRESSIONS, otel.one_of("none", "gzip", "deflate")),
    _INTERVAL: otel.number(1000, 3_600_000, "milliseconds"),
}


class OtlpError(Exception):
    """Metrics cannot be pushed: one line that says why, and what to do."""


class Target(NamedTuple):
    """Where to push: by which protocol, to which URL, how often, how long one push may take, and compressed how ("none", "gzip",
    "deflate"). Headers and certificates the SDK reads from the environment."""

    protocol: str
    url: str
    interval_s: float
    timeout_s: float
    compression: str = "none"


class Asked(NamedTuple):
    """Where metrics go, None where nobody asked for it or no endpoint can be used; and what is to be told of the variables."""

    target: Target | None
    told: tuple[otel.Told, ...]


class Output(Protocol):
    """What the agent needs of it."""

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Once a second."""

    def counts(self) -> Iterable[Count]:
        """About itself."""

    def tick_last(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Once, before `close`."""

    def close(self) -> None:
        """At the end. May take three seconds."""


class NoOutput:
    """Pushes nothing."""

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Nothing to do."""

    def tick_last(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Nothing to do."""

    def counts(self) -> Iterable[Count]:
        """None."""
        return ()

    def close(self) -> None:
        """Holds nothing."""


class LostOutput(NoOutput):
    """Was asked for and cannot be made: every push that is due has failed, and is counted, so that it is seen without the log."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_s: float | None = None
        self._failed = 0

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Once a second: counts a push that is due."""
        if self._next_s is None or now_s >= self._next_s:
            self._next_s = now_s + self._interval_s
            self._failed += 1

    def counts(self) -> Iterable[Count]:
        """The pushes that failed."""
        yield "aie_agent_otlp_exports_total", ("ok",), 0.0
        yield "aie_agent_otlp_exports_total", ("failed",), float(self._failed)
        yield "aie_agent_otlp_interval_seconds", (), self._interval_s


def asked(section: OtlpSection, environment: MutableMapping[str, str] = os.environ) -> Asked:
    """What is asked for; the configuration wins over the environment. Takes out of `environment` what cannot be used of the
    standard variables, so that the SDK does not stumble over it either."""
    told = otel.ignore_unusable(environment, _RULES)
    if section.endpoint is None:
        kind = otel.ADDRESS if _protocol(section, environment) == _GRPC else otel.HTTP_URL
        told += otel.ignore_unusable(environment, dict.fromkeys(ENDPOINTS, kind))
    target = _target(section, environment)
    named_one = otel.is_on(environment, _EXPORTER) and any(each.name in ENDPOINTS for each in told)
    return Asked(target, tuple(told) if target is not None or named_one else ())


def _target(section: OtlpSection, environment: Mapping[str, str]) -> Target | None:
    url = _url(section, environment)
    if url is None:
        return None
    return Target(
        _protocol(section, environment),
        url,
        _interval_s(section, environment),
        otel.timeout_s(environment, _TIMEOUTS, _DEFAULT_TIMEOUT_S),
        otel.first(environment, _COMPRESSIONS) or "none",
    )


def _interval_s(section: OtlpSection, environment: Mapping[str, str]) -> float:
    said_s = float(environment[_INTERVAL]) / 1000 if _INTERVAL in environment else _DEFAULT_INTERVAL_S
    return said_s if section.interval is None else section.interval


def metrics_url(endpoint: str) -> str:
    """Where metrics go for a collector's URL: OTLP's own path below it, as with OTEL_EXPORTER_OTLP_ENDPOINT, unless it ends so."""
    return otel.signal_url(endpoint, _METRICS_PATH)


def _protocol(section: OtlpSection, environment: Mapping[str, str]) -> str:
    return section.protocol or otel.first(environment, _PROTOCOLS) or _HTTP


def _url(section: OtlpSection, environment: Mapping[str, str]) -> str | None:
    is_http = _protocol(section, environment) == _HTTP
    if section.endpoint is not None:
        return metrics_url(section.endpoint) if is_http else str(section.endpoint)
    if not otel.is_on(environment, _EXPORTER):
        return None
    own, shared = (environment.get(name) for name in ENDPOINTS)
    if own or not shared:
        return own or None  # as it is: what it names is the signal's own
    return otel.below(shared, _METRICS_PATH) if is_http else shared


def build(section: OtlpSection, hostname: str) -> Output:
    """The output; one that does nothing where nobody asked for it, and one that counts what is lost where no endpoint can be used
    that was named. Raises OtlpError where it was asked for and cannot be made."""
    wanted, told = asked(section)
    for each in told:
        log.warning("OTLP: %s", each)
    if wanted is None:
        if told:
            log.warning("OTLP: nothing is pushed: no endpoint that can be used is named")
            return LostOutput(_interval_s(section, os.environ))
        return NoOutput()
    refused = Refused()
    make_exporter = exporter(wanted, refused)
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from aie_agent.outputs.otlp.push import OtlpPush

    release = version("aie-observability")
    resource = otel.resource(
        {"service.name": "aie-agent", "service.version": release, "service.instance.id": hostname, "host.name": hostname}
    )
    return OtlpPush(make_exporter, wanted.interval_s, resource, InstrumentationScope("aie_agent", release, SCHEMA_URL), refused)


def build_or_say_why(section: OtlpSection, hostname: str) -> Output:
    """As `build`; where it cannot be made, a line in the log says why, what is lost is counted, and the rest of the agent works."""
    try:
        return build(section, hostname)
    except OtlpError as error:
        log.error("OTLP: %s", error)
    except Exception as error:  # noqa: BLE001 - whatever the SDK stumbles over is no reason to watch nothing
        log.error("OTLP: nothing is pushed: %s: %s", type(error).__name__, error)
    return LostOutput(_interval_s(section, os.environ))


def exporter(wanted: Target, refused: Refused) -> Callable[[], Exporter]:
    """Makes the SDK's exporter when it is called, which then raises what a certificate or a header raises that cannot be used.
    `refused` is told of points that a collector did not take. Raises OtlpError where the package is not there."""
    try:
        if wanted.protocol == _GRPC:
            from aie_agent.outputs.otlp.by_grpc import GrpcExporter

            return lambda: GrpcExporter(wanted.url, wanted.timeout_s, wanted.compression, refused)
        from opentelemetry.exporter.otlp.proto.http import Compression
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        from aie_agent.outputs.otlp.answers import inspector

        session = bounded_session(inspector(refused), max_s=wanted.timeout_s)
    except ImportError as error:
        raise OtlpError(f"OTLP by {wanted.protocol} needs a package: {_PACKAGES[wanted.protocol]} ({error})") from error
    compression = Compression(wanted.compression)
    return lambda: OTLPMetricExporter(endpoint=wanted.url, session=session, timeout=wanted.timeout_s, compression=compression)
