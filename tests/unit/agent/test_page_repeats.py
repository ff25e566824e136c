"""Pages that repeat, against the parser and the reader that know nothing of the page before."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from aie_agent.sources.pages.reading_again import PageAgain
from aie_agent.sources.pages.repeats import RepeatParser
from aie_agent.sources.scrape_page import read_page
from aie_telemetry.exposition import MemoBudget, Page, PageParser, PageSample

EXEMPLAR = f' # {{trace_id="{"ab" * 16}",span_id="{"cd" * 8}"}} {{value}} 1700000000.5'
VALUES = ("0", "1", "2.5", "7", "1e3", "-1", "NaN", "+Inf", "1_0", "", "x", "4 1700000000", "5\r", " 6", "0" * 70, "3 # {a}")


def _histogram(labels: str, kind: str = "step_seconds") -> list[tuple[str, str]]:
    name = f"aie_engine_{kind}"
    buckets = [(f'{name}_bucket{{{labels},le="{le}"}} ', count) for le, count in (("0.1", "1"), ("1", "2"), ("+Inf", "2"))]
    return [*buckets, (f"{name}_sum{{{labels}}} ", "0.7"), (f"{name}_count{{{labels}}} ", "2")]


LINES: list[tuple[str, str]] = [
    ("# TYPE aie_engine_requests_running gauge", ""),
    ('aie_engine_requests_running{engine="e",model="m"} ', "3"),
    ('aie_engine_requests_running{engine="e",model="a b # }"}  ', "4"),
    ('aie_engine_requests_total{engine="e",model="m",outcome="ok"} ', "5"),
    ('  aie_engine_requests_received_total{engine="e",model="m"}\t', "6"),
    ("# TYPE aie_engine_step_seconds histogram", ""),
    *_histogram('engine="e",model="m"'),
    *_histogram('engine="e",model="n"'),
    *_histogram('engine="e",model="m"', "queue_seconds"),
    ("aie_engine_nonsense ", "1"),
    ("process_cpu_seconds_total ", "9"),
    ("", ""),
]
"""Heads and values of a page that is in order."""


@st.composite
def page_sequences(draw: st.DrawFn) -> list[str]:
    """A page, and what becomes of it: most pages have a few other numbers, some have other lines."""
    chance = random.Random(draw(st.integers(0, 2**32)))
    lines = list(LINES)
    pages = [lines, lines]  # twice: what repeats is remembered
    for _ in range(draw(st.integers(1, 6))):
        lines = list(lines)
        for _ in range(chance.randrange(4)):
            _change(lines, chance)
        pages.append(lines)
    return ["\n".join(head + value for head, value in page) for page in pages]


def _change(lines: list[tuple[str, str]], chance: random.Random) -> None:
    at = chance.randrange(len(lines))
    head, value = lines[at]
    what = chance.random()
    if what < 0.6:
        is_histogram = "_bucket" in head or "_count" in head
        numbers = [EXEMPLAR.replace("{value}", chance.choice(("0.05", "0.5", "9", "x")))] if "_bucket" in head else [""]
        value = chance.choice(("1", "2", "3") if is_histogram else VALUES) + chance.choice(["", *numbers])
        lines[at] = (head, value)
    elif what < 0.7:
        del lines[at]
    elif what < 0.8:
        lines.insert(chance.randrange(len(lines)), (head, value))
    elif what < 0.9:
        other = chance.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    else:
        lines[at] = (head.replace('"m"', '"k"') or "# TYPE aie_engine_queue_seconds gauge", value)


def _told(page: Page) -> tuple[object, ...]:
    samples = [(sample.name, sample.tags, repr(sample.value), sample.exemplar) for sample in page.samples]
    return page.kinds, samples, page.bad_lines, page.unread_lines


@settings(max_examples=300, deadline=None)
@given(page_sequences(), st.sampled_from((None, 1000, 30, 5)))
def test_a_page_that_repeats_is_parsed_as_if_it_did_not(pages: list[str], most: int | None) -> None:
    parser = RepeatParser()
    for text in pages:
        whole = PageParser().parse(text, most)
        assert _told(parser.parse(text, most)) == _told(whole)
        assert parser.names == {sample.name for sample in whole.samples}


@settings(max_examples=300, deadline=None)
@given(page_sequences())
def test_a_page_that_repeats_is_read_as_if_it_did_not(pages: list[str]) -> None:
    again = PageAgain("e")
    for text in pages:
        page = PageParser().parse(text)
        assert again.read(page) == read_page(page, "e")


def test_of_a_page_that_repeats_only_what_changed_is_made_anew() -> None:
    """Otherwise none of this would be worth its lines."""
    parser, again = RepeatParser(), PageAgain("e")
    readings = []
    for running in ("3", "3", "3", "8"):
        text = "\n".join(head + (running if "requests_running{" in head else value) for head, value in LINES)
        readings.append(again.read(parser.parse(text)))
    before, after = readings[-2:]
    assert [new is old for new, old in zip(after.points, before.points, strict=True)].count(False) == 2
    assert [new is old for new, old in zip(after.histograms, before.histograms, strict=True)].count(False) == 0
    assert {point.value for point in after.points if point.name == "aie_engine_requests_running"} == {8.0}


def test_what_is_remembered_of_a_page_is_bounded_and_given_back() -> None:
    text = "\n".join(f'aie_engine_requests_running{{engine="e",model="{number}"}} 1' for number in range(100))
    for most_bytes, is_kept in ((1 << 20, True), (100, False)):
        budget = MemoBudget(most_bytes)
        parser, again = RepeatParser(budget), PageAgain("e", budget)
        pages = [parser.parse(text) for _ in range(3)]
        readings = [again.read(page) for page in pages]
        assert (pages[2].samples[0] is pages[1].samples[0]) == is_kept
        assert (readings[2].points[0] is readings[1].points[0]) == is_kept
        assert 0 <= budget.used_bytes <= most_bytes
        parser.forget()
        again.forget()
        assert budget.used_bytes == 0


def test_a_page_that_grows_is_not_remembered() -> None:
    budget = MemoBudget(1 << 20)
    again = PageAgain("e", budget)
    for count in range(1, 20):
        again.read(
            Page({}, [PageSample("aie_engine_requests_running", (("model", str(number)),), 1.0) for number in range(count)], 0)
        )
    assert budget.used_bytes == 0
