"""What traffic looked like when its reference was recorded: sorted values of each statistic, what they were recorded of, and what
the rule does on them. Immutable: a file is written once, carries the hash of all that is in it, and is never updated by itself.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path
from typing import Final

import msgspec

from aie_agent.analysis.drift import calibrate
from aie_agent.analysis.drift.critical import critical_integer
from aie_agent.analysis.drift.hard_checks import LEAST_OUTSIDE, is_number
from aie_agent.analysis.drift.rule import ALPHA, WINDOW
from aie_agent.analysis.drift.span import hours_between, spread
from aie_agent.analysis.drift.stability import BLOCKS, moments

FEWEST: Final = 500
"""Requests of a reference. With fewer, its own error alone raises alarms."""

ENOUGH: Final = 2000
"""With fewer there is a warning."""

MOST: Final = 20_000
"""More tell nothing more: of a longer recording, blocks are taken, spread over all of it."""

FEWEST_DISTINCT: Final = 20
"""Distinct values from which on a distribution function says something."""

LARGEST_THRESHOLD: Final = 0.5
"""Of the distance, which a shift by 1.3 standard deviations has. A statistic that needs more to keep false alarms rare is not
compared: it would say nothing, and that would look like "no drift"."""

FEWEST_INDEPENDENT: Final = 200
"""Of fewer, what calibration knows of the traffic is chance: of two populations in spells of a hundred requests, 5000 requests tell
as much as 63 to 147 independent ones, and false alarms came a hundred times as often as calibrated to."""

_STRETCHES: Final = 200
"""Replayed to see how little traffic may scatter."""

_MAGIC: Final = b"aie drift reference 1\n"
_LARGEST_FILE_BYTES: Final = 64 << 20


class UnfitReferenceError(ValueError):
    """A reference that cannot be made or read: one sentence that says why."""


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What a reference was recorded of. `revision` is empty where it is not known; then any of the model will do. `hours` is how
    long it was recorded, where that is known otherwise than by `recorded_from` and `recorded_to`."""

    model: str
    revision: str = ""
    quantisation: str = ""
    sampling: str = ""
    traffic_class: str = "default"
    recorded_from: str = ""
    recorded_to: str = ""
    built_at: str = ""
    hours: float | msgspec.UnsetType = msgspec.UNSET  # unset is not written: files of before keep their hash

    @property
    def span_hours(self) -> float | None:
        """How long it was recorded; None where that is not known."""
        if isinstance(self.hours, msgspec.UnsetType):
            return hours_between(self.recorded_from, self.recorded_to)
        return self.hours


class Aim(msgspec.Struct, frozen=True, kw_only=True):
    """How rare false alarms shall be: one in so many days, all statistics together, at so many requests a second that are looked
    at."""

    days: float = 30.0
    requests_per_second: float = 1.0

    @property
    def requests(self) -> float:
        """Requests in that time."""
        return self.days * 86400.0 * self.requests_per_second


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic of a reference, of `m` values with this standard deviation.

    `critical` is the integer from which on a window counts, `critical_p01` the one of p < 0.01, which it is never below. `outside`
    values of a window beyond `low` and `high` (1st and 99th percentile) are too many. `deviation_low` and `deviation_high` are the
    smallest and the largest standard deviation of stretches as long as those of `output_stability`, replayed ones too. `dependence`
    is how many values tell as much as one that depends on none. `false_alarm` is the probability of five windows beyond the
    threshold. `delay_requests` is by shift in standard deviations, null where it takes more than a million. `untested` says why it
    cannot be compared, empty where it can; values that it never had are noticed all the same (bounds.py).
    """

    name: str
    m: int
    distinct: int
    largest_share: float
    deviation: float
    low: float
    high: float
    critical: int
    critical_p01: int
    outside: int
    deviation_low: float
    deviation_high: float
    dependence: float
    false_alarm: float
    delay_requests: dict[str, float | None]
    untested: str = ""

    @property
    def tells(self) -> bool:
        """Whether it can say that nothing changed: by its distribution, or by being constant as ever."""
        return not self.untested or self.distinct == 1

    @property
    def threshold(self) -> float:
        """The critical distance, 0 to 1."""
        return self.critical / (self.m * WINDOW)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Everything but the values. `run_length_requests` is how many requests pass between false alarms, all statistics together;
    `replayed_requests` is how many of each statistic were replayed to find that."""

    about: About
    aim: Aim
    requests: int
    columns: tuple[Column, ...]
    run_length_requests: float
    replayed_requests: int
    warnings: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Reference:
    """A header, and the sorted values of each of its columns."""

    header: Header
    values: Mapping[str, Sequence[float]]

    @property
    def model(self) -> str:
        """The model that it was recorded of."""
        return self.header.about.model


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
    return Reference(msgspec.structs.replace(header, sha256=_hash(header, values)), values)


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
    untested = untested or _too_dependent(m, seen.dependence.values)
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


