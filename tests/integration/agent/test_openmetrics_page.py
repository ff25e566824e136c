"""The agent's page as OpenMetrics and as the classic text: every metric of the catalogue, what others send, and hostile labels."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterable

import aiohttp
import pytest
from prometheus_client import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as classic

from aie_agent.config_values import Address
from aie_agent.outputs.http import HttpServer
from aie_agent.outputs.prometheus import PrometheusPage
from aie_agent.samples import Batch, HistogramPoint, Point, Tags
from aie_agent.store import Store
from aie_telemetry.catalogue import CATALOGUE, Kind, Metric
from aie_telemetry.exemplars import ACCEPT_OPENMETRICS, OPENMETRICS_CONTENT_TYPE, Exemplar
from aie_telemetry.exposition import CONTENT_TYPE

NOW_S = 1_790_000_000.0
QUEUE = "aie_engine_queue_seconds"
FRESH = Exemplar(0.0005, NOW_S - 1.5, "0123456789abcdef" * 2, "fedcba9876543210")
STALE = Exemplar(0.05, NOW_S - 301.0, "1123456789abcdef" * 2, "fedcba9876543210")
HOSTILE = 'a "quoted" \\ name } # {trace_id="x"} 1\nwith a newline'
FOREIGN = (
    Point("orders_paid", Kind.COUNTER, (("k", HOSTILE),), 3.0),
    Point("both_total", Kind.COUNTER, (), 4.0),
    Point("both", Kind.GAUGE, (), 5.0),
    Point("plain_total", Kind.COUNTER, (), 6.0),
)


def labels(metric: Metric) -> Tags:
    return tuple(sorted((label, HOSTILE if label == "model" else f"{label}-1") for label in metric.labels))


def everything() -> Store:
    """GPUs, findings, probes and all: one series of each metric, each histogram with something in every bucket."""
    store = Store(max_series=10_000, retention_s=300)
    points = [*FOREIGN]
    histograms = []
    for name, metric in CATALOGUE.items():
        if metric.kind is Kind.HISTOGRAM:
            counts = tuple(1.0 for _ in (*metric.buckets, 0.0))
            traces = ((0, FRESH), (6, STALE)) if name == QUEUE else ()
            histograms.append(HistogramPoint(name, labels(metric), metric.buckets, counts, 9.5, exemplars=traces))
        else:
            points.append(Point(name, metric.kind, labels(metric), 1.0))
    store.apply(Batch("test", NOW_S, points, histograms))
    assert not any(store.refused.values())
    return store


@pytest.fixture
async def url() -> AsyncIterator[str]:
    store = everything()
    page = PrometheusPage(store)
    server = HttpServer(
        store, lambda: page.render(NOW_S), render_openmetrics=lambda: page.render(NOW_S, openmetrics=True)
    )  # fmt: skip
    port = await server.start(Address("127.0.0.1:0"))
    yield f"http://127.0.0.1:{port}/metrics"
    await server.close()


async def fetched(url: str, accept: str | None = None) -> tuple[str, str]:
    """The content type and the page."""
    async with (
        aiohttp.ClientSession() as client,
        client.get(url, headers={} if accept is None else {"Accept": accept}) as answer,
    ):
        assert {each.strip() for each in answer.headers["Vary"].split(",")} == {"Accept", "Accept-Encoding"}
        return answer.headers["Content-Type"], await answer.text()


def samples(families: Iterable[Family]) -> dict[tuple[str, Tags], float]:
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in families for each in family.samples}


async def test_both_pages_have_the_same_numbers_but_for_sums_that_may_fall(url: str) -> None:
    kind, text = await fetched(url, ACCEPT_OPENMETRICS)
    assert kind == OPENMETRICS_CONTENT_TYPE
    plain_kind, plain = await fetched(url)
    assert plain_kind == CONTENT_TYPE
    found, expected = samples(openmetrics(text)), samples(classic(plain))
    expected.pop(("orders_paid_total", (("k", HOSTILE),)))  # the classic parser's name for it
    assert found.pop(("orders_paid", (("k", HOSTILE),))) == 3.0
    missing = {name for name, _ in expected.keys() - found.keys()}
    signed = [name for name, metric in CATALOGUE.items() if metric.kind is Kind.HISTOGRAM and metric.buckets[0] < 0]
    assert signed
    assert missing == {f"{name}_{part}" for name in signed for part in ("sum", "count")}
    assert found == {key: expected[key] for key in found}


async def test_each_family_is_of_the_kind_that_it_can_be(url: str) -> None:
    _, text = await fetched(url, ACCEPT_OPENMETRICS)
    kinds = {family.name: family.type for family in openmetrics(text)}
    for name, metric in CATALOGUE.items():
        family = name.removesuffix("_total") if metric.kind is Kind.COUNTER else name
        assert kinds[family] == str(metric.kind)
    assert {name: kinds[name] for name in ("orders_paid", "both_total", "both", "plain")} == {
        "orders_paid": "unknown", "both_total": "unknown", "both": "gauge", "plain": "counter",
    }  # fmt: skip


async def test_a_fresh_trace_stands_behind_its_bucket_and_no_stale_one(url: str) -> None:
    _, text = await fetched(url, ACCEPT_OPENMETRICS)
    found = {
        (each.name, each.labels["le"]): each.exemplar for family in openmetrics(text) for each in family.samples if each.exemplar
    }
    ((name, le), exemplar), *others = found.items()
    assert not others
    assert (name, float(le)) == (f"{QUEUE}_bucket", CATALOGUE[QUEUE].buckets[0])
    assert exemplar is not None
    assert exemplar.labels == {"trace_id": FRESH.trace_id, "span_id": FRESH.span_id}
    assert exemplar.value == FRESH.value
    assert float(exemplar.timestamp) == FRESH.time_s
    assert f' # {{trace_id="{FRESH.trace_id}' not in (await fetched(url))[1]


async def test_the_classic_page_of_every_metric_passes_promtool(url: str, promtool: str) -> None:
    _, text = await fetched(url)
    page = "".join(line for line in text.splitlines(keepends=True) if not any(each.name in line for each in FOREIGN))
    done = await asyncio.to_thread(
        subprocess.run, [promtool, "check", "metrics"], input=page.encode(), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, b"")
