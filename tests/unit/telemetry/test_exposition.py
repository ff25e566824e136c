"""The text format against prometheus_client's parser, in both directions, and against input that is no page."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from aie_telemetry import exposition
from aie_telemetry.exposition import (
    MAX_LABELS,
    MAX_LINE_CHARS,
    HistogramText,
    PageParser,
    PageSample,
    header,
    label_name,
    label_text,
    metric_name,
    number,
)

NAMES = st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,8}", fullmatch=True)
LABEL_NAMES = st.from_regex(r"[a-zA-Z][a-zA-Z0-9_]{0,8}", fullmatch=True)
# No surrogates: a page is UTF-8. No "\r": the reference's parser takes it for white space or a line's end in some places.
VALUES = st.text(st.one_of(st.sampled_from('"\\\n{}=,# \t nN'), st.characters(codec="utf-8", exclude_characters="\r")), max_size=10)
TAGS = st.dictionaries(LABEL_NAMES, VALUES, max_size=4).map(lambda tags: tuple(sorted(tags.items())))
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def _reference(text: str) -> list[PageSample]:
    """As prometheus_client reads a page."""
    return [
        PageSample(sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]


def _same(one: list[PageSample], other: list[PageSample]) -> bool:
    """Equal, NaN included. (The reference gives integers where it can.)"""
    return [(s.name, s.tags, _key(s.value)) for s in one] == [(s.name, s.tags, _key(s.value)) for s in other]


def _key(value: float) -> float | str:
    return "NaN" if math.isnan(value) else value


@given(name=NAMES, tags=TAGS, value=NUMBERS)
@settings(deadline=None, max_examples=300)
def test_what_we_render_the_reference_reads(name: str, tags: tuple[tuple[str, str], ...], value: float) -> None:
    line = f"{name}{label_text(tags)} {number(value)}\n"
    expected = [PageSample(name, tags, value)]
    assert _same(_reference(line), expected)
    assert _same(PageParser().parse(line).samples, expected)


@given(value=NUMBERS)
def test_a_number_reads_back_as_itself(value: float) -> None:
    assert repr(float(number(value))) == repr(value) or value == 0.0


@given(help_=VALUES, kind=st.sampled_from(["counter", "gauge", "histogram", "summary", "untyped"]))
@settings(deadline=None)
def test_headers(help_: str, kind: str) -> None:
    help_ = f"Says {help_}."  # the reference strips
    suffix = "_count" if kind in ("histogram", "summary") else ""
    page = header("aie_x", kind, help_) + f"aie_x{suffix} 1\n"
    (family,) = text_string_to_metric_families(page)
    assert (family.name, family.documentation, family.type) == ("aie_x", help_, "unknown" if kind == "untyped" else kind)
    parsed = PageParser().parse(page)
    assert (parsed.kinds, parsed.bad_lines) == ({"aie_x": kind}, 0)


@given(tags=TAGS, counts=st.lists(st.floats(0, 1e9), min_size=4, max_size=4), total=st.floats(0, 1e12))
@settings(deadline=None)
def test_histograms(tags: tuple[tuple[str, str], ...], counts: list[float], total: float) -> None:
    bounds = (0.005, 1.0, 25.0)
    page = header("aie_h", "histogram", "h") + HistogramText("aie_h", tags, bounds).render(counts, total)
    (family,) = text_string_to_metric_families(page)
    cumulative = [sum(counts[: index + 1]) for index in range(4)]
    buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name == "aie_h_bucket"]
    assert buckets == [*zip(bounds, cumulative[:3], strict=True), (math.inf, cumulative[3])]
    assert {s.name: s.value for s in family.samples if "le" not in s.labels} == {"aie_h_sum": total, "aie_h_count": cumulative[3]}
    assert _same(PageParser().parse(page).samples, _reference(page))


def _line(name: str, space: str, tags: tuple[tuple[str, str], ...], comma: str, value: str, time: str) -> str:
    """A sample as other exporters may write it: space where the format allows it, a comma behind the last label."""
    labels = ",".join(f'{key}{space}={space}"{_escape(text)}"' for key, text in tags)
    braces = "{" + labels + comma + "}" if tags else ""
    return f"{name}{space}{braces} {value}{time}\n"


LINES = st.builds(
    _line,
    NAMES,
    st.sampled_from(["", " ", "\t", "  "]),
    TAGS,
    st.sampled_from(["", ",", " "]),
    st.sampled_from(["1", "-2.5", "+Inf", "-Inf", "NaN", "1e-9", "1E+20", "0x10", "00012"]),
    st.sampled_from(["", " 1700000000000", " -1", "\t1700000000000", " "]),
)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


@given(lines=st.lists(LINES, max_size=5))
@settings(deadline=None, max_examples=300)
def test_what_the_reference_reads_we_read(lines: list[str]) -> None:
    for line in lines:
        try:
            expected = _reference(line)
        except ValueError:
            continue
        parsed = PageParser().parse(line)
        assert _same(parsed.samples, expected)
        assert parsed.bad_lines == 0
    parser = PageParser()
    page = "".join(lines)
    first = parser.parse(page)
    assert _same(parser.parse(page).samples, first.samples)


PAGE = r"""
# HELP http_requests_total Total {of} requests, with \\ and \n in its help.
# TYPE http_requests_total counter
# a comment
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9
metric_without_timestamp_and_labels 12.47
something_weird{problem="division by zero"} +Inf -3982045
braces{a="} 5",b="{x=\"y\"} 6"} 7
empty{} 1
trailing{a="b",} 2
spaced {a = "b" , c="d" } 3
	indented	4
  # TYPE indented gauge
