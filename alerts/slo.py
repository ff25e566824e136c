"""Objectives to Prometheus rules: error ratios over several windows, and alerts on how fast the budget is spent. Pure.

The method is that of Google's SRE workbook, chapter 5 (multi-window, multi-burn-rate): an alert needs the budget to be spent
`factor` times too fast over a long window, and still so over a short one. With little traffic one bad event is a large share: so
`least_bad_events` must have been bad within the long window.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from aie_alerts.scale import duration_s

RATIO: Final = "job_engine_model:aie_slo_bad_events_per_aie_slo_events:ratio_rate{window}"
EVENTS: Final = "job_engine_model:aie_slo_events:rate{window}"
DOWN: Final = "job_engine:aie_slo_down:ratio_avg{window}"
UP: Final = "job_engine:aie_engine_up:max"
REQUESTS: Final = "job_engine_model:aie_slo_requests:rate{window}"
KNOWN: Final = "job_instance_engine:aie_engine_up:known"
_KNOWN: Final = f"""\
max by (job, instance, engine) (aie_engine_up)
or max by (job, instance, engine) (last_over_time({KNOWN}[1h])) and on (job, instance) up == 0"""
"""What each engine was when its agent was last read, for as long as that agent does not answer: a host that died says nothing."""
_UP: Final = f"""\
max by (job, engine) (
  aie_engine_up
  or 0 * {KNOWN} and on (job, instance) max_over_time(up[2m]) == 0
  or 0 * (last_over_time(aie_engine_up[1h]) == 1) unless on (job, instance) max_over_time(up[5m])
    and on () max_over_time(up[1m] offset 4m)
)"""
"""1 while a replica lives. Two minutes without an answer are a host that is down; less is an agent that is restarted. A target that
has been gone for five minutes, as of a pod that was evicted, took its engine with it; less is a pod that is replaced. Where nothing
at all was read five minutes ago no target went: Prometheus itself was restarted."""
_FORGOTTEN: Final = "1h"
"""A time objective ends so long after the last sample of its engine: its agent has forgotten it, or was taken out itself."""

_RUNBOOK: Final = (
    '{{ with query "aie_agent_info" | sortByLabel "instance" }}http://{{ . | first | label "instance" }}/runbooks/NAME'
    "{{ else }}runbooks/NAME.md{{ end }}"
)
"""The page on any agent that lives: an objective is of no single host."""

_BY: Final = "job, engine, model"
_LONG_S: Final = 3 * 3600.0
"""Windows from here on are computed once in two minutes: they hardly move."""

HEADER: Final = """\
# Generated from alerts/objectives.toml by alerts/build.py: change it there.
#
# Per objective the share of bad events over each window, and alerts on how fast the error budget of 30 days is spent. Latency and
# errors need nothing but the page of an engine, read by an agent or by Prometheus itself; availability needs an agent, which says
# whether an engine lives (aie_engine_up), and Prometheus, which says whether the agent's host does (up). Replicas of one name count
# together; `job` stays, so an engine that is read both ways is there twice and never added.
#
# False alarms: by the method none that the budget does not feel: an alert says that so much of it is gone. The guard keeps single
# bad requests of a quiet night from being one. Of availability: an agent that does not answer for more than two minutes while its
# engine, the only one of its name, serves on, or whose target is gone for more than five; an engine that was taken away on purpose,
# until an hour after its agent forgot it, or for two hours where its agent went with it (scaled to nothing, a job with a new name).
groups:
"""


class Slo(NamedTuple):
    """One objective: `bounds_seconds` of a latency, outcomes of requests, or neither for the time in which nothing is up."""

    name: str
    alert: str
    title: str
    metric: str
    objective: float
    bounds_seconds: tuple[float, ...] = ()
    bad_outcomes: tuple[str, ...] = ()
    good_outcomes: tuple[str, ...] = ()
    requests: str = ""
    """Where events are parts of requests, as tokens are: the counter of the requests, of which so many must be bad."""

    @property
    def promise(self) -> str:
        """What was promised, in words."""
        share = f"{self.objective * 100:g} %"
        if self.bounds_seconds:
            return f"{share} within {self.bounds_seconds[0]:g} s"
        return share if self.bad_outcomes else f"{share} of the time"


class Burn(NamedTuple):
    """A pair of windows, as PromQL durations, and how much too fast the budget must be spent over both."""

    severity: str
    factor: float
    long: str
    short: str
    wait: str


class Objectives(NamedTuple):
    """The whole file."""

    slos: tuple[Slo, ...]
    burns: tuple[Burn, ...]
    least_bad_events: int


def parse(text: str) -> Objectives:
    """Of the TOML text. Raises ValueError for what is no objective: a share outside 0..1, an unknown or missing key."""
    table = tomllib.loads(text)
    try:
        slos = tuple(_slo(each) for each in table["slo"])
        burns = tuple(Burn(**{("wait" if key == "for" else key): value for key, value in each.items()}) for each in table["burn"])
        least = int(table["least_bad_events"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"objectives: {error}") from error
    for slo in slos:
        if not 0 < slo.objective < 1:
            raise ValueError(f"objectives: {slo.name}: {slo.objective} is no share between 0 and 1")
        if slo.bad_outcomes and not slo.good_outcomes:
            raise ValueError(f"objectives: {slo.name}: bad outcomes of what? good_outcomes is missing")
    return Objectives(slos, burns, least)


def _slo(table: dict[str, Any]) -> Slo:
    return Slo(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})


def rules(objectives: Objectives) -> str:
    """The rule file, as YAML."""
    windows = sorted({window for burn in objectives.burns for window in (burn.long, burn.short)}, key=duration_s)
    short = [window for window in windows if duration_s(window) < _LONG_S]
    long = [window for window in windows if duration_s(window) >= _LONG_S]
    parts = [HEADER, *_group("aie-slo-records", "30s", _records(objectives, short, first=True))]
    parts += _group("aie-slo-records-long", "2m", _records(objectives, long))
    alerts = [_alert(slo, burn, objectives) for slo in objectives.slos for burn in objectives.burns]
    alerts += [_not_measured(slo) for slo in objectives.slos if slo.bounds_seconds]
    parts += _group("aie-slo", "", alerts)
    return "".join(parts)


def _group(name: str, interval: str, rules_: Sequence[str]) -> Iterator[str]:
    yield f"  - name: {name}\n"
    if interval:
        yield f"    interval: {interval}\n"
    yield "    rules:\n"
    yield from rules_


def _records(objectives: Objectives, windows: Sequence[str], *, first: bool = False) -> list[str]:
    found = []
    if first:
        found += [_record(KNOWN, _KNOWN, ""), _record(UP, _UP, "")]
    for slo in objectives.slos:
        for window in windows:
            if slo.bounds_seconds or slo.bad_outcomes:
                events, ratio = _latency(slo, window) if slo.bounds_seconds else _outcomes(slo, window)
                found.append(_record(EVENTS.format(window=window), events, slo.name))
                found.append(_record(RATIO.format(window=window), ratio, slo.name))
                if slo.requests and any(window == burn.long for burn in objectives.burns):
                    requests = f"sum by ({_BY}) (rate({slo.requests}[{window}]))"
                    found.append(_record(REQUESTS.format(window=window), requests, slo.name))
            else:
                down = f"1 - avg_over_time({UP}[{window}]) and last_over_time({UP}[{_FORGOTTEN}])"
                found.append(_record(DOWN.format(window=window), down, slo.name))
    return found


def _latency(slo: Slo, window: str) -> tuple[str, str]:
    """Events a second, and the share of those beyond the bound. Only replicas whose page has the bound count, in both."""
    good = f"{slo.metric}_bucket{{le=~{json.dumps(_bounds(slo))}}}"
    events = (
        f"sum by ({_BY}) (\n  rate({slo.metric}_count[{window}])\n  and on (job, instance, engine, model) rate({good}[{window}])\n)"
    )
    ratio = (
        f"1 - sum by ({_BY}) (rate({good}[{window}]))\n"
        f"/ on ({_BY}) ({EVENTS.format(window=window)}{{slo={json.dumps(slo.name)}}} > 0)"
    )
    return events, ratio


def _bounds(slo: Slo) -> str:
    """A regular expression of the bounds, as pages write them: 1 is also 1.0."""
    texts = [text for bound in slo.bounds_seconds for text in dict.fromkeys((f"{bound:g}", str(float(bound))))]
    return "|".join(text.replace(".", r"\.") for text in texts)


def _outcomes(slo: Slo, window: str) -> tuple[str, str]:
    """Events a second, and the share of bad ones: all of them where none was ever good, and none where none was ever bad. Which
    engines count good ones is docs/engines.md's: whoever counts errors does."""

    def of(outcomes: Sequence[str]) -> str:
        matcher = json.dumps("|".join(outcomes))
        return f"sum by ({_BY}) (rate({slo.metric}{{outcome=~{matcher}}}[{window}]))"

    events = f"{EVENTS.format(window=window)}{{slo={json.dumps(slo.name)}}}"
    bad = f"(\n  {of(slo.bad_outcomes)}\n  or on ({_BY}) 0 * {events}\n)"
    return of((*slo.good_outcomes, *slo.bad_outcomes)), f"{bad}\n/ on ({_BY}) ({events} > 0)"


