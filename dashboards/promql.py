"""How boards ask: what their variables choose, and forms that every query shares, so that none adds up what must not be added.

`job` stands in every `by`: an engine that is scraped directly as well as through an agent is two jobs, and never added twice. A
rate is of a counter; a percentile is of the rates of buckets; a share has no value where there is nothing to have a share of.
"""

from __future__ import annotations

from typing import Final

JOB: Final = 'job=~"$job"'
INSTANCE: Final = f'{JOB}, instance=~"$instance"'
ENGINE: Final = f'{INSTANCE}, engine=~"$engine"'
MODEL: Final = f'{ENGINE}, model=~"$model"'
GPU: Final = f'{INSTANCE}, gpu=~"$gpu"'

OF_ENGINE: Final = "{{engine}} ({{instance}})"
OF_HOST: Final = "{{instance}}"
OF_GPU: Final = "GPU {{gpu}} ({{instance}})"


def of(metric: str, scope: str = INSTANCE, extra: str = "") -> str:
    """The series of a metric that the variables choose; `extra` are matchers beside theirs."""
    return f"{metric}{{{scope}{', ' + extra if extra else ''}}}"


def exactly(label: str, value: str) -> str:
    """A matcher."""
    return f'{label}="{value}"'


def rate(metric: str, scope: str = INSTANCE, extra: str = "") -> str:
    """How fast a counter rises, a second."""
    return f"rate({of(metric, scope, extra)}[$__rate_interval])"


def by(labels: str, expr: str, operation: str = "sum") -> str:
    """An aggregation that keeps `job` and the labels named."""
    kept = ", ".join(("job", labels)) if labels else "job"
    return f"{operation} by ({kept}) ({expr})"


def total(metric: str, labels: str, scope: str = INSTANCE, extra: str = "") -> str:
    """The sum of rates of a counter."""
    return by(labels, rate(metric, scope, extra))


def quantile(share: float, histogram: str, labels: str, scope: str = INSTANCE, extra: str = "") -> str:
    """A percentile of what a histogram saw lately, over all that is added up."""
    return f"histogram_quantile({share:g}, {total(f'{histogram}_bucket', f'{labels}, le' if labels else 'le', scope, extra)})"


def share(part: str, whole: str) -> str:
    """A share of what is not nothing."""
    return f"{part} / ({whole} > 0)"


def among(expr: str, labels: str, condition: str) -> str:
    """Those of which a condition holds about the same labels: so a second column of a table has the rows of the first."""
    return f"{expr} and on (job, {labels}) ({condition})"


def top(number: int, expr: str) -> str:
    """The largest, in order. For what is now: over time each moment has others."""
    return f"sort_desc(topk({number}, {expr}))"


def bottom(number: int, expr: str) -> str:
    """The smallest, in order."""
    return f"sort(bottomk({number}, {expr}))"


def had_agents(info: str) -> str:
    """Which jobs had agents in thirty days, by `aie_agent_info` of those asked about.

    Every sample of the last day is looked at, and before that one in a quarter of an hour: all of a month cost several times as
    much. So of a job whose agents lived for less than that, as at a roll-out that failed, it is known for a day.
    """
    return f"({by('', f'last_over_time({info}[1d])', 'group')} or max_over_time({by('', info, 'group')}[30d:15m]))"


def agents_down() -> str:
    """How many agents Prometheus hears nothing of. Of jobs that had agents in thirty days, however long they are silent now: others
    are of engines."""
    return by("", f"({of('up')} == bool 0) and on (job) {had_agents(of('aie_agent_info', JOB))}")


def increase(metric: str, scope: str = INSTANCE, extra: str = "", over: str = "$__range") -> str:
    """By how much a counter rose in the time shown."""
    return f"increase({of(metric, scope, extra)}[{over}])"