spaced_out	{a="b"}	5
# TYPE rpc_seconds summary
rpc_seconds{quantile="0.5"} 4773
rpc_seconds_sum 1.7560473e+07
rpc_seconds_count NaN
""".lstrip("\n")


def test_a_page_of_all_sorts() -> None:
    parsed = PageParser().parse(PAGE)
    assert _same(sorted(parsed.samples), sorted(_reference(PAGE)))
    assert parsed.bad_lines == 0
    assert parsed.kinds == {"http_requests_total": "counter", "rpc_seconds": "summary", "indented": "gauge"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            'a_bucket{le="0.1"} 8 # {trace_id="KOO5S4vxi0o"} 0.067',
            PageSample("a_bucket", (("le", "0.1"),), 8.0, '{trace_id="KOO5S4vxi0o"} 0.067'),
        ),
        (
            'a_bucket{le="0.1"} 8 1700000000.123 # {} 0.067 1700000000.1',
            PageSample("a_bucket", (("le", "0.1"),), 8.0, "{} 0.067 1700000000.1"),
        ),
        ("a 1 # " + "x" * 256, PageSample("a", (), 1.0, "x" * 256)),
        ("a 1 # " + "x" * 257, PageSample("a", (), 1.0)),
        ('a_total 17 # {t="}"} 1', PageSample("a_total", (), 17.0, '{t="}"} 1')),
        ('a{b=" # "} 1', PageSample("a", (("b", " # "),), 1.0)),
        ('a{b="} # {"} 1', PageSample("a", (("b", "} # {"),), 1.0)),
        ('a{b="x # y"} 1 # {t="z"} 2', PageSample("a", (("b", "x # y"),), 1.0, '{t="z"} 2')),
        ('a{b="x # y"} 1 1700000000', PageSample("a", (("b", "x # y"),), 1.0)),
        ('a{b="\\"} # "} 1', PageSample("a", (("b", '"} # '),), 1.0)),
    ],
)
def test_exemplars_and_what_looks_like_one(line: str, expected: PageSample) -> None:
    """Exemplars are OpenMetrics', which the reference's parser of this format refuses; engines send them all the same."""
    assert PageParser().parse(line + "\n").samples == [expected]


def test_a_counter_of_openmetrics_is_known_by_the_name_of_its_samples() -> None:
    page = "# TYPE a counter\na_total 1\n# TYPE b gauge\nb 2\n# TYPE c_total counter\nc_total 3\n"
    assert PageParser().parse(page).kinds == {"a": "counter", "b": "gauge", "c_total": "counter"}
    assert PageParser().parse(page + "# EOF\n").kinds == {"a_total": "counter", "b": "gauge", "c_total": "counter"}


PIECES = st.sampled_from(["a", "{", "}", '"', "\\", "=", ",", " ", "1", "NaN", "#", " # ", "\n", "# TYPE ", "b"])
GARBAGE = st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=20).map("".join))


@given(text=GARBAGE)
@settings(deadline=None, max_examples=500)
def test_no_text_raises(text: str) -> None:
    parser = PageParser()
    first, second = parser.parse(text), parser.parse(text)
    assert _same(first.samples, second.samples)
    assert (first.kinds, first.bad_lines) == (second.kinds, second.bad_lines)
    lines = sum(1 for line in text.split("\n") if line.strip() and not line.strip().startswith("#"))
    assert len(first.samples) + first.bad_lines == lines


BAD_LINES = ["a", "a{", "a{b", 'a{b="c', 'a{b="c"', 'a{b="c"}', 'a{b="c"} x', "1a 2", "a{b=c} 1", 'a{"b"="c"} 1', "{} 1", "a b c"]


@pytest.mark.parametrize("line", BAD_LINES)
def test_bad_lines_are_counted_and_the_rest_read(line: str) -> None:
    parsed = PageParser().parse(f"x 1\n{line}\ny 2\n")
    assert [sample.name for sample in parsed.samples] == ["x", "y"]
    assert parsed.bad_lines == 1


def _labelled(count: int) -> str:
    return "a{" + ",".join(f'l{index}="x"' for index in range(count)) + "} 1\n"


class _CountingPattern:
    """A compiled pattern that counts how often it is matched."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.matches = 0

    def match(self, text: str, position: int = 0) -> re.Match[str] | None:
        self.matches += 1
        return self._pattern.match(text, position)


