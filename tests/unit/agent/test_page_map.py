"""Each engine's page to aie's names: what comes out is the traffic behind the page, and nothing that the page does not say."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
from fakes.batches import assert_in_catalogue
from fixtures.pages import render, render_text
from fixtures.pages.traffic import Request, traffic
from prometheus_client.parser import text_string_to_metric_families

from aie_agent.samples import Batch, HistogramPoint
from aie_agent.sources.pages.engines import ENGINES, recognise
from aie_agent.sources.pages.reader import PageReader, PageReading
from aie_agent.sources.pages.rows import exposed_names
from aie_telemetry.catalogue import CATALOGUE, OUTCOMES, Kind

PAGES = Path(render.__file__).parent
FILES = sorted(path.stem for path in PAGES.glob("*.prom"))


def read(page: str) -> PageReading:
    return PageReader("e").read((PAGES / f"{page}.prom").read_bytes())


def scalars(reading: PageReading) -> dict[str, float]:
    """Values by name without the prefix, followed by the labels that are not the engine's or the model's."""
    found = {}
    for point in reading.reading.points:
        labels = [f"{name}={value}" for name, value in point.tags if name not in ("engine", "model")]
        if point.name != "aie_engine_info":
            found[" ".join([point.name.removeprefix("aie_engine_"), *labels])] = point.value
    return found


def histograms(reading: PageReading) -> dict[str, HistogramPoint]:
    found = {point.name.removeprefix("aie_engine_"): point for point in reading.reading.histograms}
    assert len(found) == len(reading.reading.histograms)
    return found


OTHER_PREFIXES = ("nv_cache_", "process_start_time_")
"""Of families that do not tell an engine: Triton's own, and those of the library that writes the page."""
VLLM = ("error", "cancelled", "rejected")
TRTLLM = ("error", "cancelled", "timeout", "rejected")
"""How requests may end beside well, as the engines' pages tell it."""


def outcomes(done: list[Request], others: tuple[str, ...] = ()) -> dict[str, float]:
    """All ended well; what the page has no line of yet has not come, and is 0."""
    return {"requests_total outcome=ok": float(len(done)), **{f"requests_total outcome={other}": 0.0 for other in others}}


def assert_observed(histogram: HistogramPoint, bounds: tuple[float, ...], values: list[float]) -> None:
    """`histogram` is that of `values`, in the page's own buckets."""
    assert histogram.bounds == pytest.approx(bounds)
    edges = (-1.0, *histogram.bounds, float("inf"))
    counts = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert list(histogram.counts) == counts
    assert histogram.total == pytest.approx(sum(values))


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


def test_vllm_v0() -> None:
    done = traffic(12, 1)
    reading = read("vllm-0.5")
    assert scalars(reading) == {
        "requests_running": 2,
        "requests_waiting": 0,
        "kv_usage_ratio": 0.25,
        "preemptions_total": 1,
        "generation_tokens_total": sum(one.generated for one in done),
        "start_time_seconds": render.STARTED_S,
        **outcomes(done, VLLM),
    }
    found = histograms(reading)
    assert set(found) == {
        "time_to_first_token_seconds", "inter_token_seconds", "request_duration_seconds",
        "request_prompt_tokens", "request_generation_tokens",
    }  # fmt: skip
    assert_observed(found["inter_token_seconds"], render.TPOT, [gap for one in done for gap in one.gaps])
    assert {dict(point.tags)["model"] for point in reading.reading.points} == {"facebook/opt-125m"}


def test_vllm_v1_as_it_began() -> None:
    done = traffic(40, 2)
    reading = read("vllm-0.8")
    assert scalars(reading) == {
        "requests_running": 3,
        "requests_waiting": 1,
        "kv_usage_ratio": 0.4375,
        "preemptions_total": 2,
        "generation_tokens_total": sum(one.generated for one in done),
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        "start_time_seconds": render.STARTED_S,
        **outcomes(done, VLLM),
        "requests_total outcome=cancelled": 0,
    }
    assert_observed(histograms(reading)["queue_seconds"], render.E2E, [one.queue for one in done])


