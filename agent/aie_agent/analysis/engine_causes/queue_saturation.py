"""More requests come than the engine takes in: waiting is most of what their first token takes, or some are refused.

The rule: requests waited at every look of the last `HELD_S` seconds; half of those that were admitted lately had waited `WAIT_S` or
longer; and their waits are at least `SHARE` of the time to the first token, on average by the sums that histograms have beside
their buckets, or so without the longest of both (`usual_mean`), since a few long prompts raise the average time of all. Where a
page has no histogram of waits (llama.cpp, older SGLang), requests waited for `UNMEASURED_S`, all that time no fewer than ran.

It goes on while requests waited at half of the looks of the last `GOES_ON_S` seconds, and half of each of the other limits is
reached: so a queue that is empty at one look in ten is one finding (an hour simulated; with one in four, four in an hour), and
what is mended has gone within twenty seconds.

Or requests are refused for want of a place, to begin with lately still (`arrivals.REFUSES_S`: a flood that is over begins none; a
burst each minute is one finding), and not because more come than before (`outcomes.overload`, which tells those as `client_flood`).
Where fewer are served than before, that is what is said: something made the engine slow.

A queue that shrinks so fast that it is empty within `WORKED_OFF_S` is information: a burst that is worked off without help, and
stays so while it is empty at a look now and then. It shrinks when, since its highest look in the last `PEAK_S` seconds, no look of
the later half was above one of the earlier, and the last is below the first.

When it is wrong: never in what it says; only where `WAIT_S` is no bound of the page's buckets, half of the requests may have waited
a little less, or more. But a queue that is kept full on purpose (batch work, a load
test) is reported for as long as it is. There is no other false alarm: a burst that is worked off within `HELD_S` is none, nor is a
queue that is short and fast. A queue that goes up and down about one length looks as if it shrank in 2 % of all looks where they
are independent, in up to 28 % where it wanders slowly (simulated): `Steady` keeps the warning for 30 s, after which 25 such minutes
had none left that was milder. What it does not see: requests that a proxy holds back before they reach the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.arrivals import Arrivals
from aie_agent.analysis.engine_causes.outcomes import FLOOD, overload
from aie_agent.analysis.engine_causes.readings import (
    KV_USAGE,
    RUNNING,
    TTFT,
    WAITING,
    Observed,
    Sample,
    enough,
    held,
    highest,
    is_positive,
    observed,
    seconds,
    share_of_looks,
)
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import ENDS_AT, ease, limit_of
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "queue_saturation"
QUEUE: Final = "aie_engine_queue_seconds"

HELD_S: Final = 8.0
GOES_ON_S: Final = 16.0
WAIT_S: Final = 0.5
SHARE: Final = 0.5
LEAST: Final = 5
WINDOWS_S: Final = (10.0, 60.0)
UNMEASURED_S: Final = 30.0
PEAK_S: Final = 20.0
WORKED_OFF_S: Final = 60.0
_LEAST_LOOKS: Final = 4

_ADVICE: Final = (
    "Places in the batch are what is short, if not memory (then `kv_full` stands above this): raise them (vLLM --max-num-seqs,"
    " SGLang --max-running-requests, llama.cpp --parallel, aie-engine --max-running), or add replicas; until then limit what is"
    " admitted, so that clients are refused at once."
)
_SLOWER: Final = (
    "Something made it slow: see what else is found of it and of its GPUs, and what changed just before (longer prompts or answers"
    " do it, too). Until then clients have to wait as Retry-After says: those that ask again at once make it worse."
)


def queue_saturation(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `queue_saturation` at `now_s`, or None."""
    queue = queue_of_waits(view, engine, now_s)
    refused = overload(view, engine, min(ease(view, cause, engine) for cause in (CAUSE, FLOOD)), now_s)
    goes_on = view.held_since_s(CAUSE, engine) is not None
    if refused is None or refused.is_flood or not (refused.arrivals.is_refusing or goes_on):
        return queue
    words, advice = _of_refused(refused.arrivals)
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=refused.arrivals.since_s if queue is None else min(queue.since_s, refused.arrivals.since_s),
        summary=f"engine {engine}: {words}, {refused.share:.0%} are refused",
        evidence=(*refused.evidence, *(() if queue is None else queue.evidence)),
        advice=advice,
        not_visible=(*refused.not_visible, *(() if queue is None else queue.not_visible)),
    )