def _record(name: str, expression: str, slo: str) -> str:
    lines = [f"- record: {name}", *(f"  {line}" for line in _expression(expression))]
    if slo:
        lines += ["  labels:", f"    slo: {slo}"]
    return "".join(f"      {line}\n" for line in lines)


def _expression(text: str) -> list[str]:
    """The key of a rule, in one line where it fits."""
    return ["expr: |-", *(f"  {line}" for line in text.split("\n"))] if "\n" in text else [f"expr: {text}"]


def _alert(slo: Slo, burn: Burn, objectives: Objectives) -> str:
    is_time = not (slo.bounds_seconds or slo.bad_outcomes)
    selector = f"{{slo={json.dumps(slo.name)}}}"
    name = DOWN if is_time else RATIO
    long, short = (name.format(window=window) + selector for window in (burn.long, burn.short))
    limit = f"{burn.factor:g} * {round(1 - slo.objective, 9):g}"
    lines = [f"{long} > {limit}", f"and {short} > {limit}"]
    if not is_time:
        events = EVENTS.format(window=burn.long) + selector
        least = f"{objectives.least_bad_events} / {duration_s(burn.long):g}"
        lines.append(f"and {long} * {events} >= {least}")
        if slo.requests:  # `unless`: an engine that does not count its requests is judged by its events alone
            lines.append(f"unless {long} * {REQUESTS.format(window=burn.long)}{selector} < {least}")
    who = "{{ $labels.engine }}" if is_time else "{{ $labels.engine }} ({{ $labels.model }})"
    bad = f"Over {burn.long} {{{{ $value | humanizePercentage }}}} were bad; the objective is {slo.promise}."
    return _rule(
        slo.alert,
        "\n".join(lines),
        [f"for: {burn.wait}", "keep_firing_for: 5m"],
        {"severity": burn.severity, "component": "slo", "action": "investigate", "window": burn.long},
        f"{slo.title}: engine {who} misses its objective",
        f"{bad} {_pace(burn)}",
    )


