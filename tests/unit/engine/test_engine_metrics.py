"""The engine's page: every number adds up at every moment, and nothing on it is foreign to the catalogue."""

from __future__ import annotations

import random
import threading
from collections import defaultdict

import pytest
from engine_fixtures import new_metrics, new_request
from prometheus_client.parser import text_string_to_metric_families

from aie_engine.kv_arena import KvArena
from aie_engine.ledger import Stage
from aie_engine.metrics import EngineMetrics, Footprint, KvUsage, Loaded
from aie_engine.request import Outcome
from aie_engine.response_cache import ResponseCache
from aie_engine.scheduler import StepResult
from aie_engine.span_counts import SpanCounts
from aie_telemetry.catalogue import CATALOGUE, OUTCOMES, Kind
from aie_telemetry.exposition import PageParser


def values(page: str) -> dict[str, float]:
    """Sums of the page's samples by name; outcomes apart as name/outcome."""
    sums: dict[str, float] = defaultdict(float)
    for name, tags, value, *_ in PageParser().parse(page).samples:
        outcome = dict(tags).get("outcome")
        sums[f"{name}/{outcome}" if outcome else name] += value
    return dict(sums)


NOT_ON_OUR_PAGE = {
    # The agent's, of any engine.
    "aie_engine_up",
    "aie_engine_memory_physical_bytes",
    "aie_engine_memory_unaccounted_bytes",
    "aie_engine_gpu_contexts",
    # Sampled by the hooks, which send them to the agent: a page would have to be exact.
    "aie_engine_output_entropy_nats",
    "aie_engine_output_surprisal_nats",
    "aie_engine_first_token_logsumexp_nats",
    "aie_engine_output_log_length",
    "aie_engine_activation_mean",
    "aie_engine_activation_std",
    "aie_engine_activation_max_abs",
    "aie_engine_activation_nonfinite_total",
    # Told by the hooks of the process, where somebody asks for them.
    "aie_engine_python_blocks",
    "aie_engine_malloc_used_bytes",
    "aie_engine_malloc_held_bytes",
    # What this engine does not do: it reserves a request's longest answer, and shares no prefixes.
    "aie_engine_preemptions_total",
    "aie_engine_prefix_cache_queries_total",
    "aie_engine_prefix_cache_hits_total",
    # What only torch's CUDA allocator has; the hooks send it.
    "aie_engine_allocator_inactive_split_bytes",
    "aie_engine_allocator_private_pool_bytes",
    "aie_engine_allocator_pinned_bytes",
    "aie_engine_allocator_retries_total",
    "aie_engine_allocator_ooms_total",
}
"""Rows of the catalogue about engines that this engine's page does not have; every other one it has."""


_USAGE = KvUsage(capacity=1000, used=250, free=750, written=100, largest_free=600)


def loaded(metrics: EngineMetrics, usage: KvUsage = _USAGE) -> None:
    footprint = Footprint(weights_bytes=5_000, kv_bytes=4_000, workspace_bytes=100)
    metrics.loaded(Loaded("1.0", "abc", "cpu", "float32", footprint, lambda: usage))


def test_outcomes_are_those_of_the_catalogue_and_begin_at_zero() -> None:
    assert tuple(Outcome) == OUTCOMES
    page = values(new_metrics().page())
    assert {name: page[f"aie_engine_requests_total/{name}"] for name in OUTCOMES} == dict.fromkeys(OUTCOMES, 0.0)
    assert page["aie_engine_requests_received_total"] == 0
    assert page["aie_engine_start_time_seconds"] == 1000


def test_what_is_not_known_is_absent() -> None:
    page = values(new_metrics().page())
    assert not [name for name in page if "kv" in name or "allocator" in name or "last_token" in name or "info" in name]


