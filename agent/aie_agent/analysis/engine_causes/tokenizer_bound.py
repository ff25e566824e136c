"""Requests wait for their prompts to be turned into tokens: what runs before the model is what is slow.

The rule: of at least `LEAST` requests lately, a tenth took `SLOW_S` or longer from their arrival to their token ids (parsing,
chat template, tokenizer, and the wait for a thread that runs them), or each of at least `ALL_LEAST`; such were seen in both halves
of the window, so that one moment in which the whole process stood still is none; and all these times together are at least `SHARE`
of all times to the first token. Where none got its first token in the window, nothing tells what else they wait for: then prompts
were tokenised for at least `SHARE` of the window, or no request runs in the model.

When it is wrong: the time is wall-clock, so too little CPU makes it long as well (see what else is found), though seldom by a
factor of ten; a lock around the tokenizer, and collections, have causes of their own that explain this one. Prompts so long that
their tokens take a quarter of a second are reported only where the model is faster than the tokenizer, and then it is true. The
false-alarm rate is 0 where tokenising takes less than `SLOW_S`, as it does by a factor of ten with any tokenizer in native code.
vLLM's and SGLang's pages do not tell it: there it is never found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.engine_causes.readings import TTFT, Sample, highest, observed, seconds
from aie_agent.analysis.findings import View
from aie_agent.progress import RUNNING
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "tokenizer_bound"
TOKENIZE: Final = "aie_engine_tokenize_seconds"
LAG: Final = "aie_engine_event_loop_lag_seconds"

WINDOWS_S: Final = (6.0, 10.0, 20.0, 60.0)
LEAST: Final = 5
ALL_LEAST: Final = 3
"""Where all of them are slow, so few tell: elsewhere none in thousands is."""
SLOW_S: Final = 0.2
SHARE: Final = 0.4
LAG_S: Final = 0.1

_ADVICE: Final = (
    "See where these threads are (`aie-agent stacks --engine {engine}`, as root): a regular expression that backtracks, a template,"
    " a tokenizer in Python. Tokenise in processes of their own (vLLM --api-server-count, SGLang --tokenizer-worker-num), and"
    " refuse prompts by their size in bytes before they are tokenised."
)


def tokenizer_bound(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `tokenizer_bound` at `now_s`, or None."""
    sample = next((found for window_s in WINDOWS_S if (found := _slow(view, engine, window_s, now_s))), None)
    if sample is None:
        return None
    first_token = observed(view, engine, TTFT, now_s - sample.window_s, now_s)
    share = sample.seen.total / first_token.total if first_token is not None and first_token.total > 0 else None
    is_most = share >= SHARE if share is not None else _is_all_there_is(view, engine, sample, now_s)
    if not is_most:
        return None
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=now_s - sample.window_s,
        summary=f"engine {engine}: requests wait up to {seconds(sample.seen.quantile(0.9))} for their prompts to be tokenised",
        evidence=tuple(_evidence(view, engine, sample, share, now_s)),
        advice=_ADVICE.format(engine=engine),
    )


def _slow(view: View, engine: str, window_s: float, now_s: float) -> Sample | None:
    """What was tokenised in a window, if it is slow: a tenth of enough requests, or all of a few, and not at one moment only."""
    seen = observed(view, engine, TOKENIZE, now_s - window_s, now_s)
    if seen is None or seen.count < ALL_LEAST or seen.quantile(0.9) < SLOW_S:
        return None
    slow, late = seen.count_above(SLOW_S), observed(view, engine, TOKENIZE, now_s - window_s / 2, now_s)
    late_slow = 0.0 if late is None else late.count_above(SLOW_S)
    is_enough = seen.count >= LEAST or slow == seen.count
    return Sample(seen, window_s) if is_enough and 0 < late_slow < slow else None


def _is_all_there_is(view: View, engine: str, sample: Sample, now_s: float) -> bool:
    """Whether it is the tokenizer that works, and not the model on prompts that are tokenised by now."""
    if sample.seen.total >= SHARE * sample.window_s:
        return True
    return highest(view, engine, RUNNING, now_s - sample.window_s, now_s) == 0


def _evidence(view: View, engine: str, sample: Sample, share: float | None, now_s: float) -> Iterator[Evidence]:
    p90, count = seconds(sample.seen.quantile(0.9)), sample.seen.count
    text = f"of {count:.0f} requests in the last {sample.window_s:g} s a tenth took {p90} or longer to be tokenised"
    yield Evidence(text=f"{text} (limit {seconds(SLOW_S)})", metric=TOKENIZE)
    if share is None:
        part = min(sample.seen.total / sample.window_s, 1.0)
        text = f"none got a first token in the last {sample.window_s:g} s, of which {part:.0%}"
        yield Evidence(text=f"{text} went into tokenising (limit {SHARE:.0%}, or no request in the model)", metric=TTFT)
    else:
        text = f"tokenising is about {min(share, 1.0):.0%} of all time to the first token (limit {SHARE:.0%})"
        yield Evidence(text=text, metric=TTFT)
    lag = observed(view, engine, LAG, now_s - sample.window_s, now_s)
    if lag is not None and lag.count and lag.quantile(0.9) >= LAG_S:
        text = f"its event loop woke {seconds(lag.quantile(0.9))} late or more in a tenth of all cases (limit {seconds(LAG_S)})"
        yield Evidence(text=f"{text}: what tokenises holds up the rest of the process, too", metric=LAG)
