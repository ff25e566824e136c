"""Counters, gauges and histograms of the catalogue: edges, weights, threads, and the page."""

from __future__ import annotations

import math
import random
import sys
import threading
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.instruments import Distribution, Registry

TTFT = "aie_engine_time_to_first_token_seconds"
TOKENS = "aie_engine_generation_tokens_total"


def _page(registry: Registry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(registry.render())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


@pytest.mark.parametrize("name", [name for name, metric in CATALOGUE.items() if metric.kind is Kind.HISTOGRAM])
def test_a_bound_belongs_to_its_bucket(name: str) -> None:
    """`le` is less or equal; one step above a bound, a value is in the next bucket."""
    for index, bound in enumerate(CATALOGUE[name].buckets):
        distribution = Distribution(CATALOGUE[name].buckets)
        distribution.observe(bound)
        distribution.observe(math.nextafter(bound, math.inf))
        distribution.observe(math.nextafter(bound, -math.inf))
        assert [i for i, count in enumerate(distribution.counts) if count] == [index, index + 1]
        assert distribution.counts[index] == 2


@given(st.lists(st.one_of(st.floats(0, 1e4), st.sampled_from(CATALOGUE[TTFT].buckets)), max_size=50))
def test_as_prometheus_client_counts(values: list[float]) -> None:
    registry, reference = Registry(), CollectorRegistry()
    theirs = Histogram(TTFT, "h", ["engine", "model"], buckets=CATALOGUE[TTFT].buckets, registry=reference).labels("e", "m")
    ours = registry.distribution(TTFT, "e", "m")
    for value in values:
        theirs.observe(value)
        ours.observe(value)
    families = text_string_to_metric_families(generate_latest(reference).decode())
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_created")]
    # Bounds are compared as numbers: "1.0" there is "1" here.
    expected = {(s.name, float(s.labels.get("le", 0))): s.value for s in samples}
    assert {(name, float(dict(tags).get("le", 0))): value for (name, tags), value in _page(registry).items()} == expected


@given(st.floats(0, 100), st.integers(1, 1000))
def test_a_weight_stands_for_as_many_observations(value: float, count: int) -> None:
    weighted, single = Distribution((1.0, 10.0)), Distribution((1.0, 10.0))
    weighted.observe(value, count)
    for _ in range(count):
        single.observe(value)
    assert weighted.counts == single.counts
    assert weighted.total == pytest.approx(single.total)
    weighted.observe(value, 1 / 0.3)
    assert sum(weighted.counts) == pytest.approx(count + 1 / 0.3)


def test_threads_lose_nothing() -> None:
    registry = Registry()
    threads, each = 8, 5000
    bounds = CATALOGUE[TTFT].buckets
    drawn = [[random.Random(number).expovariate(2.0) for _ in range(each)] for number in range(threads)]

    def work(values: list[float]) -> None:
        for value in values:
            registry.value(TOKENS, "e", "m").add(2)
            registry.distribution(TTFT, "e", "m").observe(value)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=work, args=(values,)) for values in drawn]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            registry.render()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    expected = [0.0] * (len(bounds) + 1)
    for values in drawn:
        for value in values:
            expected[bisect_left(bounds, value)] += 1
    assert registry.distribution(TTFT, "e", "m").counts == expected
    assert registry.value(TOKENS, "e", "m").value == 2 * threads * each


def test_the_page() -> None:
    registry = Registry()
    registry.value("aie_engine_info", "e", "m", "aie", '1"', "a\\b", "cpu", "f\n").set(1)
    registry.value(TOKENS, "e", "m").add()
    registry.value("aie_host_load1").set(0.25)
    registry.value("aie_host_cpus").set(math.nan)
    registry.remove("aie_host_cpus")
    registry.remove("aie_host_memory_total_bytes")
    page = _page(registry)
    assert page[TOKENS, (("engine", "e"), ("model", "m"))] == 1
    assert page["aie_host_load1", ()] == 0.25
    assert ("aie_host_cpus", ()) not in page
    (info,) = [dict(tags) for name, tags in page if name == "aie_engine_info"]
    assert (info["version"], info["revision"], info["dtype"]) == ('1"', "a\\b", "f\n")
    assert registry.value(TOKENS, "e", "m") is registry.value(TOKENS, "e", "m")
    assert registry.render() == registry.render()


def test_what_is_not_in_the_catalogue_cannot_be_exported() -> None:
    registry = Registry()
    with pytest.raises(KeyError):
        registry.value("aie_nonsense", "e")
    with pytest.raises(ValueError, match="takes the labels"):
        registry.value(TOKENS, "e")
    with pytest.raises(ValueError, match="is a histogram"):
        registry.value(TTFT, "e", "m")
    with pytest.raises(ValueError, match="is a counter"):
        registry.distribution(TOKENS, "e", "m")
    assert registry.render() == ""
