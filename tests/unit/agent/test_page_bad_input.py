"""Pages that are wrong in one way or another: what is right is taken, the rest is refused by name, and nothing raises."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.batches import assert_in_catalogue
from fixtures.pages import render
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_agent.samples import Batch
from aie_agent.sources.pages.engines import ENGINES
from aie_agent.sources.pages.mapping import MAX_NUMBERS
from aie_agent.sources.pages.reader import PageReader, PageReading
from aie_agent.sources.scrape_page import MAX_SERIES, Reading
from aie_telemetry.exposition import MemoBudget

VLLM = (Path(render.__file__).parent / "vllm-0.33-dp2.prom").read_text()
PAGES = {path.stem: path.read_text() for path in Path(render.__file__).parent.glob("*.prom")}
RUNNING = "# TYPE vllm:num_requests_running gauge\n"


def read(text: str) -> PageReading:
    return PageReader("e").read(text.encode())


def running(reading: Reading) -> list[float]:
    return [point.value for point in reading.points if point.name == "aie_engine_requests_running"]


def ttft(*lines: str, kind: str = "histogram") -> str:
    head = RUNNING + f'vllm:num_requests_running{{model_name="m"}} 1\n# TYPE vllm:time_to_first_token_seconds {kind}\n'
    return head + "".join(f"vllm:time_to_first_token_seconds_{line}\n" for line in lines)


GOOD = ('bucket{le="0.1"} 2', 'bucket{le="+Inf"} 3', "sum 1", "count 3")


def test_a_histogram_in_its_plainest_form_is_taken() -> None:
    (histogram,) = read(ttft(*GOOD)).reading.histograms
    assert (histogram.bounds, histogram.counts, histogram.total) == ((0.1,), (2, 1), 1)


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        pytest.param(ttft(*GOOD, kind="gauge"), "kind_conflict", id="a gauge"),
        pytest.param(ttft(*GOOD, kind="summary"), "kind_conflict", id="a summary"),
        pytest.param(ttft(*GOOD, kind="nonsense"), "kind_conflict", id="a kind that is none"),
        pytest.param(ttft(*GOOD[:1], *GOOD[2:]), "bad_histogram", id="no +Inf"),
        pytest.param(ttft(*GOOD[:2]), "bad_histogram", id="no sum"),
        pytest.param(ttft(*GOOD, GOOD[0]), "bad_histogram", id="a line twice"),
        pytest.param(ttft('bucket{le="x"} 2', *GOOD[1:]), "bad_histogram", id="a bound that is no number"),
        pytest.param(ttft('bucket{le="0.1"} NaN', *GOOD[1:]), "bad_histogram", id="NaN"),
        pytest.param(ttft('bucket{le="0.1"} 4', *GOOD[1:]), "bad_histogram", id="falls"),
    ],
)
def test_a_histogram_that_is_none(page: str, reason: str) -> None:
    reading = read(page).reading
    assert reading.histograms == []
    assert running(reading) == [1.0]
    assert reading.refused[reason] >= 1
    assert set(reading.refused) == {reason}


def test_replicas_with_other_buckets_are_not_added_up() -> None:
    first, second = (
        [
            line.replace("{", f'{{engine="{engine}",') if "{" in line else line.replace(" ", f'{{engine="{engine}"}} ')
            for line in GOOD
        ]
        for engine in "01"
    )
    (histogram,) = read(ttft(*first, *second)).reading.histograms
    assert (histogram.counts, histogram.total) == ((4, 2), 2)
    second[0] = second[0].replace("0.1", "0.2")
    reading = read(ttft(*first, *second)).reading
    assert reading.histograms == []
    assert reading.refused == {"bad_histogram": 1}


def of_replicas(*replicas: tuple[int, int, int]) -> bytes:
    """A page of replicas with so many observations to 0.1, to 0.2, and in all."""
    lines = []
    for engine, (first, second, count) in enumerate(replicas):
        for bound, value in (("0.1", first), ("0.2", second), ("+Inf", count)):
            lines.append(f'bucket{{engine="{engine}",le="{bound}"}} {value}')
        lines += [f'{part}{{engine="{engine}"}} {count}' for part in ("sum", "count")]
    return ttft(*lines).encode()


def test_a_replica_that_begins_anew_does_so_with_its_whole_histogram() -> None:
    """It has seen as many as before by the next page, but slower ones: of its lines only the first fell."""
    reader = PageReader("e")
    pages = (((3, 3, 3), (0, 0, 5)), ((2, 3, 3), (0, 0, 5)), ((2, 4, 4), (0, 0, 5)))
    readings = [reader.read(of_replicas(*page)).reading for page in pages]
    assert [reading.refused for reading in readings] == [{}, {}, {}]
    assert [reading.histograms[0].counts for reading in readings] == [(3, 0, 5), (5, 1, 5), (5, 2, 5)]


def test_a_replica_that_contradicts_itself_spoils_one_page_and_no_other() -> None:
    reader = PageReader("e")
    for page, refused in (((1, 2, 3), {}), ((9, 2, 3), {"bad_histogram": 1}), ((1, 2, 3), {})):
        reading = reader.read(of_replicas(page, (1, 1, 1))).reading
        assert reading.refused == refused
        assert [histogram.counts for histogram in reading.histograms] == ([] if refused else [(2, 1, 1)])


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-Inf"])
def test_a_level_that_is_no_number(number: str) -> None:
    page = RUNNING + f'vllm:num_requests_running{{engine="0"}} {number}\nvllm:num_requests_running{{engine="1"}} 2\n'
    reading = read(page).reading
    assert running(reading) == [2.0]
    assert reading.refused == {"not_finite": 1}


def test_a_series_that_comes_twice_counts_once() -> None:
    reading = read(RUNNING + 2 * 'vllm:num_requests_running{engine="0"} 2\n').reading
    assert running(reading) == [2.0]
    assert reading.refused == {"duplicate": 1}


def test_an_outcome_that_nobody_knows_is_no_other_outcome() -> None:
    page = 'vllm:request_success_total{finished_reason="stop"} 2\nvllm:request_success_total{finished_reason="enlightened"} 3\n'
    reading = read(page).reading
    assert [point.value for point in reading.points if point.name == "aie_engine_requests_total"] == [2.0, 0.0, 0.0, 0.0]
    assert reading.refused == {"unknown_outcome": 1}


def ended(reading: Reading) -> dict[str, float]:
    """Requests by outcome, without those that have not come."""
    return {dict(one.tags)["outcome"]: one.value for one in reading.points if one.name == "aie_engine_requests_total" and one.value}


@pytest.mark.parametrize(
    ("code", "outcome"), [("400", "rejected"), ("429", "rejected"), ("408", "timeout"), ("500", "error"), ("503", "error")]
)
def test_errors_by_their_code(code: str, outcome: str) -> None:
    reading = read(f'trtllm_request_error_total{{http_code="{code}"}} 2\n').reading
    assert ended(reading) == {outcome: 2.0}


@pytest.mark.parametrize("code", ["", "x", "200", "4", "4000"])
def test_codes_that_are_no_errors(code: str) -> None:
    assert "unknown_outcome" in str(read(f'trtllm_request_error_total{{http_code="{code}"}} 2\n').problem)


def test_a_timeout_is_a_timeout_wherever_it_is_counted() -> None:
    page = 'trtllm_request_success_total{finished_reason="timeout"} 2\ntrtllm_request_error_total{http_code="504"} 3\n'
    assert ended(read(page).reading) == {"timeout": 5.0}


def test_models_without_end_are_capped() -> None:
    page = RUNNING + "".join(f'vllm:num_requests_running{{model_name="{number}"}} 1\n' for number in range(2 * MAX_SERIES))
    reading = read(page).reading
    assert len(reading.points) == MAX_SERIES
    assert reading.refused["series_limit"] == 2 * MAX_SERIES  # of the levels, and of what describes each model that is left


def test_replicas_without_end_are_capped() -> None:
    page = RUNNING + "".join(f'vllm:num_requests_running{{model_name="m",x="{number}"}} 1\n' for number in range(MAX_NUMBERS + 7))
    reading = read(page).reading
    assert running(reading) == [MAX_NUMBERS]
    assert reading.refused == {"series_limit": 7}


def test_a_label_of_another_engine_without_end_is_refused() -> None:
    page = RUNNING + f'vllm:num_requests_running{{model_name="{"x" * 2000}"}} 1\nvllm:num_requests_running{{model_name="m"}} 2\n'
    reading = read(page).reading
    assert running(reading) == [2.0]
    assert reading.refused == {"series_too_long": 1}


def test_a_huge_label_is_a_bad_line() -> None:
    page = (
        RUNNING + f'vllm:num_requests_running{{model_name="{"x" * (1 << 17)}"}} 1\nvllm:num_requests_running{{model_name="m"}} 2\n'
    )
    assert running(read(page).reading) == [2.0]


def test_a_page_of_an_engine_that_says_nothing_of_use() -> None:
    assert read("# TYPE vllm:lora_requests_info gauge\nvllm:lora_requests_info 1\n").problem == (
        "a page of vllm of which nothing could be taken: it has none of the metrics that are read"
    )


def test_a_page_that_changes_its_engine() -> None:
    """Another engine starts at the same address; so does a newer version with other names."""
    reader = PageReader("e")
    for name in ("vllm-0.8", "vllm-0.33-dp2", "tgi-2", "vllm-0.8"):
        body = PAGES[name].encode()
        assert reader.read(body).reading == PageReader("e").read(body).reading


def test_what_a_line_means_is_forgotten_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels that change with every page do not fill the agent."""
    monkeypatch.setattr("aie_agent.sources.pages.mapping._MEMO_BYTES", 50_000)
    budget = MemoBudget(100_000)
    reader = PageReader("e", budget)
    for number in range(300):
        reading = reader.read(f'vllm:num_requests_running{{model_name="{number}"}} {number}\n'.encode()).reading
        assert running(reading) == [number]
    assert reader._mapper is not None
    assert 0 < len(reader._mapper[1]._memo) <= 50
    assert budget.used_bytes <= budget.most_bytes
    reader.close()
    assert budget.used_bytes == 0