def test_vllm_with_two_engines_is_one() -> None:
    done = [*traffic(50, 3), *traffic(50, 4)]
    reading = read("vllm-0.33-dp2")
    assert scalars(reading) == {
        "requests_running": 6,
        "requests_waiting": 2,
        "kv_usage_ratio": 0.75,  # of the fuller one
        "preemptions_total": 4,
        "prompt_tokens_total": sum(one.prompt - one.cached for one in done),  # what was computed
        "generation_tokens_total": sum(one.generated for one in done),
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        **outcomes(done),
        "requests_total outcome=cancelled": 0,
        "requests_total outcome=error": 0,
        "requests_total outcome=rejected": 3,
        "requests_refused_full_total": 3,
    }
    found = histograms(reading)
    assert_observed(found["time_to_first_token_seconds"], render.TTFT_NEW, [one.queue + one.prefill for one in done])
    assert_observed(found["inter_token_seconds"], render.TPOT_NEW, [gap for one in done for gap in one.gaps])
    assert_observed(found["time_per_output_token_seconds"], render.TPOT_NEW, [one.decode / len(one.gaps) for one in done])
    assert_observed(found["prefill_seconds"], render.E2E, [one.prefill for one in done])
    assert_observed(found["decode_seconds"], render.E2E, [one.decode for one in done])
    assert_observed(found["request_prompt_tokens"], render.COUNTS, [one.prompt for one in done])
    assert "step_tokens" in found


def test_what_vllms_own_code_writes() -> None:
    done = [*traffic(50, 3), *traffic(50, 4)]
    reading = read("vllm-0.33.0-dp2-own-code")
    assert scalars(reading) == {
        "requests_running": 0,
        "requests_waiting": 0,
        "kv_usage_ratio": 0,
        "preemptions_total": 0,
        "prompt_tokens_total": sum(one.prompt - one.cached for one in done),
        "generation_tokens_total": sum(one.generated for one in done),
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        **outcomes(done),
        "requests_total outcome=cancelled": 0,
        "requests_total outcome=error": 0,
        "requests_total outcome=rejected": 0,
        "requests_refused_full_total": 0,
    }
    found = histograms(reading)
    assert found["request_duration_seconds"].total == pytest.approx(sum(one.whole for one in done))
    assert found["queue_seconds"].total == pytest.approx(sum(one.queue for one in done))
    assert found["prefill_seconds"].total == pytest.approx(sum(one.prefill for one in done))
    assert found["decode_seconds"].total == pytest.approx(sum(one.decode for one in done))
    assert found["inter_token_seconds"].total == pytest.approx(sum(one.decode for one in done))
    assert sum(found["inter_token_seconds"].counts) == sum(len(one.gaps) for one in done)
    assert found["step_tokens"].total == sum(one.prompt - one.cached + one.generated for one in done)
    assert set(found) == {*histograms(read("vllm-0.33-dp2"))}, "the page that we render has the families of the real one"


def test_what_sglangs_own_code_writes() -> None:
    done = [*traffic(25, 6), *traffic(25, 7)]
    reading = read("sglang-0.5.23-dp2-own-code")
    found = scalars(reading)
    assert found == found | {
        "requests_running": 0,
        "prompt_tokens_total": sum(one.prompt - one.cached for one in done),
        "generation_tokens_total": sum(len(one.gaps) for one in done),
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        "requests_total outcome=cancelled": 3,
    }
    observed = histograms(reading)
    assert observed["request_duration_seconds"].total == pytest.approx(sum(one.whole for one in done))
    assert observed["queue_seconds"].total == pytest.approx(sum(one.queue for one in done))
    assert observed["inter_token_seconds"].total == pytest.approx(sum(one.decode for one in done))
    assert sum(observed["inter_token_seconds"].counts) == sum(len(one.gaps) for one in done)
    assert set(observed) == {*histograms(read("sglang-0.5.23-dp2-tp2"))}


def test_sglang_as_it_was() -> None:
    """It has no counter of requests, and of the prefix cache only a hit rate."""
    done = traffic(30, 5)
    reading = read("sglang-0.4")
    assert scalars(reading) == {
        "requests_running": 2,
        "requests_waiting": 0,
        "kv_usage_ratio": 0.28,
        "kv_used_tokens": 123859,
        "generation_tokens_total": sum(one.generated for one in done),
    }
    assert set(histograms(reading)) == {"time_to_first_token_seconds", "request_duration_seconds"}


def test_sglang_with_replicas_shards_and_priorities() -> None:
    done = [*traffic(30, 6), *traffic(20, 7)]
    reading = read("sglang-0.5.23-dp2-tp2")
    assert scalars(reading) == {
        "requests_running": 6,  # two replicas; neither their shards nor their priorities are added up
        "requests_waiting": 2,
        "kv_usage_ratio": 0.5,
        "kv_used_tokens": 3 * 4096,
        "kv_capacity_tokens": 2 * 16384,
        "preemptions_total": 1,
        "prompt_tokens_total": sum(one.prompt - one.cached for one in done),
        "generation_tokens_total": sum(len(one.gaps) for one in done),  # the first token of each comes from its prefill
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        "requests_total outcome=cancelled": 2,  # how many ended well is not said
    }
    found = histograms(reading)
    assert_observed(found["time_to_first_token_seconds"], render.SG_TTFT, [one.queue + one.prefill for one in done])
    assert_observed(found["inter_token_seconds"], render.SG_ITL, [gap for one in done for gap in one.gaps])
    assert_observed(found["queue_seconds"], (0, *render.SG_TTFT), [one.queue for one in done])
    assert_observed(found["time_per_output_token_seconds"], render.SG_ITL, [one.decode / len(one.gaps) for one in done])


