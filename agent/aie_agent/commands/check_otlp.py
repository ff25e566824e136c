"""`aie-agent check`: whether metrics get through to a collector, by a push of none."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from aie_agent.commands.check_rows import Row
from aie_agent.config import OtlpSection
from aie_agent.outputs.otlp.build import ENDPOINTS, OtlpError, Target, asked, exporter
from aie_agent.outputs.otlp.refused import Refused
from aie_telemetry.otel_environment import Told

_REMEDY = "start the collector, or mend otlp.endpoint or the OTEL_EXPORTER_OTLP_* variables"


def otlp_rows(section: OtlpSection) -> Iterator[Row]:
    """None where nobody asked for OTLP."""
    wanted, told = asked(section)
    for each in told:
        yield _unusable(each, is_all=wanted is None)
    if wanted is not None:
        yield _collector(wanted)


def _unusable(told: Told, *, is_all: bool) -> Row:
    """A variable that is passed over; `is_all`: nothing else names a collector."""
    asked_for = is_all and told.name in ENDPOINTS
    found = f"{told}; nothing is pushed" if asked_for else str(told)
    return Row("OTLP", not asked_for, asked_for, found, f"mend {told.name}, or unset it", wrong=not asked_for)


def _collector(wanted: Target) -> Row:
    what = f"OTLP to {wanted.url} ({wanted.protocol})"
    try:
        make_exporter = exporter(wanted, Refused())
    except OtlpError as error:
        return Row("OTLP", False, True, str(error))
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
