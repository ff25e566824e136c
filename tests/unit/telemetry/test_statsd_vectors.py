"""The conformance vectors: every one is run, or a deliberate difference whose own outcome is asserted, or does not apply.

The vectors state what a server shows, so samples are aggregated here as a server would: counters by sum(value / rate), gauges by
their last level with deltas applied, sets by their members, the others by weight.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from statsd_differences import DIFFERENCES, DOCUMENT, NOT_APPLICABLE, Outcome, with_sections

from aie_agent.sources.statsd_series import verdict
from aie_telemetry.statsd import Parsed, Parser, Sample, Tags


@dataclass(frozen=True)
class Vector:
    """One row of the file."""

    id: int
    input: str
    settings: str
    kind: str
    name: str
    tags: str
    value: str

    @property
    def datadog(self) -> bool:
        return "datadog_extensions=true" in self.settings or self.settings == "all tag styles on"

    @property
    def packet(self) -> bytes:
        text = self.input.replace("\\\\", "\0").replace("\\n", "\n").replace("\\r", "\r").replace("\0", "\\")
        lines: list[str] = []
        for line in text.split("\n"):
            repeated = re.fullmatch(r"(.*) \(x(\d+)\)", line)
            lines += [repeated[1]] * int(repeated[2]) if repeated else [line]
        packet = "\n".join(lines)
        if quoted := re.fullmatch(r'tag text "(.*)"', packet):
            return f"any,{quoted[1]}:1|c".encode()
        packet = re.sub(r" \((?:name|bucket) only\)", ":1|c", packet)
        return re.sub(r" \(backslash-n\)$", "", packet).encode()

    def run(self) -> list[Parsed]:
        return list(Parser(datadog=self.datadog).packet(self.packet))


def _vectors() -> dict[int, Vector]:
    with (Path(__file__).parent / "statsd_vectors.tsv").open(newline="") as file:
        rows = csv.reader((line for line in file if not line.startswith("# ")), delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return {int(row[0]): Vector(int(row[0]), *row[2:]) for row in rows}


VECTORS: Final = _vectors()
OUTCOMES: Final[dict[int, Outcome]] = {id_: outcome for row in DIFFERENCES for id_, outcome in row.outcomes.items()}
RUN: Final = sorted(VECTORS.keys() - OUTCOMES.keys() - NOT_APPLICABLE.keys())

_TYPES: Final = {
    "counter": {"counter"},
    "gauge": {"gauge"},
    "set": {"set"},
    "timing": {"timing"},
    "histogram": {"histogram"},
    "distribution": {"distribution"},
    "observer": {"timing", "histogram", "distribution"},
    "any": {"counter"},
}


@dataclass
class Series:
    """What a server would show of one series."""

    name: str
    type: str
    tags: Tags
    level: float = 0.0
    count: float = 0.0
    sum: float = 0.0
    members: frozenset[str] = frozenset()

    def add(self, sample: Sample) -> None:
        if isinstance(sample.value, str):
            self.members |= {sample.value}
            return
        self.level = self.level + sample.value if sample.delta else sample.value
        self.count += 1 / sample.rate
        self.sum += sample.value / sample.rate

    @property
    def shown(self) -> float:
        return {"counter": self.sum, "gauge": self.level, "set": len(self.members)}.get(self.type, self.sum)


def aggregate(samples: list[Sample]) -> list[Series]:
    series: dict[tuple[str, str, Tags], Series] = {}
    for sample in samples:
        key = (sample.name, sample.type, sample.tags)
        series.setdefault(key, Series(*key)).add(sample)
    return list(series.values())


def check(vector: Vector) -> None:
    """Holds what the vector's line becomes against what the row states."""
    parsed = vector.run()
    samples = [sample for one in parsed for sample in one.samples]
    refusals = [refusal for one in parsed for refusal in one.refusals]
    kind, _, also = vector.kind.partition(" ")
    if "error" in vector.kind:
        assert refusals
    if kind == "error" and not also:
        assert samples == []
        return
    assert not any(one.ignored for one in parsed)
    (series,) = aggregate(samples)
    assert series.type in _TYPES[also.removeprefix("then ") if kind == "error" else kind]
    assert series.name == vector.name or (not vector.name and kind == "any")
    assert dict(series.tags) == dict(item.split("=", 1) for item in vector.tags.removesuffix(" (empty)").split(",") if item)
    if kind != "any":
        _check_value(series, vector.value)