def test_the_page_is_what_prometheus_reads_and_the_catalogue_knows() -> None:
    metrics = new_metrics(SpanCounts(most_waiting=1))
    loaded(metrics)
    metrics.watch_cache(ResponseCache(1000))
    metrics.canary("ok", -1.0)
    request = new_request(ticket=metrics.enter(0.0))
    metrics.admitted(request.ticket, 0.5)
    metrics.step(StepResult(7, [request], [request], [], {0.03: 4}), 0.03, 1.0, 2_000.0)
    families = {family.name: family for family in text_string_to_metric_families(metrics.page())}
    engine_rows = {name for name in CATALOGUE if name.startswith("aie_engine_")}
    assert engine_rows >= NOT_ON_OUR_PAGE
    assert {name if name in CATALOGUE else f"{name}_total" for name in families} == engine_rows - NOT_ON_OUR_PAGE
    for name, family in families.items():
        row = CATALOGUE.get(name) or CATALOGUE[f"{name}_total"]
        assert (family.type, family.documentation) == (row.kind.value, row.help)
        labels = set(row.labels) | ({"le"} if row.kind is Kind.HISTOGRAM else set())
        assert all(set(sample.labels) <= labels and sample.labels["engine"] == "e" for sample in family.samples)


def test_memory_counts_the_used_part_of_the_cache_as_allocated() -> None:
    metrics = new_metrics()
    loaded(metrics)
    page = values(metrics.page())
    assert page["aie_engine_allocator_allocated_bytes"] == 5_000 + 100 + 1_000
    assert page["aie_engine_allocator_reserved_bytes"] == 9_100
    assert page["aie_engine_kv_used_tokens"] + page["aie_engine_kv_free_tokens"] == page["aie_engine_kv_capacity_tokens"] == 1000
    assert page["aie_engine_kv_usage_ratio"] == 0.25
    assert page["aie_engine_kv_written_tokens"] == 100
    assert page["aie_engine_kv_efficiency_ratio"] == 0.4
    assert page["aie_engine_allocator_largest_free_bytes"] == 4_000 * 0.6
    stats = metrics.allocator_stats()
    assert (stats.device, stats.allocated_bytes, stats.reserved_bytes) == ("cpu", 6_100, 9_100)


def test_efficiency_of_nothing_is_not_known() -> None:
    metrics = new_metrics()
    loaded(metrics)
    metrics.page()
    loaded(metrics, KvUsage(1000, 0, 1000, 0, 1000))
    assert "aie_engine_kv_efficiency_ratio" not in values(metrics.page())


def test_the_allocators_numbers_do_not_exist_before_the_model() -> None:
    with pytest.raises(RuntimeError, match="not loaded"):
        new_metrics().allocator_stats()


def test_a_request_is_followed_from_arrival_to_end() -> None:
    metrics = new_metrics()
    request = new_request(ticket=metrics.enter(10.0))
    metrics.tokenized(request.ticket, 10.5, 5)
    metrics.queued(request.ticket, 10.75)
    assert values(metrics.page())["aie_engine_requests_waiting"] == 1
    metrics.admitted(request.ticket, 12.0)
    metrics.admitted(request.ticket, 13.0)  # no second time
    assert values(metrics.page())["aie_engine_requests_running"] == 1
    metrics.step(StepResult(5, [request], [request], [], {}), 0.5, 12.5, 1_700.0)
    metrics.step(StepResult(0, [request], [], [request], {0.25: 1}), 0.25, 12.75, 1_700.25)
    metrics.ended(request.ticket, Outcome.OK, 12.75)
    metrics.ended(request.ticket, Outcome.CANCELLED, 14.0)  # its first outcome stands
    page = values(metrics.page())
    expected = {
        "aie_engine_requests_total/ok": 1,
        "aie_engine_requests_total/cancelled": 0,
        "aie_engine_requests_running": 0,
        "aie_engine_tokenize_seconds_sum": 0.5,
        "aie_engine_queue_seconds_sum": 1.25,
        "aie_engine_queue_seconds_count": 1,
        "aie_engine_time_to_first_token_seconds_sum": 2.5,
        "aie_engine_inter_token_seconds_sum": 0.25,
        "aie_engine_request_duration_seconds_sum": 2.75,
        "aie_engine_prompt_tokens_total": 5,
        "aie_engine_generation_tokens_total": 2,
        "aie_engine_step_seconds_count": 2,
        "aie_engine_last_token_timestamp_seconds": 1_700.25,
    }
    assert {name: page[name] for name in expected} == expected


