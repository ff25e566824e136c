"""Exemplars: of one observation of a histogram, the trace that it belongs to. Only OpenMetrics has them, not the classic format."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from aie_telemetry.exposition import label_text, number

OPENMETRICS_CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
ACCEPT_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0, text/plain; version=0.0.4; q=0.5"
"""What a client says that reads both, and OpenMetrics rather."""
_MEDIA_TYPE: Final = "application/openmetrics-text"
_LATEST_S: Final = 1e11
_IDS: Final = re.compile(r'(trace_id|span_id)="([0-9a-f]{32}|[0-9a-f]{16})"')
_TEXT: Final = re.compile(rf"\{{({_IDS.pattern},{_IDS.pattern})\}}\s+([-+.0-9eE]+)\s+([.0-9eE+]+)\s*")
_ID_CHARS: Final = {"trace_id": 32, "span_id": 16}


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


def read(text: str) -> Exemplar | None:
    """What stands behind a bucket, as `Exemplar.text` writes it, without the '#'; the ids in either order. None for anything else:
    other labels, ids that are none, no time, numbers that are none."""
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    ids = dict(_IDS.findall(match[1]))
    try:
        value, time_s = float(match[6]), float(match[7])
    except ValueError:
        return None
    if {name: len(id_) for name, id_ in ids.items()} != _ID_CHARS or not all(id_.strip("0") for id_ in ids.values()):
        return None
    if not (math.isfinite(value) and 0 < time_s < _LATEST_S):
        return None
    return Exemplar(value, time_s, ids["trace_id"], ids["span_id"])


def texts(exemplars: Mapping[int, Exemplar]) -> dict[int, str]:
    """The texts behind buckets, by the bucket's index."""
    return {bucket: exemplar.text() for bucket, exemplar in exemplars.items()}