def _check_value(series: Series, stated: str) -> None:
    """`stated` begins with the value, or names count, sum or value, or says that something is accepted."""
    named = {name: float(value) for name, value in re.findall(r"\b(count|sum|value)=(-?[\d.]+)", stated)}
    if observation := re.search(r"one observation of (\d+)", stated):
        named = {"count": 1.0, "sum": float(observation[1])}
    if leading := re.match(r"(?:first line error .*, then )?(-?\d+(?:\.\d+)?)", stated):
        named = {"value": float(leading[1])}
    assert named or stated.startswith("accepted"), f"no expectation can be read from {stated!r}"
    for name, value in named.items():
        shown = series.shown if name == "value" else getattr(series, name)
        assert shown == pytest.approx(value, rel=1e-12), name


def test_every_vector_is_in_exactly_one_place() -> None:
    assert len(VECTORS) == 125
    ids = [id_ for row in DIFFERENCES for id_ in row.outcomes]
    assert len(ids) == len(set(ids))
    assert not OUTCOMES.keys() & NOT_APPLICABLE.keys()
    assert (OUTCOMES.keys() | NOT_APPLICABLE.keys()) <= VECTORS.keys()
    assert len(RUN) + len(OUTCOMES) + len(NOT_APPLICABLE) == 125


_TWO_TAG_SETS: Final = ({"host": "localhost"}, {"host": "localhost", "region": "west"})
BY_HAND: Final[dict[int, list[tuple[str, str, dict[str, str], float]]]] = {
    71: [("test_counter", "counter", tags, 1) for tags in _TWO_TAG_SETS],
    85: [("valid_multiple_mixed", type_, {}, 1) for type_ in ("counter", "timing", "set", "gauge")],
}
"""Rows that state several series: name, type, tags, value."""


@pytest.mark.parametrize("id_", [id_ for id_ in RUN if id_ not in BY_HAND])
def test_as_stated(id_: int) -> None:
    check(VECTORS[id_])


@pytest.mark.parametrize("id_", BY_HAND)
def test_several_series(id_: int) -> None:
    series = aggregate([sample for one in VECTORS[id_].run() for sample in one.samples])
    assert [(one.name, one.type, dict(one.tags), one.shown) for one in series] == BY_HAND[id_]


@pytest.mark.parametrize("id_", OUTCOMES)
def test_a_difference_is_what_its_row_says(id_: int) -> None:
    parsed = VECTORS[id_].run()
    outcome = Outcome(
        tuple(sample for one in parsed for sample in one.samples),
        tuple(refusal.reason for one in parsed for refusal in one.refusals),
        tuple(one.ignored for one in parsed if one.ignored),
    )
    assert outcome == OUTCOMES[id_]


@pytest.mark.parametrize("id_", OUTCOMES)
def test_a_difference_still_is_one(id_: int) -> None:
    """A row stays in the table only as long as the vector would fail."""
    with pytest.raises((AssertionError, ValueError, KeyError)):
        check(VECTORS[id_])


@pytest.mark.parametrize(("line", "reason"), [item for row in DIFFERENCES for item in row.agent_refuses.items()])
def test_a_difference_that_the_agent_makes_is_what_its_row_says(line: str, reason: str) -> None:
    (sample,) = Parser().line(line.encode()).samples
    assert verdict(sample)[1] == reason


def test_every_difference_is_shown() -> None:
    assert all(row.outcomes or row.agent_refuses for row in DIFFERENCES)


def test_packed_values_are_refused_in_telegrafs_dialect() -> None:
    """Vector 124 is stated for both dialects; its row shows the other one."""
    (parsed,) = Parser(datadog=False).packet(VECTORS[124].packet)
    assert (parsed.samples, [refusal.reason for refusal in parsed.refusals]) == ([], ["packed"])


def test_the_document_holds_the_tables() -> None:
    text = DOCUMENT.read_text()
    assert text == with_sections(text), "run python tests/unit/telemetry/statsd_differences.py"
