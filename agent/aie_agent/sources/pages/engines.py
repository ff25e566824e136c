"""The map from each engine's page to aie's names: a row a metric. `docs/engines.md` says where the names come from and what each
engine cannot say.

Only what a page really says stands here. A mean is no histogram, a hit rate no counter, a sum over requests that ended no sum
over all; where an engine has no such number there is no row.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from aie_agent.sources.pages.rows import EngineMap, Expected, Fold, HitRate, Info, Outcomes, Row, SameSum, Term

_MS_PER_S: Final = 1e3

_ENDED: Final = {"stop": "ok", "length": "ok", "abort": "cancelled", "error": "error"}
_HTTP_CODES: Final = {"408": "timeout", "499": "cancelled", "504": "timeout", "4xx": "rejected", "5xx": "error"}


def _same(
    metric: str,
    *families: str,
    expected: Expected = Expected.NO,
    unless: tuple[str, ...] = (),
    needs: tuple[str, ...] = (),
    stepwise: bool = False,
) -> Row:
    """A family, under any of its names, that says exactly what `metric` says."""
    return Row(f"aie_engine_{metric}", (Term(families),), expected=expected, unless=unless, needs=needs, stepwise=stepwise)


def _only(metric: str, family: str, *where: str, fold: Fold = Fold.SUM, stepwise: bool = False) -> Row:
    """The series of one family with certain values of one label."""
    return Row(f"aie_engine_{metric}", (Term((family,), where=where, fold=fold),), stepwise=stepwise)


def _highest(metric: str, *families: str, expected: Expected = Expected.NO) -> Row:
    """A level of which the replica that is worst off counts."""
    return Row(f"aie_engine_{metric}", (Term(families, fold=Fold.MAX),), expected=expected)


def _observed(metric: str, family: str, unless: tuple[str, ...] = ()) -> Row:
    """A counter of which the page says only the distribution: its sum."""
    return Row(f"aie_engine_{metric}", (Term((family,), observed_total=True),), unless=unless)


def _added(metric: str, *families: str) -> Row:
    return Row(f"aie_engine_{metric}", tuple(Term((family,)) for family in families))


def _less(metric: str, family: str, part: str, unless: tuple[str, ...] = ()) -> Row:
    """What one counter has more than another, which counts a part of it."""
    return Row(f"aie_engine_{metric}", (Term((family,)), Term((part,), subtract=True)), unless=unless)


def _ended(family: str, label: str, values: dict[str, str], expected: Expected = Expected.NO) -> Row:
    """Requests that ended, with how they did in a label."""
    return Row("aie_engine_requests_total", (Term((family,)),), outcomes=Outcomes(label, values), expected=expected)


def _ended_as(outcome: str, family: str, expected: Expected = Expected.NO) -> Row:
    return Row("aie_engine_requests_total", (Term((family,)),), outcome=outcome, expected=expected)


def _latencies(prefix: str, *expected: str) -> Iterable[Row]:
    """What vLLM and those who took over its names call their histograms."""
    for metric, families in {
        "time_to_first_token_seconds": ("time_to_first_token_seconds",),
        "request_duration_seconds": ("e2e_request_latency_seconds",),
        "queue_seconds": ("request_queue_time_seconds",),
        "prefill_seconds": ("request_prefill_time_seconds",),
        "decode_seconds": ("request_decode_time_seconds",),
    }.items():
        names = tuple(prefix + family for family in families)
        yield _same(metric, *names, expected=Expected.ONCE_SERVED if metric in expected else Expected.NO)


# Before v1 a prompt was counted again when it was computed again.
_VLLM_V1: Final = ("vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries")

_VLLM: Final = EngineMap(
    kind="vllm",
    prefixes=("vllm:",),
    rows=(
        _same("requests_running", "vllm:num_requests_running", expected=Expected.ALWAYS),
        _same("requests_waiting", "vllm:num_requests_waiting", expected=Expected.ALWAYS),
        _ended("vllm:request_success", "finished_reason", {**_ENDED, "repetition": "ok"}, Expected.ONCE_SERVED),
        _ended_as("rejected", "vllm:admission_rejections"),
        _same("requests_refused_full_total", "vllm:admission_rejections"),
        # `prompt_tokens` counts whole prompts, also what the prefix cache had; only the newer family says what was computed. The
        # cache's hits are counted earlier than the prompts that have them, so that no difference of the two will do.
        _only("prompt_tokens_total", "vllm:prompt_tokens_by_source", "source", "local_compute"),
        _same("generation_tokens_total", "vllm:generation_tokens", expected=Expected.ONCE_SERVED, stepwise=True),
        *_latencies("vllm:", "time_to_first_token_seconds", "request_duration_seconds"),
        # The older name promised a mean per request, and was one observation a token all along.
        _same("inter_token_seconds", "vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds", stepwise=True),
        _same("time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"),
        # The family's own name ends in `_total`, and it is a histogram.
        _same("step_tokens", "vllm:iteration_tokens_total", stepwise=True),
        _same("request_prompt_tokens", "vllm:request_prompt_tokens"),
        _same("request_generation_tokens", "vllm:request_generation_tokens"),
        _highest("kv_usage_ratio", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", expected=Expected.ALWAYS),
        _same("preemptions_total", "vllm:num_preemptions"),
        _same("prefix_cache_queries_total", "vllm:prefix_cache_queries", "vllm:gpu_prefix_cache_queries"),
        _same("prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits"),
        # The library's own, of the process that serves the page; several API servers put theirs together from files, without it.
        _highest("start_time_seconds", "process_start_time_seconds"),
    ),
    replica="engine",
    awake=("vllm:engine_sleep_state", "sleep_state", "awake"),
    same_count=(("vllm:request_success", "vllm:e2e_request_latency_seconds"),),
    same_sum=(
        SameSum("vllm:prompt_tokens", "vllm:request_prompt_tokens", _VLLM_V1),
        SameSum("vllm:generation_tokens", "vllm:request_generation_tokens", _VLLM_V1),
    ),
    hit_rates=(
        HitRate("vllm:gpu_prefix_cache_hit_rate", ("vllm:gpu_prefix_cache_hits", "vllm:prefix_cache_hits")),
        HitRate("vllm:cpu_prefix_cache_hit_rate", ("vllm:external_prefix_cache_hits",)),
    ),
)

_PREFILLED: Final = ("mode", "prefill_compute", "prefill_cache")
# With priorities there is a series for each of them beside the total, whose priority is empty.
_ALL_PRIORITIES: Final = ("priority", "")
_REALTIME: Final = "sglang:realtime_tokens"
_UNCACHED: Final = "sglang:uncached_prompt_tokens_histogram"

_SGLANG: Final = EngineMap(
    kind="sglang",
    prefixes=("sglang:",),
    rows=(
        Row("aie_engine_requests_running", (Term(("sglang:num_running_reqs",), _ALL_PRIORITIES),), expected=Expected.ALWAYS),
        Row("aie_engine_requests_waiting", (Term(("sglang:num_queue_reqs",), _ALL_PRIORITIES),), expected=Expected.ALWAYS),
        # `num_requests` has those that ended while they ran, however they did, so also the aborted ones; but `num_aborted_requests`
        # has those too that had not begun. Neither is the number of those that ended well, nor is their difference.
        _ended_as("cancelled", "sglang:num_aborted_requests"),
        # The scheduler's own count moves with every step; that of the front end when a request ends, and with the cached part.
        _only("prompt_tokens_total", _REALTIME, "mode", "prefill_compute", stepwise=True),
        _observed("prompt_tokens_total", _UNCACHED, unless=(_REALTIME,)),
        _less("prompt_tokens_total", "sglang:prompt_tokens", "sglang:cached_tokens", unless=(_REALTIME, _UNCACHED)),
        _only("generation_tokens_total", _REALTIME, "mode", "decode", stepwise=True),
        _same("generation_tokens_total", "sglang:generation_tokens", unless=(_REALTIME,)),
        _same("time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
        _same("inter_token_seconds", "sglang:inter_token_latency_seconds"),
        _same("time_per_output_token_seconds", "sglang:request_time_per_output_token_seconds"),
        _same("request_duration_seconds", "sglang:e2e_request_latency_seconds", expected=Expected.ONCE_SERVED),
        _same("queue_seconds", "sglang:queue_time_seconds"),
        _same("request_prompt_tokens", "sglang:prompt_tokens_histogram"),
        _same("request_generation_tokens", "sglang:generation_tokens_histogram"),
        _highest("kv_usage_ratio", "sglang:token_usage", expected=Expected.ALWAYS),
        _same("kv_capacity_tokens", "sglang:max_total_num_tokens"),
        _same("kv_used_tokens", "sglang:num_used_tokens"),
        _same("preemptions_total", "sglang:num_retracted_requests"),
        _only("prefix_cache_queries_total", _REALTIME, *_PREFILLED),
        _only("prefix_cache_hits_total", _REALTIME, "mode", "prefill_cache"),
        _same("prefix_cache_queries_total", "sglang:prompt_tokens", needs=("sglang:cached_tokens",), unless=(_REALTIME,)),
        _same("prefix_cache_hits_total", "sglang:cached_tokens", unless=(_REALTIME,)),
    ),
    replica="dp_rank",
    # With attention in data parallel (`--enable-dp-attention`) replicas are ranks of one group. One without requests computes empty
    # batches as long as another has some, is never idle, and its numbers stand as they were: with requests running, too.
    alone=("tp_rank", "0"),
    same_count=(("sglang:num_requests", "sglang:e2e_request_latency_seconds"),),
    hit_rates=(HitRate("sglang:cache_hit_rate", ("sglang:cached_tokens", _REALTIME)),),
)

_TGI: Final = EngineMap(
    kind="tgi",
    prefixes=("tgi_",),
    rows=(
        _same("requests_running", "tgi_batch_current_size", expected=Expected.ONCE_SERVED),
        _same("requests_waiting", "tgi_queue_size", expected=Expected.ONCE_SERVED),
        _same("requests_received_total", "tgi_request_count", expected=Expected.ONCE_SERVED),
        _ended_as("ok", "tgi_request_success", Expected.ONCE_SERVED),
        _ended(
            "tgi_request_failure",
            "err",
            {
                "validation": "rejected",
                "overloaded": "rejected",
                "dropped": "cancelled",
                "generation": "error",
                "incomplete": "error",
                "download_adapter": "error",
            },
        ),
        _only("requests_refused_full_total", "tgi_request_failure", "err", "overloaded"),
        # Lengths of prompts have what the prefix cache had, which a page does not say: there is no number of computed tokens.
        _observed("generation_tokens_total", "tgi_request_generated_tokens"),
        _same("request_duration_seconds", "tgi_request_duration", expected=Expected.ONCE_SERVED),
        _same("queue_seconds", "tgi_request_queue_duration"),
        _same("step_seconds", "tgi_batch_inference_duration", stepwise=True),
        _same("request_prompt_tokens", "tgi_request_input_length"),
        _same("request_generation_tokens", "tgi_request_generated_tokens"),
    ),
    same_count=(("tgi_request_success", "tgi_request_duration"),),
)

_TRT_BACKEND_REQUESTS: Final = "nv_trt_llm_request_metrics"
_TRT_BACKEND_BLOCKS: Final = "nv_trt_llm_kv_cache_block_metrics"

_TRITON: Final = EngineMap(
    kind="triton",
    prefixes=("nv_inference_", "nv_trt_llm_"),
    rows=(
        # With the TensorRT-LLM backend requests wait there, where its batch manager sees them; the server has passed them on.
        _only("requests_running", _TRT_BACKEND_REQUESTS, "request_type", "scheduled"),
        _only("requests_waiting", _TRT_BACKEND_REQUESTS, "request_type", "waiting"),
        _same("requests_waiting", "nv_inference_pending_request_count", unless=(_TRT_BACKEND_REQUESTS,)),
        _ended_as("ok", "nv_inference_request_success", Expected.ALWAYS),
        # Older versions give no reason.
        _ended(
            "nv_inference_request_failure",
            "reason",
            {"REJECTED": "rejected", "CANCELED": "cancelled", "BACKEND": "error", "OTHER": "error", "": "error"},
            Expected.ALWAYS,
        ),
        # A model's queue that is full; nothing else has this reason.
        _only("requests_refused_full_total", "nv_inference_request_failure", "reason", "REJECTED"),
        Row(
            "aie_engine_time_to_first_token_seconds",
            (Term(("nv_inference_first_response_histogram_ms",)),),
            divide_by=_MS_PER_S,
        ),
        _only("kv_usage_ratio", _TRT_BACKEND_BLOCKS, "kv_cache_block_type", "fraction", fold=Fold.MAX),
        Row(
            "aie_engine_kv_capacity_tokens",
            (
                Term((_TRT_BACKEND_BLOCKS,), ("kv_cache_block_type", "max")),
                Term((_TRT_BACKEND_BLOCKS,), ("kv_cache_block_type", "tokens_per"), fold=Fold.MAX),
            ),
            product=True,
        ),
        _added("response_cache_queries_total", "nv_cache_num_hits_per_model", "nv_cache_num_misses_per_model"),
        _same("response_cache_hits_total", "nv_cache_num_hits_per_model"),
    ),
)

_TRTLLM: Final = EngineMap(
    kind="tensorrt-llm",
    prefixes=("trtllm_",),
    rows=(
        _same("requests_running", "trtllm_num_requests_running"),
        _same("requests_waiting", "trtllm_num_requests_waiting"),
        _ended(
            "trtllm_request_success",
            "finished_reason",
            {"stop": "ok", "length": "ok", "cancelled": "cancelled", "timeout": "timeout"},
            Expected.ONCE_SERVED,
        ),
        _ended("trtllm_request_error", "http_code", _HTTP_CODES),
        _less("prompt_tokens_total", "trtllm_prompt_tokens", "trtllm_prompt_cached_tokens"),
        _same("generation_tokens_total", "trtllm_generation_tokens"),
        *_latencies("trtllm_", "time_to_first_token_seconds", "request_duration_seconds"),
        _same("time_per_output_token_seconds", "trtllm_time_per_output_token_seconds"),
        _highest("kv_usage_ratio", "trtllm_kv_cache_utilization"),
        Row(
            "aie_engine_kv_capacity_tokens",
            (Term(("trtllm_kv_cache_max_blocks",)), Term(("trtllm_kv_cache_tokens_per_block",), fold=Fold.MAX)),
            product=True,
        ),
        _same("prefix_cache_queries_total", "trtllm_prompt_tokens", needs=("trtllm_prompt_cached_tokens",)),
        _same("prefix_cache_hits_total", "trtllm_prompt_cached_tokens"),
    ),
    info=(Info("trtllm_model_config_info", (("dtype", "dtype"),)),),
    hit_rates=(HitRate("trtllm_kv_cache_hit_rate", ("trtllm_kv_cache_reused_blocks", "trtllm_kv_cache_missed_blocks")),),
)

_LLAMA_CPP: Final = EngineMap(
    kind="llama.cpp",
    prefixes=("llamacpp:",),
    rows=(
        _same("requests_running", "llamacpp:requests_processing", expected=Expected.ALWAYS),
        _same("requests_waiting", "llamacpp:requests_deferred", expected=Expected.ALWAYS),
        _same("prompt_tokens_total", "llamacpp:prompt_tokens", expected=Expected.ALWAYS),
        _same("generation_tokens_total", "llamacpp:tokens_predicted", expected=Expected.ALWAYS),
        _highest("kv_usage_ratio", "llamacpp:kv_cache_usage_ratio"),
        _same("kv_used_tokens", "llamacpp:kv_cache_tokens"),
        # What was computed and what the cache had are all that was looked up.
        _added("prefix_cache_queries_total", "llamacpp:prompt_tokens", "llamacpp:prompt_tokens_cached"),
        _same("prefix_cache_hits_total", "llamacpp:prompt_tokens_cached"),
    ),
    beats=("llamacpp:n_decode",),
)

ENGINES: Final = (_VLLM, _SGLANG, _TGI, _TRTLLM, _LLAMA_CPP, _TRITON)
"""In the order in which they are looked for: Triton is last, since it also serves the pages of engines that it hosts."""

KNOWN: Final = ("aie-engine", "vLLM", "SGLang", "TGI", "TensorRT-LLM", "llama.cpp", "Triton")
"""As users know them: for messages."""


def recognise(names: Iterable[str]) -> EngineMap | None:
    """The engine whose page has these names on it; None for one that nobody knows."""
    names = tuple(names)
    return next((engine for engine in ENGINES if any(name.startswith(engine.prefixes) for name in names)), None)