def _pace(burn: Burn) -> str:
    if burn.factor > 1:
        return f"The error budget of 30 days is spent {burn.factor:g} times too fast or faster, now as well."
    return "At this rate nothing is left of the error budget when its 30 days end."


def _not_measured(slo: Slo) -> str:
    return _rule(
        "AieSloNotMeasured",
        f"sum by (job, instance, engine, model) (rate({slo.metric}_count[1h])) > 0\n"
        f"unless on (job, instance, engine, model) {slo.metric}_bucket{{le=~{json.dumps(_bounds(slo))}}}",
        ["for: 30m"],
        {"severity": "info", "component": "slo", "action": "set_objective", "slo": slo.name},
        f"{slo.title}: the objective of engine {{{{ $labels.engine }}}} is not measured",
        f"The page of engine {{{{ $labels.engine }}}} has no bucket at {slo.bounds_seconds[0]:g} s: no share of bad events can be"
        ' told of its {{ $value | printf "%.2f" }} events a second. Set another bound in alerts/objectives.toml.',
    )


def _rule(alert: str, expression: str, times: Sequence[str], labels: Mapping[str, str], summary: str, description: str) -> str:
    lines = [
        f"- alert: {alert}",
        *(f"  {line}" for line in (*_expression(expression), *times)),
        "  labels:",
        *(f"    {name}: {value}" for name, value in labels.items()),
        "  annotations:",
        f"    summary: '{summary}'",
        f"    description: '{description}'",
        f"    runbook_url: '{_RUNBOOK.replace('NAME', alert)}'",
    ]
    return "".join(f"      {line}\n" for line in lines)