def _of_refused(arrivals: Arrivals) -> tuple[str, str]:
    """What it is, as far as it is known, and what to do."""
    if not arrivals.fell:
        return "more requests come than it takes in", _ADVICE
    return (
        "more requests come and it serves fewer than before" if arrivals.grew else "it serves fewer requests than before",
        _SLOWER,
    )


def queue_of_waits(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding where requests wait, whether any are refused or not."""
    eased = ease(view, CAUSE, engine)
    looks = _waiting_at(view, engine, eased, now_s)
    if looks is None:
        return None
    waits = _of_waits(view, engine, eased, now_s)
    if waits is None and observed(view, engine, QUEUE, now_s, now_s) is None:
        waits = _unmeasured(view, engine, eased, now_s)
    if waits is None:
        return None
    waiting = view.store.current(WAITING, now_s, engine=engine) or 0.0
    left_s = _worked_off_in_s(view, engine, now_s)
    shrinks = (left_s is not None and left_s <= WORKED_OFF_S) or _is_nearly_worked_off(view, engine, now_s)
    kv = highest(view, engine, KV_USAGE, now_s - HELD_S, now_s)
    is_measured = waits.metric == QUEUE
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="info" if shrinks else "warning",
        since_s=now_s - (HELD_S if is_measured else UNMEASURED_S),
        summary=f"engine {engine}: more requests {'came at once' if shrinks else 'come'} than it takes in, {waiting:.0f} wait",
        evidence=(waits, *_evidence(view, engine, waiting, looks, kv, now_s), *_of_shrinking(left_s)),
        advice=_ADVICE,
        not_visible=() if is_measured else ("how long requests wait: its page has no histogram of it",),
    )


def _waiting_at(view: View, engine: str, eased: float, now_s: float) -> str | None:
    """At which looks requests waited, in words; None where those are too few."""
    if held(view, engine, WAITING, is_positive, now_s - HELD_S, now_s):
        return f"at every look of the last {HELD_S:g} s some did (limit 0)"
    share = share_of_looks(view, engine, WAITING, is_positive, now_s - GOES_ON_S, now_s) if eased < 1.0 else None
    if share is None or share < ENDS_AT:
        return None
    return f"at {share:.0%} of the looks of the last {GOES_ON_S:g} s some did (limit {ENDS_AT:.0%} for as long as it goes on)"


def _worked_off_in_s(view: View, engine: str, now_s: float) -> float | None:
    """When a queue that shrinks will be empty, at the rate since its highest; None while it does not shrink."""
    current = [series for series in view.store.scalars(WAITING, engine=engine) if series.valid_until_s >= now_s]
    if len(current) != 1:
        return None
    looks = list(current[0].ring.since(now_s - PEAK_S))
    highest_at = max(range(len(looks)), key=lambda at: looks[at][1], default=0)
    since = looks[highest_at:]
    earlier, later = since[: len(since) // 2], since[len(since) // 2 :]
    if len(since) < _LEAST_LOOKS or max(value for _, value in later) > min(value for _, value in earlier):
        return None
    (begin_s, most), (end_s, left) = since[0], since[-1]
    return None if left >= most else left * (end_s - begin_s) / (most - left)


def _is_nearly_worked_off(view: View, engine: str, now_s: float) -> bool:
    """Whether it was told as a burst, and its queue was empty at a look just now: what is left of it goes up and down."""
    before = view.held(CAUSE, engine)
    is_burst = before is not None and before.severity == "info"
    return is_burst and not held(view, engine, WAITING, is_positive, now_s - HELD_S, now_s)


def _of_shrinking(left_s: float | None) -> Iterator[Evidence]:
    if left_s is not None:
        text = f"the queue shrinks: at this rate it is empty in {seconds(left_s)} (a warning above {WORKED_OFF_S:g} s)"
        yield Evidence(text=text, metric=WAITING)


def _of_waits(view: View, engine: str, eased: float, now_s: float) -> Evidence | None:
    sample = enough(view, engine, QUEUE, WINDOWS_S, eased * LEAST, now_s)
    if sample is None:
        return None
    median_s, part = sample.seen.quantile(0.5), _part(sample, observed(view, engine, TTFT, now_s - sample.window_s, now_s))
    if median_s < eased * WAIT_S or part.share < eased * SHARE:
        return None
    half_s = WAIT_S if median_s >= WAIT_S else eased * WAIT_S
    text = f"half of the requests admitted in the last {sample.window_s:g} s had waited {seconds(half_s)} or longer{part.words}"
    limits = limit_of(median_s >= WAIT_S and part.share >= SHARE, f"{seconds(WAIT_S)} for half of them, and {SHARE:.0%} of that")
    return Evidence(text=f"{text} ({limits})", metric=QUEUE)


class _Part(NamedTuple):
    """Which part of the time to the first token waits are (1 where nobody knows the latter), and what evidence says of it."""

    share: float
    words: str


def _part(sample: Sample, first: Observed | None) -> _Part:
    """Of all on average; without the longest where that is too little."""
    mean_s, usual_s = sample.seen.mean, sample.seen.usual_mean_about  # of first tokens the most: a share is never made up
    on_average = f", and all of them {seconds(mean_s)} on average"
    if first is None or not first.usual_mean:
        return _Part(1.0, on_average)
    share, usual = min(mean_s / first.mean, 1.0), min(usual_s / first.usual_mean, 1.0)
    if share >= SHARE or usual <= share:
        return _Part(share, f"{on_average}; first tokens took {seconds(first.mean)} on average, of which that is {share:.0%}")
    without = f", about {seconds(usual_s)} on average without the longest; first tokens took at most {seconds(first.usual_mean)}"
    return _Part(usual, f"{without} so ({seconds(first.mean)} with them), of which that is {usual:.0%}")


def _unmeasured(view: View, engine: str, eased: float, now_s: float) -> Evidence | None:
    running = highest(view, engine, RUNNING, now_s - UNMEASURED_S, now_s)
    if running is None:
        return None
    least = max(running, 1.0)
    if held(view, engine, WAITING, lambda value: value >= least, now_s - UNMEASURED_S, now_s):
        text = f"for {UNMEASURED_S:g} s no fewer requests waited than ran ({running:.0f})"
        return Evidence(text=text, metric=WAITING)
    share = share_of_looks(view, engine, WAITING, lambda value: value >= eased * least, now_s - GOES_ON_S, now_s)
    if eased == 1.0 or share is None or share < ENDS_AT:
        return None
    text = f"at {share:.0%} of the looks of the last {GOES_ON_S:g} s at least half as many requests waited as ran ({running:.0f})"
    return Evidence(text=f"{text} ({limit_of(False, f'as many at every look of {UNMEASURED_S:g} s')})", metric=WAITING)


def _evidence(view: View, engine: str, waiting: float, looks: str, kv: float | None, now_s: float) -> Iterator[Evidence]:
    running = view.store.current(RUNNING, now_s, engine=engine)
    beside = "" if running is None else f" beside {running:.0f} that run"
    yield Evidence(text=f"{waiting:.0f} requests wait now{beside}; {looks}", metric=WAITING)
    if kv is not None:
        yield Evidence(text=f"of its KV cache at most {kv:.0%} is taken", metric=KV_USAGE)
