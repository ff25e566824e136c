"""What the watches of an engine say, as findings.

`input_drift`: what is asked looks different (log-sum-exp of the logits before the first token, which depends on the prompt and the
weights alone). `output_drift`: answers look different, and prompts do not. `output_collapse`: answers are all alike, or scatter far
less than they ever did. `nan_logits`: the model gives numbers that are none.

A canary that changed (canary.py) is `output_drift` by itself, and makes one of whatever else shifted: it is the model.

False alarms. Of drift: one in the run length that each finding tells, which the reference was calibrated to (30 days by default,
all statistics together, at the rate that it was made for). Of the others: hard_checks.py, nan_signs.py; the scatter of a thousand
requests fell below half of the least that the reference's traffic has, as it came and replayed, once in 6e5 requests of simulated
traffic of which one value in thirty or fewer make all of the scatter, and of no other (lognormal, single values far out).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from aie_agent.analysis.drift.canary import CanaryWatch
from aie_agent.analysis.drift.canary_words import ADVICE, canary_finding, changed, same_sentence, sentence, unchanged
from aie_agent.analysis.drift.collapse import EqualAnswers, equal_answers
from aie_agent.analysis.drift.nan_signs import ANSWERS_WITHOUT_NUMBERS, NanAnswers, NanSigns
from aie_agent.analysis.drift.reference import FEWEST, Header
from aie_agent.analysis.drift.rule import CONSECUTIVE, WINDOW
from aie_agent.analysis.drift.span import qualified
from aie_agent.analysis.drift.stream import EngineStream
from aie_agent.analysis.drift.watch import Check, StatisticWatch
from aie_agent.request_values import STATISTICS, Statistic
from aie_telemetry.api import Evidence, Finding

_AT_THRESHOLD: Final = 0.5
_SURE: Final = 0.999

_SHIFTS: Final = (Check.KS, Check.OUT_OF_RANGE)

_INPUT_ADVICE: Final = (
    "Compare what clients send with what the reference was recorded of: a new client, language, template or length of prompts? If"
    " the model was changed, or this is what is wanted, record anew (`aie-agent baseline build`, then `replace`)."
)
_OUTPUT_ADVICE: Final = (
    "Prompts look as before: so look at what changed in the model: weights, quantisation, sampling, chat template, kernels. Compare"
    " answers to fixed prompts with those of the version before, and go back to it if they are worse."
)
_COLLAPSE_ADVICE: Final = (
    "Read some answers. Where they are all alike: is one prompt sent again and again, is the temperature 0, did weights or a cache"
    " break?"
)
_NAN_ADVICE: Final = (
    "The answers are worthless: take the engine out of the rotation. Restart it; if NaN comes back, check weights (a damaged file,"
    " an overflow in half precision) and the GPU's ECC counts and XIDs."
)


def drift_findings(
    engine: str, model: str, stream: EngineStream | None, canaries: Mapping[str, CanaryWatch], now_s: float
) -> Iterator[Finding]:
    """Of one engine and model, at most one that says it shifted, and one that says it collapsed. None: nothing is compared."""
    alarming = changed(canaries)
    if stream is None:
        if alarming:
            yield canary_finding(engine, model, alarming)
        return
    watched = [(statistic, stream.watches[statistic.name]) for statistic in STATISTICS if statistic.name in stream.watches]
    shifted = [(statistic, watch) for statistic, watch in watched if any(check in watch.alarms for check in _SHIFTS)]
    if shifted:
        yield _drift(engine, model, stream, watched, shifted, canaries, now_s)
    elif alarming:
        yield canary_finding(engine, model, alarming)
    equal = equal_answers(stream.watches)
    narrow = [(statistic, watch) for statistic, watch in watched if Check.STABILITY in watch.alarms]
    if equal is not None or narrow:
        yield _collapse(engine, model, equal, narrow)


_Watched = Sequence[tuple[Statistic, StatisticWatch]]


def _drift(
    engine: str,
    model: str,
    stream: EngineStream,
    watched: _Watched,
    shifted: _Watched,
    canaries: Mapping[str, CanaryWatch],
    now_s: float,
) -> Finding:
    """A canary tells prompts from weights: one that changed explains whatever else did, one that did not leaves the prompts."""
    alarming, same = changed(canaries), unchanged(canaries)
    of_prompt = not alarming and any(statistic.of_prompt for statistic, _ in shifted)
    sees_prompts = any(statistic.of_prompt and not watch.column.untested for statistic, watch in watched)
    evidence = [sentence(name, watch) for name, watch in alarming.items()]
    evidence += [each for statistic, watch in shifted for each in _shift_sentences(statistic, watch)]
    evidence += [same_sentence(name, watch) for name, watch in same.items()] if of_prompt else []
    known = stream.run_length_requests is not None
    metric = "aie_drift_run_length_requests" if known else "aie_drift_watching"
    evidence.append(Evidence(text=_run_length(stream, now_s), metric=metric))
    what = "what it is asked looks different" if of_prompt else "its answers look different"
    hidden = (
        []
        if sees_prompts or of_prompt or alarming
        else ["whether prompts changed: the log-sum-exp of the first token is not compared"]
    )
    if of_prompt and not same:
        hidden.append("whether the prompts changed or the weights: both show in the first token's logits")
    since_canary = [watch.since_s for watch in alarming.values() if watch.since_s is not None]
    return Finding(
        cause="input_drift" if of_prompt else "output_drift",
        subject=engine,
        severity="warning",
        since_s=min(
            [since_s for _, watch in shifted for check, since_s in watch.alarms.items() if check in _SHIFTS] + since_canary
        ),
        summary=f"engine {engine}, {model}: {what} from its reference ({', '.join(statistic.name for statistic, _ in shifted)})",
        evidence=tuple(evidence),
        advice=_INPUT_ADVICE if of_prompt else ADVICE if alarming else _OUTPUT_ADVICE,
        confidence=_SURE if alarming else max(_confidence(watch) for _, watch in shifted),
        not_visible=tuple(hidden),
        model=model,
    )


def _confidence(watch: StatisticWatch) -> float:
    """That a shift is none by chance: even where five windows are just at the threshold, of which the reference's traffic gives one
    in a run length; the surer the further they are beyond it, by Smirnov's tail, and the more of them came in a row. However long
    the engine ran before tells nothing of it."""
    column, last = watch.column, watch.last
    if Check.OUT_OF_RANGE in watch.alarms:
        return _SURE
    if last is None:
        return _AT_THRESHOLD
    independent = WINDOW * CONSECUTIVE / max(1.0, column.dependence)
    beyond = max(0.0, last.distance**2 - column.threshold**2)
    more = max(0, watch.shift.above - CONSECUTIVE) / CONSECUTIVE
    chance = math.exp(-2.0 * independent * beyond) * math.pow(min(1.0, column.false_alarm), more)
    return min(_SURE, 1.0 - _AT_THRESHOLD * chance)


def _shift_sentences(statistic: Statistic, watch: StatisticWatch) -> Iterator[Evidence]:
    column, last, alarms = watch.column, watch.last, watch.alarms
    if watch.last_outside is None:  # restored, and no window is complete since
        yield Evidence(text=f"{statistic.name}: shifted before the agent was restarted", metric="aie_drift_alarm")
        return
    if Check.KS in alarms and last is not None:
        median, before = watch.median, watch.reference_median
        moved = f"; half of them above {median:.3g}, {before:.3g} in the reference" if median is not None else ""
        yield Evidence(
            text=(
                f"{statistic.name} ({statistic.means}): the last {WINDOW} requests are {last.distance:.3f} from the reference,"
                f" {column.threshold:.3f} is the most that chance gives {CONSECUTIVE} windows in a row{moved}"
            ),
            metric="aie_drift_distance_ratio",
        )
    if Check.OUT_OF_RANGE in alarms:
        yield from _outside_sentences(statistic, watch)


def _outside_sentences(statistic: Statistic, watch: StatisticWatch) -> Iterator[Evidence]:
    """Of either of the two counts that make a window one of too many."""
    low, high, too_many, lowest, highest, too_many_unseen = watch.bounds
    counts = [(watch.last_outside, low, high, "98 % of the reference are", too_many, "aie_drift_outside_ratio")]
    if too_many_unseen <= WINDOW:
        counts.append((watch.last_unseen, lowest, highest, "all of it is", too_many_unseen, "aie_drift_unseen_ratio"))
    for count, least, most, where, limit, metric in counts:
        yield Evidence(
            text=(
                f"{statistic.name}: {count} of the last {WINDOW} requests outside {least:.3g} to {most:.3g}, where {where};"
                f" {limit} in {CONSECUTIVE} windows in a row are too many"
            ),
            metric=metric,
        )


def _run_length(stream: EngineStream, now_s: float) -> str:
    header, requests, run_length_s = stream.reference.header, stream.run_length_requests, stream.run_length_s(now_s)
    if requests is None:
        return f"how often chance does this is not known: nothing of the reference, of {header.requests} requests, can be compared"
    days = "" if run_length_s is None else f", {run_length_s / 86400:.2g} days at the present rate{_shorter(stream, now_s)}"
    delays = [
        f"{delay:.0f} for a shift of {shift} sd"
        for shift in ("0.3", "0.5", "1")
        if (delay := min((each for w in stream.watches.values() if (each := w.column.delay_requests.get(shift))), default=None))
    ]
    taking = f"; such alarms take on average {', '.join(delays)} requests" if delays else ""
    return (
        f"by chance this happens once in {requests:.2g} requests at least{days},"
        f" {qualified(header.about.span_hours)}{taking} ({CONSECUTIVE} disjoint windows of {WINDOW}; a reference of"
        f" {header.requests} requests{_too_few(header)})"
    )


def _too_few(header: Header) -> str:
    """What is to be said where values depend on each other so much that the reference's own error may raise alarms, too."""
    independent = min((column.m / column.dependence for column in header.columns if not column.untested), default=math.inf)
    if independent >= FEWEST:
        return ""
    return f", which tell as much as {independent:.0f} independent ones: of fewer than {FEWEST} it may come more often"