def test_tensorrt_llm_as_it_began() -> None:
    """No numbers of what runs and waits, nor of tokens."""
    reading = read("tensorrt-llm-1.0")
    assert scalars(reading) == {"kv_usage_ratio": 0.62, **outcomes(traffic(25, 8), TRTLLM)}
    assert set(histograms(reading)) == {
        "time_to_first_token_seconds", "request_duration_seconds", "queue_seconds", "time_per_output_token_seconds",
    }  # fmt: skip


def test_tensorrt_llm() -> None:
    done = traffic(35, 9)
    reading = read("tensorrt-llm-1.3")
    assert scalars(reading) == {
        "requests_running": 4,
        "requests_waiting": 2,
        "kv_usage_ratio": 0.62,
        "kv_capacity_tokens": 1024 * 32,
        "prompt_tokens_total": sum(one.prompt - one.cached for one in done),
        "generation_tokens_total": sum(one.generated for one in done),
        "prefix_cache_queries_total": sum(one.prompt for one in done),
        "prefix_cache_hits_total": sum(one.cached for one in done),
        **outcomes(done, TRTLLM),
        "requests_total outcome=cancelled": 1,
        "requests_total outcome=rejected": 2,
        "requests_total outcome=error": 1,
    }
    assert_observed(histograms(reading)["prefill_seconds"], render.PREFILL, [one.prefill for one in done])
    (info,) = [dict(point.tags) for point in reading.reading.points if point.name == "aie_engine_info"]
    assert info == {
        "engine": "e", "model": "Qwen3-0.6B", "kind": "tensorrt-llm", "dtype": "bfloat16",
        "version": "", "revision": "", "device": "",
    }  # fmt: skip


def test_tgi() -> None:
    """Its mean time per token has the prefill in it, so it is none of ours; tokens are the sums of its histograms of lengths."""
    done = traffic(60, 10)
    reading = read("tgi-2")
    assert scalars(reading) == {
        "requests_running": 2,
        "requests_waiting": 1,
        "requests_received_total": 67,
        **outcomes(done),
        "requests_total outcome=rejected": 2,
        "requests_total outcome=cancelled": 1,
        "requests_total outcome=error": 1,
        "generation_tokens_total": sum(one.generated for one in done),
    }
    found = histograms(reading)
    assert set(found) == {
        "request_duration_seconds", "queue_seconds", "step_seconds", "request_prompt_tokens", "request_generation_tokens",
    }  # fmt: skip
    steps = [one.prefill for one in done] + [gap for one in done for gap in one.gaps]
    assert_observed(found["step_seconds"], render_text.TGI_SECONDS, steps)
    assert_observed(found["request_prompt_tokens"], render_text.TGI_LENGTHS, [one.prompt for one in done])


def test_triton() -> None:
    """Each model apart. Times are sums only, so there are no histograms of them."""
    reading = read("triton-23.12")
    assert not reading.reading.histograms
    by_model = {model: {} for model in ("densenet_onnx", "simple")}
    for point in reading.reading.points:
        if point.name != "aie_engine_info":
            labels = dict(point.tags)
            by_model[labels["model"]][point.name.removeprefix("aie_engine_"), labels.get("outcome")] = point.value
    assert (
        by_model["simple"]
        == by_model["densenet_onnx"]
        == {
            ("requests_waiting", None): 1,
            ("requests_total", "ok"): 30,
            ("requests_total", "error"): 2,
            ("requests_total", "rejected"): 0,  # this version does not say why one failed
            ("requests_total", "cancelled"): 0,
            ("response_cache_queries_total", None): 10,
            ("response_cache_hits_total", None): 4,
        }
    )


