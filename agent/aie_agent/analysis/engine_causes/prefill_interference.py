"""Tokens of running requests stutter because long prompts are computed in the same steps.

The rule, over the last `WINDOW_S` seconds, of at least `LEAST` gaps between tokens: the P99 is at least `RATIO` times the median
and at least `STUTTER_S`; and the steps that had the most tokens (P99) had `STEP_RATIO` times as many as the middle one, which
only prompts do. A step's duration is not asked for: the gap is what a client sees. Where the page says nothing of its steps'
tokens, prompts must be most of what is computed, which is said to be less sure. What is found goes on while half of each of these
is reached, of the P99.5 for the P99: what stays near a limit is one finding.

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
SHARE: Final = 0.01
"""Of the gaps: one in a hundred is longer than the P99."""
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
    """The middle gap, the one that only `share` of them are longer than, and how many there were."""

    median_s: float
    longest_s: float
    share: float
    number: float

    def stutter(self, eased: float) -> bool:
        """Whether some are so much longer than most; `eased` is what the limits are multiplied by."""
        return self.longest_s >= eased * max(STUTTER_S, RATIO * self.median_s)

    def words(self, begins: bool) -> str:
        """As evidence says them; `begins` where they would be found anew."""
        quantile = f"the P{100 * (1 - self.share):g} was {seconds(self.longest_s)}, the median {seconds(self.median_s)}"
        limit = limit_of(begins, f"{RATIO:g} times as long and {seconds(STUTTER_S)}, of {LEAST} gaps")
        return f"of {self.number:.0f} gaps between tokens in the last {WINDOW_S:g} s {quantile} ({limit})"


def _gaps(seen: Observed, eased: float) -> _Gaps:
    return _Gaps(seen.quantile(0.5), seen.quantile(1 - eased * SHARE), eased * SHARE, seen.count)


def prefill_interference(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `prefill_interference` at `now_s`, or None."""
    start_s, eased = now_s - WINDOW_S, ease(view, CAUSE, engine)
    seen = observed(view, engine, GAPS, start_s, now_s)
    if seen is None or seen.count < eased * LEAST:
        return None
    gaps = _gaps(seen, eased)
    if not gaps.stutter(eased) or not _is_known_since(view, engine, start_s):
        return None
    steps = observed(view, engine, STEP_TOKENS, start_s, now_s)
    mixed = _of_steps(steps, eased) if steps is not None else _of_totals(view, engine, eased, start_s, now_s)
    if mixed is None or _is_as_slow_without_prompts(view, engine, gaps, eased, start_s, now_s):
        return None
    anew = _gaps(seen, 1.0)
    begins = anew.number >= LEAST and anew.stutter(1.0)
    gaps = anew if begins else gaps
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=start_s,
        summary=f"engine {engine}: tokens stutter, up to {seconds(gaps.longest_s)} apart, while prompts are computed in the same"
        " steps",
        evidence=(Evidence(text=gaps.words(begins), metric=GAPS), mixed),
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
    middle, most = steps.quantile(0.5), steps.quantile(0.99)
    if not steps.count or most < eased * STEP_RATIO * middle:
        return None
    limit = limit_of(most >= STEP_RATIO * middle, f"{STEP_RATIO:g} times as many")
    text = f"its largest steps had {most:.0f} tokens (P99), the middle one {middle:.0f} ({limit})"
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