def _shorter(stream: EngineStream, now_s: float) -> str:
    """What is to be said where the engine is asked more often than its reference was made for, so that chance comes sooner."""
    aim, rate, run_length_s = stream.reference.header.aim, stream.rate.per_second(now_s), stream.run_length_s(now_s)
    if rate is None or run_length_s is None or run_length_s >= aim.days * 86400.0:
        return ""
    return (
        f" (not the {aim.days:g} days that it was made for: {rate:.2g} requests a second are looked at, not"
        f" {aim.requests_per_second:.2g}; make one with --rate {rate:.2g})"
    )


def _collapse(engine: str, model: str, equal: EqualAnswers | None, narrow: _Watched) -> Finding:
    """Critical where prompts differ and answers do not; a warning where prompts may be the same, or answers only scatter less."""
    evidence = ([] if equal is None else [_equal_sentence(equal)]) + [_narrow_sentence(*each) for each in narrow]
    since_s = [] if equal is None else [equal.since_s]
    hidden = equal is not None and equal.same_prompt is None
    return Finding(
        cause="output_collapse",
        subject=engine,
        severity="critical" if equal is not None and equal.same_prompt is False else "warning",
        since_s=min(since_s + [watch.alarms[Check.STABILITY] for _, watch in narrow]),
        summary=f"engine {engine}, {model}: its answers are {'all alike' if equal else 'far more alike than they were'}",
        evidence=tuple(evidence),
        advice=_COLLAPSE_ADVICE,
        not_visible=("whether prompts differ: the log-sum-exp of the first token is not compared",) if hidden else (),
        model=model,
    )