def test_all_pages_together_remember_only_so_much() -> None:
    """Eighteen hostile pages took 364 MB."""
    budget = MemoBudget(300_000)
    readers = [PageReader(f"e{at}", budget) for at in range(5)]
    for page in range(3):
        for at, reader in enumerate(readers):
            lines = (f'vllm:num_requests_running{{model_name="{page}-{at}-{number}"}} 1\n' for number in range(500))
            assert len(running(reader.read((RUNNING + "".join(lines)).encode()).reading)) == 500
            assert budget.used_bytes <= budget.most_bytes
    held = budget.used_bytes
    assert readers[0].read(b"<html>").problem is not None
    assert budget.used_bytes < held, "a page that is none is not remembered"
    for reader in readers:
        reader.close()
    assert budget.used_bytes == 0


@settings(max_examples=60)
@given(st.sampled_from(sorted(PAGES)), st.data())
def test_no_torn_or_garbled_page_raises(name: str, data: st.DataObject) -> None:
    page = PAGES[name]
    cut = data.draw(st.integers(0, len(page)))
    at = data.draw(st.integers(0, len(page)))
    noise = data.draw(st.text(alphabet='{}"=,le 0123456789.+-#\nNaInf\\\x00é', max_size=40))
    reader = PageReader("e")
    for text in (page[:cut], page[:at] + noise + page[at:], page):
        reading = reader.read(text.encode()).reading
        assert_in_catalogue(Batch("scrape:e", 0.0, reading.points, reading.histograms))
    # What is a sum over replicas goes on from where it stood, and so does a difference of counters, whatever a torn page said in
    # between: what it says from then on is what there is more of. All else is what a reader that has seen no other page says.
    differences = {row.metric for engine in ENGINES for row in engine.rows if any(term.subtract for term in row.terms)}
    assert reader._mapper is not None
    engine, mapper = reader._mapper
    held = differences | {engine.rows[slot.row].metric for slot in mapper._sums}
    expected = read(page).reading
    for ours, fresh in ((reading.points, expected.points), (reading.histograms, expected.histograms)):
        assert [each for each in ours if each.name not in held] == [each for each in fresh if each.name not in held]
        assert {each.name for each in ours} == {each.name for each in fresh}
    assert reading.refused == expected.refused
    again = reader.read(page.encode()).reading
    assert (again.points, again.histograms) == (reading.points, reading.histograms), "the same page again is no progress"
