"""How much of what was promised is left: a row for each objective, all of them alike."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.objectives import OBJECTIVES, Objective
from dashboards.table import Board, Panel, Query, Row, Step, lines, stat

_OF: Final = "engine, model"
_NAME: Final = "{{engine}} {{model}} ({{job}})"
_BUDGET: Final = "30d"
"""For so long a budget is, as the alerts have it; where Prometheus keeps less, for what it keeps."""
_GRID: Final = "15m"
"""When an engine and its host were seen last is known to this: closer costs more, over thirty days."""
_FORGOTTEN_S: Final = 3600
_LEFT: Final = (Step(None, "red"), Step(0, "orange"), Step(0.25, "green"))
_WINDOWS: Final = (("5m", "orange"), ("1h", "blue"), ("6h", "purple"))
_NOTHING: Final = "nothing was asked in this time, or the engine's page has no bucket at the bound: alerts/objectives.toml"
_NO_PROCESS: Final = "no engine's process is known"
_POINT: Final = "\\\\."
"""A point in a regular expression in a string of PromQL."""


def _bounds(objective: Objective) -> str:
    """A matcher of buckets: each bound as pages write it, and 1 is also 1.0."""
    texts = (text for bound in objective.bounds_s for text in dict.fromkeys((f"{bound:g}", str(float(bound)))))
    return f'le=~"{"|".join(text.replace(".", _POINT) for text in texts)}"'


def good(objective: Objective, over: str) -> str:
    """The share of requests, or of time, in which it was kept; nothing where there was nothing to keep it for.

    Replicas of one name serve together. Those whose pages lack the bound count neither as good nor as bad.
    """
    if objective.of_time:
        return f"avg_over_time({_live(objective.metric)}[{over}:{'5m' if over == _BUDGET else '1m'}])"
    if objective.bad:
        ended = _ended(objective, (*objective.good, *objective.bad), over)
        return p.share(f"({_ended(objective, objective.good, over)} or 0 * {ended})", ended)  # none ended well: 0, and not nothing
    within = p.increase(f"{objective.metric}_bucket", p.MODEL, _bounds(objective), over)
    all_ = f"{p.increase(f'{objective.metric}_count', p.MODEL, over=over)} and on (job, instance, engine, model) {within}"
    return p.share(p.by(_OF, within), p.by(_OF, all_))


def _live(metric: str) -> str:
    """Whether each engine has a replica. Of a host that does not answer nothing is told: whom it had, was down.

    Two minutes are more than an agent takes to start again. As the alert's, an engine is its host's no more an hour after its agent
    has forgotten it: one that was removed or renamed is not down with the host, nor is one that was not there yet.
    """
    told = p.of(metric, p.ENGINE)
    up = p.of("up", p.JOB)
    had = p.by("instance, engine", _last(f"0 * last_over_time({told}[{_GRID}]) + time()"), "max")
    read = p.by("instance", _last(f"0 * (max_over_time({up}[{_GRID}]) == 1) + time()"), "max")
    its = f"{had} > on (job, instance) group_left () ({read} - {_FORGOTTEN_S})"
    down = f"0 * ({its}) and on (job, instance) max_over_time({up}[2m]) == 0"
    return p.by("engine", f"{told} or {down} or {_gone(told, up)}", "max")


def _gone(told: str, up: str) -> str:
    """Whose target Prometheus asks no more, as of a pod that was evicted, and who lived: as the alert's, down for an hour.

    Within five minutes a pod is replaced. Where nothing at all was read five minutes ago, of whatever job, no target went:
    Prometheus itself was restarted.
    """
    lived = f"0 * (last_over_time({told}[{_FORGOTTEN_S}s]) == 1)"
    return f"{lived} unless on (job, instance) max_over_time({up}[5m]) and on () max_over_time(up[1m] offset 4m)"


def _last(moment: str) -> str:
    """The latest of these moments, looked for once in each grid of the budget's time."""
    return f"last_over_time(({moment})[{_BUDGET}:{_GRID}])"


def _ended(objective: Objective, outcomes: tuple[str, ...], over: str) -> str:
    matcher = f'outcome=~"{"|".join(outcomes)}"'
    return p.by(_OF, p.increase(objective.metric, p.MODEL, matcher, over))


