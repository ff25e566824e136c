"""Tokens of running requests stutter because long prompts are computed in the same steps.

The rule, over the last `WINDOW_S` seconds, of at least `LEAST` gaps between tokens: the P99 is at least `RATIO` times the median
and at least `STUTTER_S`; and the steps that had the most tokens (P99) had `STEP_RATIO` times as many as the middle one, which
only prompts do. A step's duration is not asked for: the gap is what a client sees. Where the page says nothing of its steps'
tokens, prompts must be most of what is computed, which is said to be less sure. What is found goes on while half of each of these
is reached: of gaps one in two hundred that is surely so long, of steps the P99.5. What stays near a limit is one finding.

When it is wrong: gaps may be long for another reason (a collection, a neighbour on the CPU) while prompts are computed as well.
Those have causes of their own that explain this one; and seconds without prompts speak: where gaps are as long in them, it is not
reported. On an engine with chunked prefill and a budget that suits it (aie-engine: a mixed step is at most 1.8 others) the ratio
stays below 3, where what is found ends too, and the false-alarm rate is 0 as long as the host does not stall it for more than 1 %
of its steps, always while prompts are computed.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import Observed, observed, risen, seconds
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import ease, limit_of
from aie_agent.series import HistogramSeries
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "prefill_interference"
GAPS: Final = "aie_engine_inter_token_seconds"
STEP_TOKENS: Final = "aie_engine_step_tokens"
PROMPT_TOKENS: Final = "aie_engine_prompt_tokens_total"
GENERATED: Final = "aie_engine_generation_tokens_total"

WINDOW_S: Final = 30.0
LEAST: Final = 300
RARE: Final = 0.01
"""One gap in a hundred is longer than the P99."""
RATIO: Final = 6.0
STUTTER_S: Final = 0.1
STEP_RATIO: Final = 4.0
PROMPT_RATIO: Final = 2.0
CONTRAST: Final = 2.0
NEAR_S: Final = 1.5

_ADVICE: Final = (
    "Compute prompts in smaller pieces (vLLM --max-num-batched-tokens 2048 with chunked prefill on; SGLang --chunked-prefill-size"
    " 2048, or --enable-mixed-chunk), or keep prompts and decodes on engines of their own."
)


class _Gaps(NamedTuple):
    """The middle gap, the P99, and what evidence says of them."""

    median_s: float
    p99_s: float
    words: str


def _stuttering(seen: Observed, eased: float) -> _Gaps | None:
    """The gaps, if they stutter. What goes on is counted, and not interpolated: of so few, and three times the median, the width
    of a bucket would be most."""
    if seen.count < eased * LEAST:
        return None
    median_s, p99_s = seen.quantile(0.5), seen.quantile(0.99)
    limit_s = max(STUTTER_S, RATIO * median_s)
    begins = seen.count >= LEAST and p99_s >= limit_s
    long = seen.count_above(eased * limit_s)
    if not begins and (eased == 1.0 or long < eased * RARE * seen.count):
        return None
    goes_on = "" if begins else f", and {long:.0f} were longer than {seconds(eased * limit_s)}"
    limit = limit_of(begins, f"{RATIO:g} times as long and {seconds(STUTTER_S)}, of {LEAST} gaps")
    words = f"the P99 was {seconds(p99_s)}, the median {seconds(median_s)}{goes_on} ({limit})"
    return _Gaps(median_s, p99_s, f"of {seen.count:.0f} gaps between tokens in the last {WINDOW_S:g} s {words}")


def prefill_interference(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `prefill_interference` at `now_s`, or None."""
    start_s, eased = now_s - WINDOW_S, ease(view, CAUSE, engine)
    seen = observed(view, engine, GAPS, start_s, now_s)
    gaps = _stuttering(seen, eased) if seen is not None else None
    if gaps is None or not _is_known_since(view, engine, start_s):
        return None
    steps = observed(view, engine, STEP_TOKENS, start_s, now_s)
    mixed = _of_steps(steps, eased) if steps is not None else _of_totals(view, engine, eased, start_s, now_s)
    if mixed is None or _is_as_slow_without_prompts(view, engine, gaps, eased, start_s, now_s):
        return None
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=start_s,
        summary=f"engine {engine}: tokens stutter, up to {seconds(gaps.p99_s)} apart, while prompts are computed in the same steps",
        evidence=(Evidence(text=gaps.words, metric=GAPS), mixed),
        advice=_ADVICE,
        not_visible=() if steps is not None else ("which steps had prompts in them: its page does not tell the tokens of a step",),
    )


