"""Whether answers are all alike: everything that is measured of an answer, but its length, equal many times in a row, together.

False alarms. One statistic alone is equal again and again where nothing is wrong: the length where clients ask for one token, the
log-sum-exp before the answer where they ask one thing. Entropy and surprisal are means of real numbers; that both are equal a
hundred times in a row, and as often as independent ones would be once in 1e12 requests, happens where the same tokens come again.
A statistic that is constant in the reference (a canary) says nothing of that, and is left out. What is equal together is as rare as
what is rarest of it by itself, so the statistic that may be equal for the fewest requests says how many are too many.
Where the prompt is the same too (its log-sum-exp is), that may be the client's doing; it is told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.drift.hard_checks import EqualValues, equal_in_a_row
from aie_agent.analysis.drift.reference import Column
from aie_agent.analysis.drift.watch import StatisticWatch
from aie_agent.request_values import STATISTICS, tells_of_answers

PROMPT: Final = next(each.name for each in STATISTICS if each.of_prompt)
"""The statistic that is equal where the prompt is."""


class EqualAnswers(NamedTuple):
    """So many requests in a row, since when it was too many, and whether the prompt was the same as well; None where that is not
    known."""

    requests: int
    too_many: int
    since_s: float
    same_prompt: bool | None


def together(columns: Mapping[str, Column]) -> tuple[str, ...]:
    """Those of a reference's statistics that must all be equal: what tells of answers, and is not equal always."""
    return tuple(name for name, column in columns.items() if tells_of_answers(name) and column.distinct > 1)


def equal_answers(watches: Mapping[str, StatisticWatch]) -> EqualAnswers | None:
    """None where answers differ."""
    own = [watches[name] for name in together({name: watch.column for name, watch in watches.items()})]
    needed = [watch.too_many_equal for watch in own if watch.too_many_equal is not None]
    since_s = [watch.equal_since_s for watch in own if watch.equal_since_s is not None]
    requests = min((watch.equal_in_a_row for watch in own), default=0)
    if not needed or not since_s or requests < min(needed):
        return None
    prompt = watches.get(PROMPT)
    too_many = min(needed)
    return EqualAnswers(
        requests, too_many, max(since_s), None if prompt is None else prompt.equal_in_a_row >= min(requests, too_many)
    )


def alike_since_s(watches: Mapping[str, StatisticWatch]) -> dict[str, float]:
    """The statistics that are all alike together, each with since when it is too many; none where answers differ."""
    equal = equal_answers(watches)
    if equal is None:
        return {}
    return dict.fromkeys(together({name: watch.column for name, watch in watches.items()}), equal.since_s)


def first_equal(columns: Mapping[str, Column], stream: Mapping[str, Sequence[float]]) -> int | None:
    """The request, from 1, of a recorded stream from which on answers are all alike; None where they never are."""
    names = together(columns)
    most = [equal_in_a_row(columns[name].largest_share) for name in names]
    needed = min((each for each in most if each is not None), default=None)
    if needed is None:
        return None
    rows = EqualValues[tuple[float, ...]]()
    for request, row in enumerate(zip(*(stream[name] for name in names), strict=True), 1):
        if rows.add(row) >= needed:
            return request
    return None
