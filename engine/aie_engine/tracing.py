"""Spans of requests to an OpenTelemetry collector, through OpenTelemetry's own SDK (the extra `otel`)."""

from __future__ import annotations

import functools
import logging
import random
import threading
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import TYPE_CHECKING, Final, NamedTuple

from aie_engine.config import ConfigError, EngineConfig
from aie_engine.span_settings import asked, queue_size
from aie_hooks.tracing import SpanIds, Stages, Trace, Tracer, span_tracer
from aie_telemetry.bounded_http import bounded_session
from aie_telemetry.extras import install
from aie_telemetry.otel_environment import resource

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from aie_engine.span_counts import SpanCounts

_log = logging.getLogger(__name__)

LAST_BATCHES_S: Final = 3.0
"""At most so long the last batches, of which there may be several, hold up the end of the process."""


class Tracing(NamedTuple):
    """The SDK, and what became of the spans that it was given."""

    provider: TracerProvider
    counts: SpanCounts


def otlp_tracing(config: EngineConfig) -> Tracing | None:
    """The SDK, exporting in batches by OTLP over HTTP to `config.otlp_endpoint`, or to where the standard variables say; None where
    nobody asked for it. To be shut down at the end: that sends the rest.

    What cannot be used of the variables is logged and passed over: an engine starts whatever they say. Sampling is the SDK's
    default: what its caller traces, and what `RateTracer` lets begin. Raises ConfigError where the option is given and the SDK is
    not there.
    """
    wanted = asked(config.otlp_endpoint)
    for each in wanted.told:
        _log.warning("OTLP: %s", each)
    if wanted.url is None:
        return None
    try:
        return _exporting(config, wanted.url, wanted.timeout_s)
    except ImportError as error:
        needs = f"needs OpenTelemetry: {install('otel')} ({error})"
        if config.otlp_endpoint is not None:
            raise ConfigError(f"--otlp-endpoint {needs}") from error
        _log.warning("OTLP: no spans are sent: it %s", needs)
    except Exception as error:  # noqa: BLE001 - whatever the SDK stumbles over, requests are served
        _log.error("OTLP: no spans are sent: %s: %s", type(error).__name__, error)
    return None


def _exporting(config: EngineConfig, url: str, timeout_s: float) -> Tracing:
    """`timeout_s` is for one batch, its tries included. Raises ImportError without the SDK, and what the SDK raises."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider

    from aie_engine.span_counts import CountedProcessor, SpanCounts, inspect_answer

    own = {"service.name": config.name, "service.version": version("aie-observability")}
    provider = TracerProvider(resource=resource(own), shutdown_on_exit=False)
    counts = SpanCounts(queue_size())
    session = bounded_session(functools.partial(inspect_answer, counts), max_s=timeout_s)
    exporter = OTLPSpanExporter(endpoint=url, timeout=timeout_s, session=session)
    provider.add_span_processor(CountedProcessor(exporter, counts, queue_size()))
    return Tracing(provider, counts)


def shut_down(provider: TracerProvider) -> None:
    """Sends what is left, for some seconds at most: a collector that does not answer must not take the engine's grace time."""
    last = threading.Thread(target=provider.shutdown, name="last spans", daemon=True)
    last.start()
    last.join(LAST_BATCHES_S)


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
