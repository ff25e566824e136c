"""`aie-agent check`: whether metrics get through to a collector, by a push of none."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from aie_agent.commands.check_rows import Row
from aie_agent.config import OtlpSection
from aie_agent.outputs.otlp.build import OtlpError, Target, exporter, target

_REMEDY = "start the collector, or mend otlp.endpoint or the OTEL_EXPORTER_OTLP_* variables"


def otlp_rows(section: OtlpSection) -> Iterator[Row]:
    """None where nobody asked for OTLP."""
    try:
        wanted = target(section)
        if wanted is not None:
            yield _collector(wanted)
    except OtlpError as error:
        yield Row("OTLP", False, True, str(error))


def _collector(wanted: Target) -> Row:
    what = f"OTLP to {wanted.url} ({wanted.protocol})"
    from aie_agent.outputs.otlp.push import Refused

    make_exporter = exporter(wanted, Refused())
    from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData

    said = _Said()
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(said)
    logger.propagate = False
    try:
        exports = make_exporter()
        result = exports.export(MetricsData([]))
        exports.shutdown()
    except Exception as error:  # noqa: BLE001 - whatever certificates, headers and exporters raise is what the row says
        return Row(what, False, True, f"{type(error).__name__}: {error}", _REMEDY)
    finally:
        logger.removeHandler(said)
        logger.propagate = True
    if result is MetricExportResult.SUCCESS:
        return Row(what, True, True, f"a collector takes what is pushed, every {wanted.interval_s:.0f} s")
    return Row(what, False, True, said.last or "the collector did not take an empty push", _REMEDY)


class _Said(logging.Handler):
    """Keeps what OpenTelemetry's exporter logs last: it returns no reason."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
