"""Exemplars: of one observation of a histogram, the trace that it belongs to. Only OpenMetrics has them, not the classic format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from aie_telemetry.exposition import label_text, number

OPENMETRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_MEDIA_TYPE: Final = "application/openmetrics-text"


class Exemplar(NamedTuple):
    """One observation: its value in the metric's unit, when it was made (seconds since the epoch), its span, as W3C writes ids."""

    value: float
    time_s: float
    trace_id: str
    span_id: str

    def text(self) -> str:
        """As it stands behind a bucket."""
        labels = label_text((("trace_id", self.trace_id), ("span_id", self.span_id)))
        return f" # {labels} {number(self.value)} {self.time_s:.3f}"


def wants_openmetrics(accept: str | None) -> bool:
    """Whether a request with this `Accept` header can read OpenMetrics: it names the type, and not with a quality of 0."""
    for each in (accept or "").split(","):
        media_type, *parameters = (part.strip().lower() for part in each.split(";"))
        if media_type == _MEDIA_TYPE:
            return not any(parameter.replace(" ", "") in ("q=0", "q=0.0", "q=0.00", "q=0.000") for parameter in parameters)
    return False


def texts(exemplars: Mapping[int, Exemplar]) -> dict[int, str]:
    """The texts behind buckets, by the bucket's index."""
    return {bucket: exemplar.text() for bucket, exemplar in exemplars.items()}