def burn(objective: Objective, over: str) -> str:
    """How many times as fast as may be the budget goes: at 1 it is gone at the end of its time."""
    return f"(1 - {good(objective, over)}) / {objective.budget:g}"


def _called(objective: Objective) -> str:
    return "{{engine}} ({{job}})" if objective.of_time else _NAME


def _empty(objective: Objective) -> str:
    return _NO_PROCESS if objective.of_time else _NOTHING


def _runbooks(objective: Objective) -> tuple[str, str]:
    """Of the alert that it is missed, and of the one that nothing tells whether it is."""
    return objective.alert, "AieSloNotMeasured"


def _left(objective: Objective, width: int) -> Panel:
    return stat(
        objective.title,
        f"How much of the error budget of 30 days is left, of what was promised: {objective.promise}? Below 0 it is not kept.",
        "percentunit",
        Query(f"1 - {burn(objective, _BUDGET)}", _called(objective)),
        width=width,
        height=5,
        steps=_LEFT,
        empty=_empty(objective),
        runbooks=_runbooks(objective),
    )


def _row(objective: Objective) -> Row:
    kept = stat(
        "Kept",
        f"In which share of the time shown, or of its requests, was it so? Promised are {objective.promise}.",
        "percentunit",
        Query(good(objective, "$__range"), _called(objective)),
        width=6,
        height=8,
        steps=(Step(None, "red"), Step(objective.target, "green")),
        empty=_empty(objective),
    )
    burning = lines(
        "How fast the budget goes",
        "How many times as fast as may be? At 14.4 over an hour, or 6 over six hours, somebody is called.",
        "none",
        *(Query(burn(objective, over), f"{over} {_called(objective)}") for over, _ in _WINDOWS),
        colours=tuple(colour for _, colour in _WINDOWS),
        steps=(Step(None, "transparent"), Step(1, "text"), Step(14.4, "red")),
        width=9,
        empty=_empty(objective),
        runbooks=_runbooks(objective),
    )
    return Row(f"{objective.title}: {objective.promise}", (kept, burning, _behind(objective)))


def _behind(objective: Objective) -> Panel:
    """What it is measured by."""
    if objective.of_time:
        expr = p.by("instance, engine", p.of(objective.metric, p.ENGINE), "max")
        return lines(
            *("Up", "When was which engine up?", "none"),
            Query(expr, p.OF_ENGINE),
            width=9,
            most=1,
            runbooks=("engine_down", "AieEngineRestarts"),
            empty=_NO_PROCESS,
        )
    if objective.bad:
        expr = p.total(objective.metric, "instance, outcome", p.MODEL, 'outcome!="ok"')
        return lines(
            *("What did not end well", "How do requests end that do not end well?", "reqps"),
            Query(expr, "{{outcome}} ({{instance}})"),
            width=9,
            runbooks=("error_rate", "requests_rejected"),
        )
    quantiles = (
        Query(p.quantile(at, objective.metric, _OF, p.MODEL), f"p{at * 100:g} {_NAME}") for at in (0.5, 0.95, objective.target)
    )
    return lines(
        *("How long it takes", "How far is it from the bound, which is the dashed line?", "s"),
        *quantiles,
        colours=("blue", "purple", "orange"),
        steps=(Step(None, "transparent"), Step(objective.bounds_s[0], "red")),
        width=9,
    )


def _widths(number: int) -> list[int]:
    """Of so many panels in one line."""
    each, more = divmod(24, number)
    return [each + (place < more) for place in range(number)]


_ANSWER: Final = Row(
    "What is left of the error budgets of the last 30 days",
    tuple(_left(objective, width) for objective, width in zip(OBJECTIVES, _widths(len(OBJECTIVES)), strict=True)),
)

SLO: Final = Board(
    "slo",
    "aie / Objectives",
    "Is what was promised kept, and how much may still go wrong?",
    ("job", "instance", "engine", "model"),
    (_ANSWER, *(_row(objective) for objective in OBJECTIVES)),
    range="now-24h",
    refresh="5m",  # shares of hours and of days hardly move, and cost more than all else that boards ask
)
