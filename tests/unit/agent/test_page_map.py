"""Each engine's page to aie's names: what comes out is the traffic behind the page, and nothing that the page does not say."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from fakes.page_readings import PAGES, TRTLLM, VLLM, histograms, outcomes, read, scalars
from fixtures.pages import render, render_text
from fixtures.pages.traffic import traffic

from aie_agent.samples import HistogramPoint
from aie_agent.sources.pages.reader import PageReader


def assert_observed(histogram: HistogramPoint, bounds: tuple[float, ...], values: list[float]) -> None:
    """`histogram` is that of `values`, in the page's own buckets."""
    assert histogram.bounds == pytest.approx(bounds)
    edges = (-1.0, *histogram.bounds, float("inf"))
    counts = [sum(low < value <= high for value in values) for low, high in pairwise(edges)]
    assert list(histogram.counts) == counts
    assert histogram.total == pytest.approx(sum(values))


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
