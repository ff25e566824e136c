"""Whether something holds, and since when: what every cause that looks at a rate or a level asks.

A look at one number is cheap and nearly always ends it; only where the number is bad is the series walked back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.lock_contention import Episode, Unbroken, episode
from aie_agent.analysis.window import rate
from aie_agent.series import Series

ENDS_AT: Final = 0.5
"""What is found goes on until it is below so much of what it began with."""


def ease(view: View, cause: str, engine: str) -> float:
    """What the limits of a cause are multiplied by: 1, and `ENDS_AT` where it is found already. What stays near a limit crosses it
    again and again: that is one finding, and not one each time."""
    return 1.0 if view.held_since_s(cause, engine) is None else ENDS_AT


def live(all_series: Iterable[Series], now_s: float) -> list[Series]:
    """Those whose last value still counts at `now_s`."""
    return [series for series in all_series if series.valid_until_s >= now_s]


def rising(
    all_series: Iterable[Series],
    begins: float,
    window_s: float,
    now_s: float,
    held_since_s: float | None,
    unbroken: Unbroken | None = None,
) -> Episode | None:
    """Whether the first current one of these counters rose by at least `begins` a second over `window_s`, in most of its steps
    too, and since then never by less than half of that; or it was `unbroken`. Before the counter is so
    old nothing else is said. `held_since_s` is since when the cause is found already, which may be longer than the store
    remembers; None where it is not."""
    current = live(all_series, now_s)
    if not current:
        return None
    now = rate(current[:1], now_s - window_s, now_s)
    if now is None or now < begins / 4:
        return None
    return episode(current[0], begins, begins * ENDS_AT, window_s, begins, unbroken, held_since_s)


def limit(found: Episode, begins: float, written: str) -> str:
    """The limit of what `rising` found, as evidence says it: it goes on until it is below half of what it began with."""
    return limit_of(found.mean >= begins, written)


def limit_of(would_begin: bool, written: str) -> str:
    """The limit of what would be found anew as well, or only goes on (`ease`)."""
    return f"limit {written}" if would_begin else f"limit {written}, and half of that for as long as it goes on"


def level_since(series: Series, is_bad: Callable[[float], bool], for_s: float, now_s: float) -> float | None:
    """Since when a gauge is bad without a break, where that is at least `for_s`; None else, and where its values lie further apart
    than half of `for_s`: then nobody knows what it was between them."""
    if series.valid_until_s < now_s or not is_bad(series.value):
        return None
    since_s, after_s = now_s, now_s
    for time_s, value in reversed(list(series.ring.since(0.0))):
        if not is_bad(value) or after_s - time_s > for_s / 2:
            break
        since_s = after_s = time_s
    return since_s if now_s - since_s >= for_s else None


def mean_of(all_series: Iterable[Series], start_s: float, now_s: float, least: int) -> float | None:
    """The mean of a gauge's readings from `start_s` to `now_s`; None with fewer than `least` of them."""
    values: Sequence[float] = [
        value for series in live(all_series, now_s) for time_s, value in series.ring.since(start_s) if time_s >= start_s
    ]
    return sum(values) / len(values) if len(values) >= least else None
