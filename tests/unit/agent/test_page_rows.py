"""The pages of fixtures/pages and the tables that map them: each page is whole and taken, each row is known and used."""

from __future__ import annotations

import pytest
from fakes.batches import assert_in_catalogue
from fakes.page_readings import PAGES, read
from fixtures.pages import render
from prometheus_client.parser import text_string_to_metric_families

from aie_agent.samples import Batch
from aie_agent.sources.pages.engines import ENGINES, recognise
from aie_agent.sources.pages.reader import PageReader
from aie_agent.sources.pages.rows import exposed_names
from aie_telemetry.catalogue import CATALOGUE, OUTCOMES, Kind

FILES = sorted(path.stem for path in PAGES.glob("*.prom"))
OTHER_PREFIXES = ("nv_cache_", "process_start_time_")
"""Of families that do not tell an engine: Triton's own, and those of the library that writes the page."""


@pytest.mark.parametrize("page", render.PAGES)
def test_the_files_are_what_their_renderer_writes(page: str) -> None:
    assert (PAGES / f"{page}.prom").read_text() == render.PAGES[page]()


@pytest.mark.parametrize("page", FILES)
def test_every_page_is_one_that_prometheus_reads(page: str) -> None:
    assert list(text_string_to_metric_families((PAGES / f"{page}.prom").read_text()))


@pytest.mark.parametrize("page", FILES)
def test_every_page_is_taken_without_a_refusal(page: str) -> None:
    reading = read(page)
    assert reading.problem is None
    assert not reading.reading.refused
    assert_in_catalogue(Batch("scrape:e", 0.0, reading.reading.points, reading.reading.histograms))
    infos = [dict(point.tags) for point in reading.reading.points if point.name == "aie_engine_info"]
    assert {info["kind"] for info in infos} == {reading.kind}
    assert page.startswith(str(reading.kind))


@pytest.mark.parametrize("page", FILES)
def test_the_second_reading_is_like_the_first(page: str) -> None:
    reader = PageReader("e")
    body = (PAGES / f"{page}.prom").read_bytes()
    assert reader.read(body) == reader.read(body)


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.kind)
def test_every_row_is_one_of_the_catalogue(engine) -> None:  # type: ignore[no-untyped-def]
    for row in engine.rows:
        metric = CATALOGUE[row.metric]
        outcome = row.outcome is not None or row.outcomes is not None
        assert set(metric.labels) == {"engine", "model"} | ({"outcome"} if outcome else set()), row
        assert row.outcome is None or row.outcome in OUTCOMES
        assert row.outcomes is None or set(row.outcomes.values.values()) <= set(OUTCOMES)
        assert len(row.terms) == 1 or metric.kind is not Kind.HISTOGRAM
        for term in row.terms:
            assert all(family.startswith((*engine.prefixes, *OTHER_PREFIXES)) for family in term.families)
            assert len(term.where) != 1


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.kind)
def test_every_row_is_used_by_one_of_the_pages(engine) -> None:  # type: ignore[no-untyped-def]
    pages = [path.read_text() for path in PAGES.glob(f"{engine.kind}-*.prom")]
    for row in engine.rows:
        for term in row.terms:
            names = [name for family in term.families for name in exposed_names(family, row.exposed_kind(term))]
            assert any(f"\n{name}{{" in page or f"\n{name} " in page for name in names for page in pages), term


def test_triton_is_looked_for_last() -> None:
    """It serves the metrics of engines that it hosts too, and they know more."""
    engine = recognise(["nv_inference_request_success", "vllm:num_requests_running"])
    assert engine is not None
    assert engine.kind == "vllm"