def test_a_rejected_request_has_no_duration() -> None:
    metrics = new_metrics()
    metrics.ended(metrics.enter(0.0), Outcome.REJECTED, 1.0)
    page = values(metrics.page())
    assert page["aie_engine_requests_total/rejected"] == 1
    assert page["aie_engine_request_duration_seconds_count"] == page["aie_engine_queue_seconds_count"] == 0


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CANCELLED, Outcome.ERROR])
def test_who_ends_in_the_queue_has_waited_in_it(outcome: Outcome) -> None:
    metrics = new_metrics()
    ticket = metrics.enter(0.0)
    metrics.queued(ticket, 1.0)
    metrics.ended(ticket, outcome, 31.0)
    page = values(metrics.page())
    assert (page["aie_engine_queue_seconds_count"], page["aie_engine_queue_seconds_sum"]) == (1, 30.0)
    assert page["aie_engine_request_duration_seconds_count"] == 0


def test_a_step_that_failed_took_its_time_and_its_tokens() -> None:
    metrics = new_metrics()
    metrics.step_failed(0.25, 3, 40)
    page = values(metrics.page())
    assert page["aie_engine_step_seconds_sum"] == 0.25
    assert (page["aie_engine_step_batch_size_sum"], page["aie_engine_step_tokens_sum"]) == (3, 40)
    assert page["aie_engine_prompt_tokens_total"] == page["aie_engine_generation_tokens_total"] == 0


def test_busy_lasts_from_the_first_running_request_to_the_last() -> None:
    metrics = new_metrics()
    first, second = metrics.enter(0.0), metrics.enter(0.0)
    assert metrics.ledger.counts().busy_since is None
    metrics.admitted(first, 1.0)
    metrics.admitted(second, 2.0)
    metrics.ended(first, Outcome.OK, 3.0)
    assert metrics.ledger.counts().busy_since == 1.0
    metrics.ended(second, Outcome.OK, 4.0)
    assert metrics.ledger.counts().busy_since is None


def test_received_equals_outcomes_plus_running_plus_waiting_under_load() -> None:
    metrics = new_metrics()
    arena, arena_lock = KvArena(500), threading.Lock()

    def usage() -> KvUsage:
        with arena_lock:
            return KvUsage(arena.capacity, arena.used, arena.free, 0, arena.largest_free)

    metrics.loaded(Loaded("1", "r", "cpu", "float32", Footprint(1, 1_000, 1), usage))
    stop = threading.Event()
    lives = [0] * 4

    def live(worker: int) -> None:
        rng = random.Random(worker)
        while not stop.is_set():
            ticket = metrics.enter(0.0)
            with arena_lock:
                start = arena.reserve(rng.randrange(1, 50))
            if rng.random() < 0.7:
                metrics.admitted(ticket, 0.1)
            metrics.ended(ticket, rng.choice(list(Outcome)), 0.2)
            metrics.ended(ticket, rng.choice(list(Outcome)), 0.3)
            with arena_lock:
                if start is not None:
                    arena.release(start)
            assert ticket.stage is Stage.ENDED
            lives[worker] += 1

    threads = [threading.Thread(target=live, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            page = values(metrics.page())
            ended = sum(page[f"aie_engine_requests_total/{name}"] for name in OUTCOMES)
            in_work = page["aie_engine_requests_running"] + page["aie_engine_requests_waiting"]
            assert page["aie_engine_requests_received_total"] == ended + in_work
            assert page["aie_engine_kv_used_tokens"] + page["aie_engine_kv_free_tokens"] == 500
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert values(metrics.page())["aie_engine_requests_received_total"] == sum(lives) > 0