@pytest.mark.parametrize("count", [1000, 1_300_000], ids=["within the longest line", "a page of one line"])
def test_labels_without_end_are_not_read_to_their_end(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    labels = _CountingPattern(exposition._LABEL)
    monkeypatch.setattr(exposition, "_LABEL", labels)
    page = PageParser().parse("x 1\n" + _labelled(count) + "y 2\n")
    assert [sample.name for sample in page.samples] == ["x", "y"]
    assert page.bad_lines == 1
    assert labels.matches <= MAX_LABELS + 1


def test_the_most_labels_and_one_more() -> None:
    assert len(PageParser().parse(_labelled(MAX_LABELS)).samples[0].tags) == MAX_LABELS
    assert PageParser().parse(_labelled(MAX_LABELS + 1)).bad_lines == 1
    repeated = "a{" + ",".join(['b="x"'] * 10_000) + "} 1"
    assert PageParser().parse(repeated).bad_lines == 1


def test_the_longest_line_and_a_longer_one() -> None:
    line = 'a{b="' + "x" * (MAX_LINE_CHARS - len('a{b=""} 1')) + '"} 1'
    assert len(line) == MAX_LINE_CHARS
    page = PageParser().parse(f"{line}\n{line}1\n# {line}\n")
    assert (len(page.samples), page.bad_lines) == (1, 2)


@pytest.mark.parametrize("name", ["_SAMPLE_HEAD", "_LABELLED", "_LABEL", "_SPACE_ONLY"])
def test_no_pattern_of_a_line_can_track_back(name: str) -> None:
    """What can give back what it took, time and again, takes time in the square of a hostile line's length. The one `.*` that
    may is bounded by the fixed text behind it."""
    pattern = getattr(exposition, name).pattern.replace("(.*)", "")
    assert not re.search(r"[*+](?<![*]\+)(?![+])", pattern)


def test_a_page_is_left_where_enough_samples_were_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(PageParser, "_line", lambda _self, line: read.append(line) or PageSample("a", (), 1.0))
    page = PageParser().parse("a 1\n" * 1000, max_samples=10)
    assert (len(page.samples), page.bad_lines, page.unread_lines) == (10, 0, 990)
    assert len(read) == 10
    assert PageParser().parse("a 1\n" * 10, max_samples=10).unread_lines == 0
    assert PageParser().parse("a 1\n" * 10 + "a 1", max_samples=10).unread_lines == 1


@pytest.mark.parametrize("line", ["}", "# a comment", "# TYPE a gauge", " "])
def test_lines_that_are_no_samples_are_not_looked_at_without_end(line: str) -> None:
    page = PageParser().parse(f"{line}\n" * 1000, max_samples=10)
    assert not page.samples
    assert len(page.kinds) + page.bad_lines <= 40
    assert page.unread_lines == 960


@given(name=st.text(max_size=10))
def test_any_text_becomes_a_valid_name(name: str) -> None:
    _reference(f'{metric_name(name)}{{{label_name(name)}="x"}} 1\n')
    assert metric_name(metric_name(name)) == metric_name(name)
    assert label_name(label_name(name)) == label_name(name)
    assert not label_name(name).startswith("__")


@pytest.mark.parametrize(
    ("name", "metric", "label"),
    [
        ("a.b-c", "a_b_c", "a_b_c"),
        ("9x", "_9x", "_9x"),
        ("", "_", "_"),
        ("__x", "__x", "_x"),
        ("a:b", "a:b", "a_b"),
    ],
)
def test_names(name: str, metric: str, label: str) -> None:
    assert (metric_name(name), label_name(name)) == (metric, label)


def test_a_page_of_labels_is_left_in_time() -> None:
    """8 MB of lines with sixty labels each took 200 MB while they were read."""
    line = "a{" + ",".join(f'l{at}="x"' for at in range(60)) + "} 1\n"
    page = PageParser().parse(line * 100, max_samples=100)
    assert len(page.samples) == 11
    assert page.unread_lines == 89
    assert PageParser().parse(line * 100).unread_lines == 0
