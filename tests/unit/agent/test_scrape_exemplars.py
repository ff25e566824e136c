"""Exemplars of an engine's page: with the bucket in which they were observed, one each, so many, and nothing hostile."""

from __future__ import annotations

from collections import Counter

import pytest

from aie_agent.samples import Batch, HistogramPoint
from aie_agent.sources import scrape_page
from aie_agent.sources.scrape_page import Reading, read_page
from aie_agent.store import Store
from aie_telemetry.exemplars import Exemplar
from aie_telemetry.exposition import PageParser
from aie_telemetry.instruments import Registry

QUEUE = "aie_engine_queue_seconds"
TRACE, SPAN = "0123456789abcdef" * 2, "fedcba9876543210"
NOW_S = 1_790_000_000.0


def exemplar(value: float, age_s: float = 1.0) -> Exemplar:
    return Exemplar(value, NOW_S - age_s, TRACE, SPAN)


def page(*exemplars: Exemplar, model: str = "m") -> str:
    registry = Registry()
    queue = registry.distribution(QUEUE, "e", model)
    for each in exemplars:
        queue.observe(each.value)
        queue.exemplify(each)
    return registry.render(openmetrics=True)


def reading(text: str) -> Reading:
    return read_page(PageParser().parse(text), "chat")


def histogram(text: str) -> HistogramPoint:
    (found,) = reading(text).histograms
    return found


def test_each_stands_with_its_bucket() -> None:
    sent = [exemplar(0.0005), exemplar(0.05), exemplar(1e6)]
    found = histogram(page(*sent))
    assert [each for _, each in found.exemplars] == sent
    assert [found.counts[bucket] for bucket, _ in found.exemplars] == [1, 1, 1]
    assert found.exemplars[-1][0] == len(found.bounds)
    assert not reading(page(*sent)).refused


def test_the_numbers_are_those_of_the_classic_page() -> None:
    text = page(exemplar(0.05))
    without = "".join(line.partition(" # ")[0] + "\n" if "_bucket" in line else line + "\n" for line in text.splitlines())
    assert histogram(without) == histogram(text)._replace(exemplars=())


def test_one_of_another_bucket_is_left_out() -> None:
    text = page(exemplar(0.05)).replace(f"{exemplar(0.05).text()}", exemplar(0.5).text())
    assert exemplar(0.5).text() in text
    assert histogram(text).exemplars == ()


@pytest.mark.parametrize("hostile", ["{} 1 1", '{trace_id="<script>"} 0.05 1790000000.0', '{trace_id="' + "a" * 200 + '"} 0.05 1'])
def test_what_is_none_is_counted_and_its_bucket_taken(hostile: str) -> None:
    text = page(exemplar(0.05)).replace(exemplar(0.05).text(), " # " + hostile)
    found = reading(text)
    assert found.histograms[0].exemplars == ()
    assert sum(found.histograms[0].counts) == 1
    assert found.refused == Counter(bad_exemplar=1)


def test_what_is_too_long_is_not_looked_at() -> None:
    text = page(exemplar(0.05)).replace(exemplar(0.05).text(), " # {" + "a" * 5000 + "} 1")
    assert reading(text).histograms[0].exemplars == ()
    assert not reading(text).refused


def test_of_too_many_some_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_page, "MAX_EXEMPLARS", 2)
    found = reading(page(*(exemplar(value) for value in (0.0005, 0.05, 0.5, 5.0))))
    assert len(found.histograms[0].exemplars) == 2
    assert found.refused == Counter(exemplar_limit=2)


def test_the_store_keeps_what_was_told_last_and_shows_what_is_fresh() -> None:
    store = Store(max_series=1000, retention_s=300)
    old, new = exemplar(0.0005, age_s=299.0), exemplar(0.05)

    def tell(at_s: float, *exemplars: Exemplar) -> dict[int, Exemplar]:
        store.apply(Batch("scrape:chat", at_s, [], reading(page(*exemplars)).histograms))
        (series,) = store.histograms(QUEUE)
        return series.fresh_exemplars(at_s)

    assert list(tell(NOW_S, old, new).values()) == [old, new]
    assert list(tell(NOW_S + 2, old, new).values()) == [new]
    assert list(tell(NOW_S + 400, old, new).values()) == []
    assert list(tell(NOW_S + 401, exemplar(0.05, age_s=-500.0)).values()) == []  # of a clock that is far ahead
    assert list(tell(NOW_S + 402, exemplar(0.05, age_s=-402.0)).values()) == [exemplar(0.05, age_s=-402.0)]
    (series,) = store.histograms(QUEUE)
    series.interrupt()
    assert series.fresh_exemplars(NOW_S + 402) == {}