_PROMPTS: Final = {
    True: "; so does the log-sum-exp before the first token: one prompt again and again, or weights that heed none",
    False: ", and the prompts differ",
    None: "",
}


def _equal_sentence(equal: EqualAnswers) -> Evidence:
    text = (
        f"of the last {equal.requests} requests all have the same entropy and surprisal, {equal.too_many} are too many"
        f"{_PROMPTS[equal.same_prompt]}"
    )
    return Evidence(text=text, metric="aie_drift_alarm")


def _narrow_sentence(statistic: Statistic, watch: StatisticWatch) -> Evidence:
    ratio, least = watch.stability_ratio, watch.column.deviation_low / watch.column.deviation
    now = "before the agent was restarted, requests" if ratio is None else "the last thousand requests"
    times = "far less than the reference" if ratio is None else f"{ratio:.2f} times as much as the reference"
    text = (
        f"{statistic.name}: {now} scatter {times}, which replayed never scattered less than {least:.2f} times; half is too little"
    )
    return Evidence(text=text, metric="aie_drift_output_stability_ratio")


def _nan_sentence(told: NanAnswers) -> Evidence:
    """As it was when it was told last: the finding is shown for a while after that."""
    if not told.answers:
        text = f"{told.too_large} of {told.entropies} entropies that came are none, no float32 holds them: a tenth are too many"
        return Evidence(text=text, metric="aie_engine_output_entropy_nats")
    signs = [f"numbers that hooks dropped as none: {told.dropped:.0f}"] if told.dropped else []
    signs += [f"entropies that no float32 holds: {told.too_large}"] if told.too_large else []
    text = (
        f"{told.answers} answers in a row had no entropy, {ANSWERS_WITHOUT_NUMBERS} are too many; with the last"
        f" {told.last_ones} of them came {', '.join(signs)}"
    )
    return Evidence(text=text, metric="aie_hooks_dropped_total" if told.dropped else "aie_engine_output_entropy_nats")


def nan_finding(engine: str, signs: NanSigns) -> Finding:
    """Of an engine with signs of NaN."""
    evidence = []
    if signs.in_layers:
        text = f"{signs.in_layers:.0f} values of watched layers were NaN or infinite"
        evidence.append(Evidence(text=text, metric="aie_engine_activation_nonfinite_total"))
    evidence += [] if signs.answers is None else [_nan_sentence(signs.answers)]
    return Finding(
        cause="nan_logits",
        subject=engine,
        severity="critical",
        since_s=signs.since_s or 0.0,
        summary=f"engine {engine}: its model gives NaN",
        evidence=tuple(evidence),
        advice=_NAN_ADVICE,
    )
