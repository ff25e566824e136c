"""What the panels about objectives mean: of requests that ended in time or well, and of time with a live replica."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from tests.integration.dashboards.oracle import Meaning, level, pace, quantile, rise, scaled, share

OF: Final = "engine, model"
_TTFT: Final = "aie_engine_time_to_first_token_seconds"
_ITL: Final = "aie_engine_inter_token_seconds"
_DURATION: Final = "aie_engine_request_duration_seconds"


def _within(metric: str, bound: str) -> Meaning:
    return share(rise(f"{metric}_bucket", OF, f'le="{bound}"'), rise(f"{metric}_count", OF))


_ENDED_WELL: Final = share(
    rise("aie_engine_requests_total", OF, 'outcome="ok"'), rise("aie_engine_requests_total", OF, 'outcome=~"ok|error|timeout"')
)
_OF_TIME: Final = "Time with a live replica: 99.9 % of the time"
"""Its thirty days are more samples than promtool lets a query load: `test_objectives_tell_truth.py` asks a Prometheus."""
_OBJECTIVES: Final = {
    "Time to first token: 99 % within 1 s": (_within(_TTFT, "1"), 0.01),
    "Time between tokens: 99 % within 0.1 s": (_within(_ITL, "0.1"), 0.01),
    "Duration of requests: 99 % within 20.48 s": (_within(_DURATION, "20.48"), 0.01),
    "Requests answered without error: 99.9 %": (_ENDED_WELL, 0.001),
    _OF_TIME: (level("aie_engine_up", "engine", "max"), 0.001),
}
"""Which share was well, and which may not be."""


def _shares() -> Iterator[tuple[str, Sequence[Meaning]]]:
    """In the history all is steady: every time has the same shares."""
    for row, (good, budget) in _OBJECTIVES.items():
        burning = scaled(good, -1 / budget, 1 / budget)
        if row != _OF_TIME:
            yield row.partition(": ")[0], [scaled(burning, -1, 1)]
        yield f"{row}: Kept", [good]
        yield f"{row}: How fast the budget goes", [burning] * 3


def _percentiles(name: str) -> list[Meaning]:
    return [quantile(at, name, OF) for at in (0.5, 0.95, 0.99)]


OF_OBJECTIVES: Final[dict[str, dict[str, Sequence[Meaning]]]] = {
    "slo": {
        **dict(_shares()),
        "Time to first token: 99 % within 1 s: How long it takes": _percentiles(_TTFT),
        "Time between tokens: 99 % within 0.1 s: How long it takes": _percentiles(_ITL),
        "Duration of requests: 99 % within 20.48 s: How long it takes": _percentiles(_DURATION),
        "What did not end well": [pace("aie_engine_requests_total", "instance, outcome", 'outcome!="ok"')],
        "Up": [level("aie_engine_up", "instance, engine", "max")],
    }
}