def _too_dependent(m: int, dependence: float) -> str:
    """Why a statistic cannot be compared whose values depend on each other so much that they tell little; empty where it can."""
    if m / dependence >= FEWEST_INDEPENDENT:
        return ""
    needed = dependence * FEWEST_INDEPENDENT
    do = f"so record {needed:.0f} requests or more"
    if needed > MOST:
        do = f"{needed:.0f} requests, of which {MOST} are taken at most: make a reference of each kind of traffic by itself"
    return (
        f"not enough data: its {m} values depend on each other, and tell as much as {m / dependence:.0f} that do not; at least"
        f" {FEWEST_INDEPENDENT} are needed, {do}"
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
            warnings.append(f"{column.name} is not compared: {column.untested}")
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


def save(reference: Reference, path: Path) -> None:
    """Writes a new file, read-only: all of it, or none where that fails. Who is killed meanwhile leaves a beginning of it, which
    `load` refuses. Raises FileExistsError where there is one, and OSError."""
    content = _MAGIC + msgspec.json.encode(reference.header) + b"\n" + _data(reference.header, reference.values)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
    except BaseException as error:
        path.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def replace(reference: Reference, path: Path) -> None:
    """Puts it in the place of what is there, at one moment. Raises OSError."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    save(reference, beside)
    try:
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def is_reference(path: Path) -> bool:
    """Whether a file begins as references do. Raises UnfitReferenceError for a pipe, of which the beginning would be gone, and
    OSError."""
    if path.is_fifo():
        raise UnfitReferenceError("a pipe, which cannot be read twice: give a file")
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def load(path: Path) -> Reference:
    """Reads a file. Raises OSError, and UnfitReferenceError for one that is no reference, or not as it was written."""
    with path.open("rb") as file:
        content = file.read(_LARGEST_FILE_BYTES + 1)
    if len(content) > _LARGEST_FILE_BYTES:
        raise UnfitReferenceError("too large for a reference")
    head, newline, data = content.removeprefix(_MAGIC).partition(b"\n")
    if not content.startswith(_MAGIC) or not newline:
        raise UnfitReferenceError("no drift reference (make one with `aie-agent baseline build`)")
    try:
        header = msgspec.json.decode(head, type=Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UnfitReferenceError(f"its header cannot be read: {error}") from error
    if len(data) != 8 * sum(column.m for column in header.columns):
        raise UnfitReferenceError("cut off, or something was added to it")
    values: dict[str, Sequence[float]] = {}
    for column in header.columns:
        values[column.name] = _floats(data[: 8 * column.m])
        data = data[8 * column.m :]
    if _hash(header, values) != header.sha256:
        raise UnfitReferenceError("changed since it was written: its hash is another")
    return Reference(header, values)


def _floats(data: bytes) -> array[float]:
    """Little-endian on every machine."""
    values = array("d", data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _data(header: Header, values: Mapping[str, Sequence[float]]) -> bytes:
    return b"".join(_floats(array("d", values[column.name]).tobytes()).tobytes() for column in header.columns)


def _hash(header: Header, values: Mapping[str, Sequence[float]]) -> str:
    blank = msgspec.structs.replace(header, sha256="")
    return hashlib.sha256(msgspec.json.encode(blank) + b"\n" + _data(header, values)).hexdigest()
