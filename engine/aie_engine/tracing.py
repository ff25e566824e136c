"""Spans of requests to an OpenTelemetry collector, through OpenTelemetry's own SDK (the extra `otel`)."""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit, urlunsplit

from aie_engine.config import ConfigError, EngineConfig
from aie_hooks.tracing import SpanIds, Stages, Trace, Tracer, span_tracer
from aie_telemetry.bounded_http import bounded_session

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from aie_engine.span_counts import SpanCounts

_TRACES_PATH: Final = "/v1/traces"
_EXPORT_TIMEOUT_S: Final = 5.0
"""For one batch, retries included."""
LAST_BATCHES_S: Final = 3.0
"""At most so long the last batches, of which there may be several, hold up the end of the process."""


class Tracing(NamedTuple):
    """The SDK, and what became of the spans that it was given."""

    provider: TracerProvider
    counts: SpanCounts


def otlp_tracing(config: EngineConfig) -> Tracing:
    """The SDK, exporting in batches by OTLP over HTTP to `config.otlp_endpoint`. To be shut down at the end: that sends the rest.

    Sampling is the SDK's default: what its caller traces, and what `RateTracer` lets begin. Raises ConfigError without the SDK.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider

        from aie_engine.span_counts import CountedProcessor, SpanCounts, inspect_answer, queue_size
    except ImportError as error:
        raise ConfigError(f"--otlp-endpoint needs OpenTelemetry: pip install 'aie-observability[otel]' ({error})") from error
    resource = Resource.create({"service.name": config.name, "service.version": version("aie-observability")})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    endpoint = traces_url(config.otlp_endpoint or "")
    counts = SpanCounts(queue_size())
    session = bounded_session(functools.partial(inspect_answer, counts), max_s=_EXPORT_TIMEOUT_S)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_TIMEOUT_S, session=session)
    provider.add_span_processor(CountedProcessor(exporter, counts, queue_size()))
    return Tracing(provider, counts)


def shut_down(provider: TracerProvider) -> None:
    """Sends what is left, for some seconds at most: a collector that does not answer must not take the engine's grace time."""
    last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    last.start()
    last.join(LAST_BATCHES_S)


def traces_url(endpoint: str) -> str:
    """Where spans go for a collector's URL: its path where it has one, else OTLP's own."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(path=parts.path if parts.path.strip("/") else _TRACES_PATH))


def request_tracer(
    config: EngineConfig, provider: TracerProvider, on_span: Callable[[SpanIds, Stages], None] | None = None
) -> Tracer:
    """The tracer for the hooks: of requests that no caller traces, the share `config.trace_rate` becomes spans. `on_span` is told
    of each."""
    tracer = span_tracer(config.name, model=config.model_name, provider=provider, on_span=on_span)
    return RateTracer(tracer, config.trace_rate)


class RateTracer:
    """Traces a share of its own, whatever share of the requests the hooks' histograms sample."""

    def __init__(self, tracer: Tracer, rate: float, draw: Callable[[], float] = random.random) -> None:
        """`draw` gives numbers in [0, 1)."""
        self._tracer = tracer
        self._rate = rate
        self._draw = draw

    def begin(self, headers: Mapping[str, str] | None, operation: str | None, *, sampled: bool) -> Trace | None:
        """As `aie_hooks.tracing.Tracer`; `sampled` is passed over."""
        return self._tracer.begin(headers, operation, sampled=self._draw() < self._rate)
