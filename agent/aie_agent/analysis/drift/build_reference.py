"""Makes a reference of recorded traffic: what of it is taken, what its statistics can tell, how rarely they are wrong, and what
is warned of. What is too little, or not fit, is refused.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Final

import msgspec

from aie_agent.analysis.drift import calibrate
from aie_agent.analysis.drift.critical import critical_integer
from aie_agent.analysis.drift.hard_checks import LEAST_OUTSIDE, is_number
from aie_agent.analysis.drift.independence import is_not_compared, too_dependent
from aie_agent.analysis.drift.reference import (
    FEWEST,
    FEWEST_DISTINCT,
    MOST,
    About,
    Aim,
    Column,
    Header,
    Reference,
    UnfitReferenceError,
)
from aie_agent.analysis.drift.reference_file import hash_of
from aie_agent.analysis.drift.rule import ALPHA, WINDOW
from aie_agent.analysis.drift.span import spread
from aie_agent.analysis.drift.stability import BLOCKS, moments

ENOUGH: Final = 2000
"""Requests of a reference. With fewer there is a warning."""

LARGEST_THRESHOLD: Final = 0.5
"""Of the distance, which a shift by 1.3 standard deviations has. A statistic that needs more to keep false alarms rare is not
compared: it would say nothing, and that would look like "no drift"."""

_STRETCHES: Final = 200
"""Replayed to see how little traffic may scatter."""


def build(columns: Mapping[str, Sequence[float]], about: About, aim: Aim | None = None, seed: int = 0) -> Reference:
    """A reference of the columns, each a statistic, a row a request, in the order in which they came. Raises
    UnfitReferenceError."""
    aim = aim or Aim()
    lengths = {len(column) for column in columns.values()}
    if not columns or lengths == {0}:
        raise UnfitReferenceError("the reference is empty")
    if min(lengths) < FEWEST:
        raise UnfitReferenceError(f"a reference of {min(lengths)} requests is too small: {FEWEST} at least, better {ENOUGH}")
    for name, column in columns.items():
        bad = next((index for index, value in enumerate(column) if not is_number(value)), None)
        if bad is not None:
            raise UnfitReferenceError(
                f"{name}, request {bad + 1}: {column[bad]} in a reference: a model that gives it is broken already"
            )
    taken = {name: spread(column, MOST) for name, column in columns.items()}
    probability = WINDOW / (aim.requests * len(taken))
    made = tuple(_column(name, values, probability, seed) for name, values in taken.items())
    if all(1 < column.distinct < FEWEST_DISTINCT for column in made):
        raise UnfitReferenceError("; ".join(f"{column.name}: {column.untested}" for column in made))
    chance = math.fsum(column.false_alarm for column in made)
    header = Header(
        about=about,
        aim=aim,
        requests=min(map(len, taken.values())),
        columns=made,
        run_length_requests=min(calibrate.LONGEST_RUN_LENGTH, WINDOW / chance if chance else math.inf),
        replayed_requests=calibrate.REPLAYED,
        warnings=tuple(_warnings(made, max(lengths), aim)),
    )
    values = {name: array("d", sorted(column)) for name, column in taken.items()}
    return Reference(msgspec.structs.replace(header, sha256=hash_of(header, values)), values)


def _column(name: str, values: Sequence[float], probability: float, seed: int) -> Column:
    ordered = sorted(values)
    m = len(ordered)
    counts = [len(list(group)) for _, group in groupby(ordered)]
    edge = m // 100
    deviation = moments(values).deviation
    critical_p01 = critical_integer(m, WINDOW, ALPHA)
    seen = calibrate.replay(values, seed)
    scatters = _scatters(values, seen.dependence, seed)
    tail = calibrate.tail(seen, m)
    critical = min(m * WINDOW + 1, max(critical_p01, math.ceil(tail.threshold(probability) * m * WINDOW)))
    false_alarm = tail.probability(critical / (m * WINDOW))
    untested = "" if len(counts) >= FEWEST_DISTINCT else f"{len(counts)} distinct values, fewer than {FEWEST_DISTINCT}"
    untested = untested or too_dependent(m, seen.dependence.values)
    untested = untested or _insensitive(critical / (m * WINDOW), false_alarm / probability, seen.dependence.values)
    shifts = () if untested else calibrate.SHIFTS
    return Column(
        name=name,
        m=m,
        distinct=len(counts),
        largest_share=max(counts) / m,
        deviation=deviation,
        low=ordered[edge],
        high=ordered[m - 1 - edge],
        critical=critical,
        critical_p01=critical_p01,
        outside=max(LEAST_OUTSIDE, seen.most_outside + 2),
        deviation_low=min(scatters),
        deviation_high=max(scatters),
        dependence=seen.dependence.values,
        false_alarm=0.0 if untested else false_alarm,
        delay_requests={f"{shift:g}": calibrate.delay(ordered, values, shift * deviation, critical, seed) for shift in shifts},
        untested=untested,
    )


def _insensitive(threshold: float, too_often: float, dependence: float) -> str:
    """Why a statistic cannot be compared as rarely wrong as is asked for, by its threshold and by how many times too often it would
    be; empty where it can."""
    if threshold <= LARGEST_THRESHOLD and too_often <= 1.0 + 1e-9:
        return ""
    return (
        f"not enough data: {dependence:.0f} of its values tell as much as one that depends on no other, so that any threshold would"
        " alarm too often or see no shift; record longer, or ask for fewer --days"
    )


def _scatters(values: Sequence[float], depends: calibrate.Dependence, seed: int) -> list[float]:
    """Standard deviations of stretches of the traffic, as long as those that `output_stability` is taken of, or half of it: as they
    came, and replayed. Where most of the scatter is of a few values, how many of them a stretch has is chance, and there are too
    few stretches to show how few it may be."""
    length = min(WINDOW * BLOCKS, len(values) // 2)
    came = (values[start : start + length] for start in range(0, len(values) - length + 1, WINDOW))
    return [moments(stretch).deviation for stretch in chain(came, calibrate.streams(values, depends, length, seed, _STRETCHES))]


def _warnings(columns: Sequence[Column], rows: int, aim: Aim) -> list[str]:
    warnings = []
    m = min(column.m for column in columns)
    if m < ENOUGH:
        warnings.append(f"{m} requests are few: with {ENOUGH} and more, shifts are found sooner and false alarms are rarer")
    if rows > MOST:
        warnings.append(f"of {rows} requests {MOST} were taken, in blocks spread over all of them: more tell nothing more")
    for column in columns:
        if column.untested:
            warnings.append(is_not_compared(column))
        elif column.m / column.dependence < FEWEST:
            independent = column.m / column.dependence
            warnings.append(
                f"{column.name}: its values depend on each other, {column.m} tell as much as {independent:.0f} independent ones"
            )
        if column.critical > column.critical_p01 and not column.untested:
            times = column.critical / column.critical_p01
            warnings.append(f"{column.name}: its threshold is {times:.2f} times that of p < 0.01, for the same reason")
    return warnings + _claimed(columns, aim)


def _claimed(columns: Sequence[Column], aim: Aim) -> list[str]:
    if aim.requests <= calibrate.LONGEST_RUN_LENGTH or not any(column.tells for column in columns):
        return []
    asked, claimed = aim.requests, calibrate.LONGEST_RUN_LENGTH
    return [f"asked for one false alarm in {asked:.2g} requests: no more than one in {claimed:.0e} is claimed"]
