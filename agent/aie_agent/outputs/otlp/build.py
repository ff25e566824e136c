"""Whether and where to push: the configuration, and the standard OTEL_* variables. Imports OpenTelemetry only where it is used."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from urllib.parse import urlsplit, urlunsplit

from aie_agent.config import OtlpSection
from aie_agent.samples import Count
from aie_agent.store import AnySeries
from aie_telemetry.bounded_http import bounded_session

if TYPE_CHECKING:
    from aie_agent.outputs.otlp.push import Exporter, Refused

log = logging.getLogger(__name__)

_ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_EXTRA: Final = {
    "http/protobuf": "pip install 'aie-observability[otel]'",
    "grpc": "pip install opentelemetry-exporter-otlp-proto-grpc",
}
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.44.0"
"""The version of the semantic conventions that `names.py` has its names from."""

_METRICS_PATH: Final = "/v1/metrics"
_DEFAULT_INTERVAL_S: Final = 60.0
_TIMEOUTS: Final = ("OTEL_EXPORTER_OTLP_METRICS_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")
_DEFAULT_TIMEOUT_S: Final = 10.0
_LONGEST_TIMEOUT_S: Final = 60.0
_SURELY_MS: Final = 300.0
"""The specification means milliseconds, Python's SDK reads seconds: nobody waits 300 seconds, and nobody less than 300 ms."""


class OtlpError(Exception):
    """Metrics cannot be pushed: one line that says why, and what to do."""


class Target(NamedTuple):
    """Where to push: by which protocol, to which URL, and how often. `endpoint` is None where the SDK is to read the environment,
    as it does for the rest: headers, certificates, timeouts."""

    protocol: str
    url: str
    endpoint: str | None
    interval_s: float
    timeout_s: float


class Output(Protocol):
    """What the agent needs of it."""

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Once a second."""

    def counts(self) -> Iterable[Count]:
        """About itself."""

    def close(self) -> None:
        """At the end. May take three seconds."""


class NoOutput:
    """Pushes nothing."""

    def tick(self, series: Callable[[], Iterable[AnySeries]], now_s: float) -> None:
        """Nothing to do."""

    def counts(self) -> Iterable[Count]:
        """None."""
        return ()

    def close(self) -> None:
        """Holds nothing."""


def target(section: OtlpSection, environment: Mapping[str, str] = os.environ) -> Target | None:
    """Where metrics go; None where nobody asked for it. The configuration wins over the environment. Raises OtlpError."""
    off = environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    off = off or environment.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none"
    if section.endpoint is None and (off or not any(environment.get(each) for each in _ENDPOINTS)):
        return None
    protocol: str | None = section.protocol
    protocol = protocol or next((environment[each] for each in _PROTOCOLS if environment.get(each)), "http/protobuf")
    if protocol not in _EXTRA:
        raise OtlpError(f"{' or '.join(_PROTOCOLS)}: {protocol!r} is not known: accepted: {', '.join(_EXTRA)}")
    paces = _interval_s(section, environment), _timeout_s(environment)
    if section.endpoint is not None:
        endpoint = metrics_url(section.endpoint) if protocol == "http/protobuf" else str(section.endpoint)
        return Target(protocol, endpoint, endpoint, *paces)
    name = next(each for each in _ENDPOINTS if environment.get(each))
    if protocol == "http/protobuf" and urlsplit(environment[name]).scheme not in ("http", "https"):
        raise OtlpError(f"{name}: {environment[name]!r} is no URL: accepted: http://HOST:PORT or https://HOST:PORT")
    return Target(protocol, environment[name], None, *paces)


def metrics_url(endpoint: str) -> str:
    """Where metrics go for a collector's URL: OTLP's own path below it, as with OTEL_EXPORTER_OTLP_ENDPOINT, unless it ends so."""
    parts = urlsplit(endpoint)
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_METRICS_PATH) else path + _METRICS_PATH))


def build(section: OtlpSection, hostname: str) -> Output:
    """The output; one that does nothing where nobody asked for it. Raises OtlpError where it was asked for and cannot be."""
    wanted = target(section)
    if wanted is None:
        return NoOutput()
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    from aie_agent.outputs.otlp.push import OtlpPush, Refused

    refused = Refused()
    make_exporter = exporter(wanted, refused)
    release = version("aie-observability")
    own = {"service.name": "aie-agent", "service.version": release, "service.instance.id": hostname, "host.name": hostname}
    given = OTELResourceDetector().detect().attributes  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource.create({name: value for name, value in own.items() if name not in given})
    return OtlpPush(make_exporter, wanted.interval_s, resource, InstrumentationScope("aie_agent", release, SCHEMA_URL), refused)


def build_or_say_why(section: OtlpSection, hostname: str) -> Output:
    """As `build`; where it cannot be, a line in the log says why, and the rest of the agent works."""
    try:
        return build(section, hostname)
    except OtlpError as error:
        log.error("OTLP: %s", error)
        return NoOutput()


def exporter(wanted: Target, refused: Refused) -> Callable[[], Exporter]:
    """Makes the SDK's exporter when it is called, which then raises what a certificate or a header raises that cannot be used.
    `refused` is told of points that a collector did not take. Raises OtlpError where the package is not there."""
    try:
        if wanted.protocol == "grpc":
            from aie_agent.outputs.otlp.by_grpc import GrpcExporter

            return lambda: GrpcExporter(wanted.endpoint, wanted.timeout_s, refused)
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    except ImportError as error:
        raise OtlpError(f"OTLP by {wanted.protocol} needs a package: {_EXTRA[wanted.protocol]} ({error})") from error
    from aie_agent.outputs.otlp.answers import inspector

    session = bounded_session(inspector(refused), max_s=wanted.timeout_s)
    return lambda: OTLPMetricExporter(endpoint=wanted.endpoint, session=session, timeout=wanted.timeout_s)


def _interval_s(section: OtlpSection, environment: Mapping[str, str]) -> float:
    if section.interval is not None:
        return section.interval
    text = environment.get("OTEL_METRIC_EXPORT_INTERVAL", "").strip()
    if not text:
        return _DEFAULT_INTERVAL_S
    try:
        interval_s = float(text) / 1000
    except ValueError:
        interval_s = float("nan")
    if not 1.0 <= interval_s <= 3600.0:
        raise OtlpError(f"OTEL_METRIC_EXPORT_INTERVAL: {text!r}: accepted: 1000 to 3600000 (milliseconds)")
    return interval_s


def _timeout_s(environment: Mapping[str, str]) -> float:
    """For one push, the exporter's tries included."""
    name = next((each for each in _TIMEOUTS if environment.get(each, "").strip()), None)
    if name is None:
        return _DEFAULT_TIMEOUT_S
    try:
        number = float(environment[name])
    except ValueError:
        number = float("nan")
    timeout_s = number / 1000 if number >= _SURELY_MS else number
    if not 0.0 < timeout_s <= _LONGEST_TIMEOUT_S:
        raise OtlpError(f"{name}: {environment[name]!r}: accepted: up to 60 (seconds), or 300 to 60000 (milliseconds)")
    return timeout_s
