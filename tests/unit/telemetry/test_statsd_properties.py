"""What holds for every sample that can be written, and for every line of bytes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aie_telemetry.statsd import (
    MAX_LINE_BYTES,
    MAX_PARTS,
    MAX_TAGS,
    MIN_RATE,
    REASONS,
    TYPES,
    Dialect,
    Parsed,
    Parser,
    Sample,
)
from aie_telemetry.statsd_encode import encode, encode_series

DIALECTS: tuple[Dialect, ...] = ("telegraf", "datadog")
# Text with all that means something in a line, so that it is not left to chance.
TEXT = st.text(st.one_of(st.sampled_from(":|,=#@._-+ \t\n\r\v\x1c\x85\u2028\0\ud800{}[]/1cge"), st.characters()), max_size=12)
NUMBERS = st.one_of(st.floats(), st.integers().map(float), st.floats(0, 1e6))
RATES = st.one_of(st.just(1.0), st.floats(MIN_RATE, 1.0), st.floats())
ANY_SAMPLES = st.builds(
    Sample,
    name=TEXT,
    type=st.one_of(st.sampled_from(sorted(TYPES.values())), TEXT),
    value=st.one_of(NUMBERS, TEXT),
    tags=st.dictionaries(TEXT, TEXT, max_size=3).map(lambda tags: tuple(sorted(tags.items()))),
    rate=RATES,
    delta=st.booleans(),
)
PLAIN = st.text(st.characters(categories=["L", "N"], include_characters="_-/{}[]#@+"), min_size=1, max_size=12)
LIKELY_SAMPLES = st.builds(
    Sample,
    name=PLAIN,
    type=st.sampled_from(sorted(TYPES.values())),
    value=st.one_of(st.floats(0, allow_infinity=False), PLAIN),
    tags=st.dictionaries(PLAIN, PLAIN, max_size=4).map(lambda tags: tuple(sorted(tags.items()))),
    rate=st.floats(MIN_RATE, 1.0),
    delta=st.booleans(),
)


def _encoded(sample: Sample, dialect: Dialect) -> str | None:
    try:
        return encode(sample, dialect)
    except ValueError:
        return None


@pytest.mark.parametrize("dialect", DIALECTS)
@given(sample=st.one_of(ANY_SAMPLES, LIKELY_SAMPLES))
@settings(max_examples=1000, deadline=None)
def test_what_encode_writes_parses_back(dialect: Dialect, sample: Sample) -> None:
    """encode raises ValueError or nothing; and what it writes is the same sample to every parser that may read it."""
    line = _encoded(sample, dialect)
    if line is None:
        return
    assert "\n" not in line
    for datadog in (True, False) if dialect == "telegraf" else (True,):
        assert Parser(datadog=datadog).line(line.encode()) == Parsed([sample], [])


@pytest.mark.parametrize("dialect", DIALECTS)
@given(sample=LIKELY_SAMPLES)
def test_most_plain_samples_can_be_written(dialect: Dialect, sample: Sample) -> None:
    """So that the test before is not empty: without separators, with a sign only where its type has one, and the right type of
    value, a sample is written."""
    fits = isinstance(sample.value, str) == (sample.type == "set") and (sample.type == "gauge" or not sample.delta)
    signed = isinstance(sample.value, str) and sample.value.startswith(("+", "-"))
    signed = signed or (isinstance(sample.value, float) and math.copysign(1, sample.value) < 0)
    signed = signed and sample.type not in ("counter", "histogram", "distribution")
    event = sample.name.startswith("_e{")
    comment = dialect == "datadog" and any(key.startswith("#") for key, _ in sample.tags)
    if fits and not signed and not event and not comment:
        assert _encoded(sample, dialect) is not None


@pytest.mark.parametrize("dialect", DIALECTS)
@given(name=TEXT, tags=st.lists(st.tuples(TEXT, TEXT), max_size=4).map(tuple))
def test_a_series_is_written_as_within_a_sample(dialect: Dialect, name: str, tags: tuple[tuple[str, str], ...]) -> None:
    try:
        head, tail = encode_series(name, tags, dialect)
    except ValueError:
        return
    assert encode(Sample(name, "counter", 1.5, tags), dialect) == f"{head}:1.5|c{tail}"


PIECES = st.sampled_from(
    [
        "a", "a.b", "_e", "_e{", "_e{1,1}:", "_sc|", "x y", ",", "k=v", "=", "k=", ":", "|", "1", "-1", "+1", "4.7E-5", "1e999",
        "nan", "0x1p3", "1_0", "٣", "c", "g", "s", "ms", "h", "d", "C", "@0.5", "@", "@0", "@1e-7", "@nan", "#", "#k:v", "#k",
        "#,k:v,", "c:id", "e:x", "card:low", "T165", " ", "\t", "\r", "\n", "\0", "\ufeff", "é", "\U0001f600", "\u2028",
    ]
)  # fmt: skip
LINES = st.one_of(
    st.lists(PIECES, max_size=16).map(lambda pieces: "".join(pieces).encode()),
    st.binary(max_size=64),
    st.tuples(st.sampled_from([b"a:", b"a,k=v:", b"_e{3,3}:", b"a:1|c|"]), st.binary(max_size=24)).map(b"".join),
)


def _check(parsed: Parsed) -> None:
    for sample in parsed.samples:
        assert sample.type in TYPES.values()
        assert isinstance(sample.value, str) if sample.type == "set" else math.isfinite(sample.value)
        assert MIN_RATE <= sample.rate <= 1
        assert sample.name
        assert not any(character in sample.name for character in ". \t\n:,")
        assert list(sample.tags) == sorted(dict(sample.tags).items())
        assert all(key for key, _ in sample.tags)
        assert not sample.delta or sample.type == "gauge"
        assert len(sample.tags) <= MAX_TAGS
    for refusal in parsed.refusals:
        assert refusal.reason in REASONS
        assert len(refusal.text) <= 80
        assert str(refusal)
    assert parsed.ignored in (None, "event", "service_check")
    assert len(parsed.samples) <= MAX_PARTS


@pytest.mark.parametrize("datadog", [False, True])
@given(packet=st.one_of(LINES, st.lists(LINES, max_size=4).map(b"\n".join)))
@example(b"a:1|c\n" * 3)
@example(b"a:" + b"1|c:" * 3000)
@example(b"a," + b"k=v," * 2000 + b":1|c")
@example(b"|:|:|")
@example(b":")
@settings(max_examples=1000, deadline=None)
def test_no_bytes_raise(datadog: bool, packet: bytes) -> None:
    for parsed in Parser(datadog=datadog).packet(packet):
        _check(parsed)


@pytest.mark.parametrize("datadog", [False, True])
@given(lines=st.lists(LINES, max_size=8), order=st.randoms(use_true_random=False))
def test_a_line_means_the_same_whatever_came_before(datadog: bool, lines: list[bytes], order: Any) -> None:
    """The memos change the cost of a line, never its meaning."""
    fresh = {line: Parser(datadog=datadog).line(line) for line in lines}
    parser = Parser(datadog=datadog)
    repeated = lines * 3
    order.shuffle(repeated)
    for line in repeated:
        assert parser.line(line) == fresh[line]


HEADS = ["a", "a,k=v", "a.b", " a", "a ", "é", "a|#k", "a|c"]
TAILS = ["c", "g", "s", "ms", "h|@0.1", "c|#k:v", "h|@0", "c ", "g|", "b:5|c"]
PLAIN_NUMBERS = ["1", "0", "007", "1.50", "1.", ".5", "-1", "+1", "1e3", "9" * 15, "9" * 16, "0.1", "123456789.123456789"]


@pytest.mark.parametrize("datadog", [False, True])
def test_lines_that_differ_in_their_number_only(datadog: bool) -> None:
    parser = Parser(datadog=datadog)
    for head, tail, number in itertools.product(HEADS, TAILS, [*PLAIN_NUMBERS, *PLAIN_NUMBERS]):
        line = f"{head}:{number}|{tail}".encode()
        assert parser.line(line) == Parser(datadog=datadog).line(line)


def test_encode_writes_nothing_that_no_parser_reads() -> None:
    tags = tuple((f"k{number}", "v") for number in range(MAX_TAGS + 1))
    for sample in (
        Sample("a" * MAX_LINE_BYTES, "counter", 1.0),
        Sample("a", "set", "é" * (MAX_LINE_BYTES // 2)),
        Sample("a", "counter", 1.0, tags),
        Sample("\ud800", "counter", 1.0),
        Sample("a", "set", "\ud800"),
        Sample("a", "counter", 1.0, (("k", "\ud800"),)),
    ):
        for dialect in DIALECTS:
            with pytest.raises(ValueError, match=r"."):
                encode(sample, dialect)


def test_the_limits_hold() -> None:
    parser = Parser()
    (too_long,) = parser.line(b"a:" + b"1" * MAX_LINE_BYTES + b"|c").refusals
    assert too_long.reason == "too_long"
    tags = ",".join(f"k{number}=v" for number in range(MAX_TAGS))
    assert len(parser.line(f"a,{tags}:1|c".encode()).samples) == 1
    for line in (f"a,{tags},more=v:1|c", f"a,{tags}:1|c|#more:v", f"a:1|c|#{tags.replace('=', ':')},more:v"):
        parsed = parser.line(line.encode())
        assert (parsed.samples, [refusal.reason for refusal in parsed.refusals]) == ([], ["too_many_tags"])
    parsed = parser.line(b"a" + b":1|c" * (MAX_PARTS + 5))
    assert (len(parsed.samples), [refusal.reason for refusal in parsed.refusals]) == (MAX_PARTS, ["too_many_parts"])


def test_the_memos_are_bounded() -> None:
    parser = Parser()
    for number in range(20_000):
        parser.line(f"a{number}:1|c".encode())
        parser.line(f"a,k={number}:1|c|#x:{number}".encode())
    assert len(parser._heads) <= 8192
    assert len(parser._shapes) <= 8192