def _is_known_since(view: View, engine: str, start_s: float) -> bool:
    """Whether the whole window was seen: what is compared with it may lie in any part of it."""
    firsts = [
        next((time_s for time_s, _ in series.since(0.0)), start_s + 1) for series in view.store.histograms(GAPS, engine=engine)
    ]
    return any(first_s <= start_s for first_s in firsts)


def _of_steps(steps: Observed, eased: float) -> Evidence | None:
    middle, most = steps.quantile(0.5), steps.quantile(1 - eased * RARE)
    if not steps.count or most < eased * STEP_RATIO * middle:
        return None
    limit = limit_of(most >= STEP_RATIO * middle, f"{STEP_RATIO:g} times as many")
    text = f"its largest steps had {most:.0f} tokens (P{100 * (1 - eased * RARE):g}), the middle one {middle:.0f} ({limit})"
    return Evidence(text=text, metric=STEP_TOKENS)


def _of_totals(view: View, engine: str, eased: float, start_s: float, now_s: float) -> Evidence | None:
    prompts = risen(view, engine, PROMPT_TOKENS, start_s, now_s)
    generated = risen(view, engine, GENERATED, start_s, now_s)
    if not prompts or generated is None or prompts < eased * PROMPT_RATIO * generated:
        return None
    limit = limit_of(prompts >= PROMPT_RATIO * generated, f"{PROMPT_RATIO:g} times as many")
    text = f"{prompts:.0f} tokens of prompts were computed, and {generated:.0f} generated ({limit})"
    return Evidence(text=text, metric=PROMPT_TOKENS)


def _is_as_slow_without_prompts(view: View, engine: str, gaps: _Gaps, eased: float, start_s: float, now_s: float) -> bool:
    """Whether gaps are long about as often in the moments in which no prompt was computed."""
    moves = sorted(
        time_s
        for series in view.store.scalars(PROMPT_TOKENS, engine=engine)
        for (_, before), (time_s, value) in pairwise(series.ring.since(start_s - NEAR_S))
        if value != before
    )
    if not moves:
        return False  # nobody says when
    limit_s = 3 * gaps.median_s
    near, far = [0.0, 0.0], [0.0, 0.0]  # gaps, and long ones
    for series in view.store.histograms(GAPS, engine=engine):
        if series.valid_until_s >= now_s:
            for begin_s, end_s, part in _parts(series, start_s):
                near_prompts = bisect_right(moves, begin_s - NEAR_S) < bisect_right(moves, end_s + NEAR_S)
                tally = near if near_prompts else far
                tally[0] += part.count
                tally[1] += part.count_above(limit_s)
    return far[0] >= LEAST / 3 and near[0] > 0 and eased * CONTRAST * far[1] / far[0] >= near[1] / near[0]


def _parts(series: HistogramSeries, start_s: float) -> list[tuple[float, float, Observed]]:
    """What was observed from each look to the next."""
    parts = []
    for (begin_s, before), (end_s, after) in pairwise(series.since(start_s)):
        if before is not None and after is not None:
            gained = [max(new - old, 0.0) for old, new in zip(before, after, strict=True)]
            parts.append((begin_s, end_s, Observed(series.bounds, gained)))
    return parts
