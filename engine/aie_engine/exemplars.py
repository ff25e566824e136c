"""Which spans stand behind the page's latencies: noted on the hooks' thread when a span is made, taken when a page is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from aie_hooks.tracing import SpanIds, Stages
from aie_telemetry.exemplars import Exemplar

_MOST: Final = 256
"""Spans that wait for a page; a histogram has room for one a bucket."""


def _between(begin_s: float | None, end_s: float | None) -> float | None:
    return None if begin_s is None or end_s is None else end_s - begin_s


def _per_token(stages: Stages) -> float | None:
    decoded_s = _between(stages.first_token_s, stages.done_s)
    return None if decoded_s is None or stages.generated_tokens < 2 else decoded_s / (stages.generated_tokens - 1)


_LATENCIES: Final[tuple[tuple[str, Callable[[Stages], float | None]], ...]] = (
    ("aie_engine_queue_seconds", lambda stages: _between(stages.queued_s, stages.prefill_s)),
    ("aie_engine_time_to_first_token_seconds", lambda stages: _between(stages.received_s, stages.first_token_s)),
    ("aie_engine_time_per_output_token_seconds", _per_token),
    ("aie_engine_request_duration_seconds", lambda stages: _between(stages.received_s, stages.done_s)),
)
"""The latencies of the page of which a span's stages tell one observation each."""


class Exemplars:
    """Thread-safe. Of more than 256 spans between two pages the oldest are left out."""

    def __init__(self, wall_clock: Callable[[], float] = time.time) -> None:
        self._wall_clock = wall_clock
        self._made: deque[tuple[SpanIds, Stages, float]] = deque(maxlen=_MOST)

    def note(self, span: SpanIds, stages: Stages) -> None:
        """A span was made, and is sampled. An answer from the cache has no latencies of the model's."""
        if not stages.cached:
            self._made.append((span, stages, self._wall_clock()))

    def take(self) -> Iterator[tuple[str, Exemplar]]:
        """What came since the last time: each with the histogram that it belongs to, the oldest first."""
        while self._made:
            span, stages, time_s = self._made.popleft()
            for name, latency in _LATENCIES:
                value = latency(stages)
                if value is not None:
                    yield name, Exemplar(value, time_s, span.trace_id, span.span_id)
