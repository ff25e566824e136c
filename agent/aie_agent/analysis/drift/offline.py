"""The verdict on a recorded stream: the same watches as live, a request a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from aie_agent.analysis.drift import span
from aie_agent.analysis.drift.chance import beyond_extremes, windows_beyond
from aie_agent.analysis.drift.collapse import first_equal, together
from aie_agent.analysis.drift.reference import Column, Reference
from aie_agent.analysis.drift.rule import CONSECUTIVE, WINDOW
from aie_agent.analysis.drift.watch import Check, StatisticWatch


class StatisticVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Of one statistic. Distances are 0 to 1; `windows_beyond` of the `windows` were at the threshold or above. `windows_outside`
    hold too many values outside `usual_low` to `usual_high`, or far beyond all of the reference's: five in a row are an alarm, also
    of what is `untested`. `unseen` values were far beyond all of the reference's, of those in complete windows; none are counted of
    what is `untested`. `check` is what raised the first alarm. `delay_requests` is by shift in standard deviations; null takes more
    than a million."""

    alarm: bool
    first_alarm_request: int | None
    check: str | None
    windows: int
    windows_beyond: int
    windows_outside: int
    unseen: int
    distance_last: float | None
    distance_largest: float | None
    threshold: float
    nonfinite: int
    output_stability: float | None
    dependence: float
    delay_requests: dict[str, float | None]
    untested: str
    usual_low: float
    usual_high: float


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What `aie-agent drift --json` prints. `first_alarm_request` counts from 1, and is the request at which the alarm began.
    `unsteady` are statistics without an alarm of which far more windows are beyond the threshold than chance gives: a finding too.
    `evaluations` are the windows that were compared, of all statistics. `run_length_requests` is how many requests pass between
    false alarms, all statistics together, at least; `run_length_days` the same at `requests_per_second`: the stream's own rate, or,
    where it says no times, the one that the reference was made for; null where nothing can be compared. They hold for traffic as in
    the `reference_hours` of the recording (null: unknown)."""

    alarm: bool
    first_alarm_request: int | None
    statistic: str | None
    check: str | None
    unsteady: tuple[str, ...]
    evaluations: int
    run_length_requests: float | None
    run_length_days: float | None
    requests_per_second: float
    rate_is_of_stream: bool
    state: str
    requests: int
    reference_requests: int
    reference_hours: float | None
    reference_sha256: str
    rule: str
    per_statistic: dict[str, StatisticVerdict]
    warnings: tuple[str, ...]


UNSTEADY_WINDOWS: Final = 4
UNSTEADY_CHANCE: Final = 1e-5
"""From so many windows beyond the threshold on, where chance gives as many of all with this probability, a stream without an alarm
is unsteady: over streams, and over references, whose error all windows share (chance.py)."""

RULE = f"{CONSECUTIVE} consecutive disjoint windows of {WINDOW} requests"


@dataclass(slots=True)
class _Alarm:
    request: int
    check: Check


def judge(reference: Reference, stream: Mapping[str, Sequence[float]], hours: float | None = None) -> Verdict:
    """The verdict on a stream that has a column for each of the reference's; others are passed over. `hours` is how long it took,
    where that is known. Raises ValueError where a column is missing, or columns are of different lengths."""
    columns = {column.name: column for column in reference.header.columns}
    missing = [name for name in columns if name not in stream]
    if missing:
        raise ValueError(f"columns missing: {', '.join(missing)} (there are: {', '.join(stream)})")
    lengths = {len(stream[name]) for name in columns}
    if len(lengths) > 1:
        raise ValueError("columns of different lengths")
    verdicts: dict[str, StatisticVerdict] = {}
    alarms: dict[str, _Alarm] = {}
    for name, column in columns.items():
        verdicts[name], alarm = _judge_one(StatisticWatch(column, reference.values[name]), stream[name])
        if alarm is not None:
            alarms[name] = alarm
    _add_equal(first_equal(columns, stream), columns, verdicts, alarms)
    first = min(alarms, key=lambda name: alarms[name].request, default=None)
    requests, header = lengths.pop(), reference.header
    unsteady = tuple(name for name, column in columns.items() if _is_unsteady(column, verdicts[name]))
    is_compared = any(column.tells for column in columns.values())
    rate = requests / hours / 3600.0 if hours else header.aim.requests_per_second
    days = header.run_length_requests / rate / 86400.0 if is_compared and rate else None
    enough = first is not None or (is_compared and requests >= WINDOW * CONSECUTIVE)
    return Verdict(
        alarm=first is not None,
        first_alarm_request=None if first is None else alarms[first].request,
        statistic=first,
        check=None if first is None else str(alarms[first].check),
        unsteady=unsteady,
        evaluations=sum(each.windows for each in verdicts.values()),
        run_length_requests=header.run_length_requests if is_compared else None,
        run_length_days=days,
        requests_per_second=rate,
        rate_is_of_stream=bool(hours),
        state="ok" if enough else "not_enough_data",
        requests=requests,
        reference_requests=header.requests,
        reference_hours=header.about.span_hours,
        reference_sha256=header.sha256,
        rule=RULE,
        per_statistic=verdicts,
        warnings=tuple(
            filter(
                None,
                (
                    *header.warnings,
                    span.warning(header.about.span_hours),
                    _sooner(reference, rate, days),
                    *(_unsteady(name, columns[name], verdicts[name]) for name in unsteady),
                    *_passed_over(columns, stream),
                ),
            )
        ),
    )


def _sooner(reference: Reference, rate: float, days: float | None) -> str:
    """Where the stream comes so fast that false alarms come sooner than the reference was made to keep; else empty."""
    aim = reference.header.aim
    if days is None or days >= aim.days or rate <= aim.requests_per_second:
        return ""
    return (
        f"not the {aim.days:g} days that the reference was made for: {rate:.2g} requests a second came, not"
        f" {aim.requests_per_second:.2g}; make one with --rate {rate:.2g}"
    )


def _add_equal(
    request: int | None, columns: Mapping[str, Column], verdicts: dict[str, StatisticVerdict], alarms: dict[str, _Alarm]
) -> None:
    """What is of all statistics of answers together is the alarm of each, where none of its own came before."""
    for name in together(columns) if request is not None else ():
        if request is not None and (name not in alarms or alarms[name].request > request):
            alarms[name] = _Alarm(request, Check.CONSTANT)
            change = {"alarm": True, "first_alarm_request": request, "check": str(Check.CONSTANT)}
            verdicts[name] = msgspec.structs.replace(verdicts[name], **change)


def _is_unsteady(column: Column, verdict: StatisticVerdict) -> bool:
    """Whether more windows are beyond the threshold than chance gives, and never enough in a row, or more values far beyond all
    that the reference has. Chance gives none that leave a constant."""
    if verdict.alarm:
        return False
    if verdict.untested:
        return column.distinct == 1 and verdict.windows_outside >= UNSTEADY_WINDOWS
    return _comes_and_goes(column, verdict) or _is_far_out(column, verdict)


def _comes_and_goes(column: Column, verdict: StatisticVerdict) -> bool:
    beyond, windows = verdict.windows_beyond, verdict.windows
    if beyond < UNSTEADY_WINDOWS:
        return False
    together = column.false_alarm if column.dependence > 1.0 else 0.0  # where they are independent, Smirnov's tail knows it better
    return windows_beyond(beyond, windows, column.m, together) <= UNSTEADY_CHANCE


def _is_far_out(column: Column, verdict: StatisticVerdict) -> bool:
    """Whether more values are beyond all of the reference's than chance gives, with any distribution. Of values that depend on each
    other there are as many fewer."""
    n, k, m = (count / column.dependence for count in (verdict.windows * WINDOW, verdict.unseen, column.m))
    return k >= UNSTEADY_WINDOWS and beyond_extremes(n, k, m) <= UNSTEADY_CHANCE


def _unsteady(name: str, column: Column, verdict: StatisticVerdict) -> str:
    """What is said of one that is."""
    beyond = f"{verdict.windows_beyond} of {verdict.windows} windows are beyond the threshold"
    if verdict.untested:
        beyond = f"{verdict.windows_outside} windows hold too many values that differ from {verdict.usual_high:.4g}"
    elif not _comes_and_goes(column, verdict):
        n = verdict.windows * WINDOW
        return (
            f"{name}: {verdict.unseen} of {n} values ({verdict.unseen / n:.2%}) are beyond all of the reference's, where"
            f" {2 / (column.m + 1):.2%} are expected at most: a few requests are far out"
        )
    return (
        f"{name}: {beyond}, though never {CONSECUTIVE} in a"
        " row: what comes and goes, such as a part of the traffic, is no alarm by the rule"
    )


def _passed_over(columns: Mapping[str, Column], stream: Mapping[str, Sequence[float]]) -> list[str]:
    extra = [name for name in stream if name not in columns]
    return [f"not in the reference, and not compared: {', '.join(extra)}"] if extra else []


def _judge_one(watch: StatisticWatch, values: Sequence[float]) -> tuple[StatisticVerdict, _Alarm | None]:
    first: _Alarm | None = None
    largest: float | None = None
    for request, value in enumerate(values, 1):
        before = watch.windows
        began = watch.take(value, float(request))
        if began and first is None:
            first = _Alarm(request, began[0])
        if watch.windows > before and watch.last is not None:
            largest = max(largest or 0.0, watch.last.distance)
    column = watch.column
    verdict = StatisticVerdict(
        alarm=first is not None,
        first_alarm_request=None if first is None else first.request,
        check=None if first is None else str(first.check),
        windows=watch.windows,
        windows_beyond=watch.windows_beyond,
        windows_outside=watch.windows_outside,
        unseen=watch.unseen,
        distance_last=None if watch.last is None else watch.last.distance,
        distance_largest=largest,
        threshold=column.threshold,
        nonfinite=watch.nonfinite,
        output_stability=watch.stability_ratio,
        dependence=column.dependence,
        delay_requests=column.delay_requests,
        untested=column.untested,
        usual_low=watch.bounds.low,
        usual_high=watch.bounds.high,
    )
    return verdict, first