def test_triton_with_the_tensorrt_llm_backend() -> None:
    reading = read("triton-24-trtllm")
    assert scalars(reading) == {
        "requests_running": 4,
        "requests_waiting": 3,  # the backend's, not the server's
        "kv_usage_ratio": 0.6,
        "kv_capacity_tokens": 64_000,
        "requests_total outcome=ok": 80,  # both versions of the model
        "requests_total outcome=rejected": 3,
        "requests_refused_full_total": 3,
        "requests_total outcome=cancelled": 2,
        "requests_total outcome=error": 1,
    }
    seconds = [one.queue + one.prefill for one in traffic(37, 11)]
    assert_observed(histograms(reading)["time_to_first_token_seconds"], (0.1, 0.5, 2.0, 5.0), seconds)


def test_a_replica_that_goes_or_begins_anew_takes_nothing_away() -> None:
    """A version of a model is unloaded, and loaded again: what it had counted stays counted, and nothing is counted twice."""
    reader = PageReader("e")
    ended = []
    for first, second in ((100, 1000), (110, 1000), (115, None), (120, 0), (120, 7), (3, 9)):
        lines = [f'nv_inference_request_success{{model="m",version="1"}} {first}\n']
        lines += [f'nv_inference_request_success{{model="m",version="2"}} {second}\n'] if second is not None else []
        reading = reader.read("".join(lines).encode())
        ended.append(scalars(reading)["requests_total outcome=ok"])
    assert ended == [1100, 1110, 1115, 1120, 1127, 1132]


def test_a_histogram_of_replicas_does_not_fall_either() -> None:
    """One of two engines is gone, then comes back; in each page the buckets agree with the count."""
    reader = PageReader("e")
    page = (PAGES / "vllm-0.33-dp2.prom").read_text()
    of_one = "".join(line for line in page.splitlines(keepends=True) if 'engine="1"' not in line)
    counts = []
    for text in (page, of_one, page):
        reading = reader.read(text.encode())
        assert not reading.reading.refused
        counts.append(sum(histograms(reading)["time_to_first_token_seconds"].counts))
    assert counts == [100, 100, 100]


def test_sglang_without_its_realtime_tokens() -> None:
    """What was computed is then what the prompts had less what the cache had, counted when a request ends."""
    page = (PAGES / "sglang-0.5.23-dp2-tp2.prom").read_text()
    done = [*traffic(30, 6), *traffic(20, 7)]
    families = "sglang:realtime_tokens", "sglang:uncached_prompt_tokens_histogram"
    for gone in (families[:1], families):
        text = "".join(line for line in page.splitlines(keepends=True) if not any(name in line for name in gone))
        found = scalars(PageReader("e").read(text.encode()))
        assert found["prompt_tokens_total"] == sum(one.prompt - one.cached for one in done)
        assert found["generation_tokens_total"] == sum(one.generated for one in done)


def test_a_difference_does_not_fall_while_one_counter_is_ahead_of_the_other() -> None:
    """The lines of a page are not written in one moment. When the engine begins anew, it does."""
    reader = PageReader("e")
    computed = []
    for prompt, cached in ((100, 40), (100, 55), (130, 55), (160, 70), (20, 5), (10, 10)):
        lines = (
            f'trtllm_prompt_tokens_total{{model_name="m"}} {prompt}\ntrtllm_prompt_cached_tokens_total{{model_name="m"}} {cached}\n'
        )
        computed.append(scalars(reader.read(lines.encode()))["prompt_tokens_total"])
    assert computed == [60, 60, 75, 90, 15, 0]


def test_whole_prompts_are_no_computed_tokens() -> None:
    reading = PageReader("e").read(b'trtllm_prompt_tokens_total{model_name="m"} 5\ntrtllm_num_requests_running{model_name="m"} 1\n')
    assert scalars(reading) == {"requests_running": 1, **outcomes([], TRTLLM)}


def test_llama_cpp() -> None:
    assert scalars(read("llama.cpp-b4000")) == {
        "requests_running": 1,
        "requests_waiting": 2,
        "prompt_tokens_total": 1210,
        "generation_tokens_total": 640,
        "kv_usage_ratio": 0.125,
        "kv_used_tokens": 512,
    }
    assert scalars(read("llama.cpp-2026-10")) == {
        "requests_running": 0,
        "requests_waiting": 0,
        "prompt_tokens_total": 33,
        "generation_tokens_total": 16,
        "prefix_cache_queries_total": 64,  # two prompts of 32 tokens
        "prefix_cache_hits_total": 31,
    }


def test_a_page_that_is_quoted_as_json() -> None:
    text = (PAGES / "llama.cpp-b4000.prom").read_text()
    assert scalars(PageReader("e").read(json.dumps(text).encode())) == scalars(read("llama.cpp-b4000"))
    torn = json.dumps(text)[:-1].replace("processing", "\\ud800") + '"'
    assert PageReader("e").read(torn.encode()).kind == "llama.cpp"


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
