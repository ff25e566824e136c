"""vLLM's numbers, as its stat loggers are given them, in aie's names. Knows the fields, and imports nothing of vLLM.

    stats = VllmStats.of_process("vllm", model="m")      # one a process, for all its data-parallel engine cores
    stats.record(scheduler_stats, iteration_stats, 0)    # from `StatLoggerBase.record`, once a step and engine core

`docs/instrument-your-engine.md` has the plugin around it. What is sent is what the agent makes of vLLM's page, so that page and
hooks are one engine by one name with the same numbers: levels of the cores are added up (of the KV cache's usage the highest is
taken), and prompt tokens are those computed, without what a cache had. vLLM does not call these classes stable: a field that is
not there is a metric that is not sent. Times below vLLM's lowest bucket bounds (10 ms between tokens, 0.3 s in the queue) can be
told apart here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any, Final

from aie_hooks.emitter import Emitter
from aie_hooks.series import Counter, Gauge, Histogram
from aie_telemetry.catalogue import CATALOGUE, Kind

# By field of SchedulerStats: the metric, and what the levels of several engine cores are together.
_LEVELS: Final[dict[str, tuple[str, Callable[[Iterable[float]], float]]]] = {
    "num_running_reqs": ("aie_engine_requests_running", sum),
    "num_waiting_reqs": ("aie_engine_requests_waiting", sum),
    "kv_cache_usage": ("aie_engine_kv_usage_ratio", max),
}
# By field of its `prefix_cache_stats`: what was added since the step before.
_PREFIX_CACHE: Final = {
    "queries": "aie_engine_prefix_cache_queries_total",
    "hits": "aie_engine_prefix_cache_hits_total",
}
# By field of IterationStats: sums of the step, and lists of its observations.
_PROMPT_TOKENS: Final = "aie_engine_prompt_tokens_total"
_SUMS: Final = {
    "num_generation_tokens": "aie_engine_generation_tokens_total",
    "num_preempted_reqs": "aie_engine_preemptions_total",
}
_LISTS: Final = {
    "time_to_first_tokens_iter": "aie_engine_time_to_first_token_seconds",
    "inter_token_latencies_iter": "aie_engine_inter_token_seconds",
}
# By field of FinishedRequestStats.
_OF_REQUESTS: Final = {
    "e2e_latency": "aie_engine_request_duration_seconds",
    "queued_time": "aie_engine_queue_seconds",
    "prefill_time": "aie_engine_prefill_seconds",
    "decode_time": "aie_engine_decode_seconds",
    "mean_time_per_output_token": "aie_engine_time_per_output_token_seconds",
    "num_prompt_tokens": "aie_engine_request_prompt_tokens",
    "num_generation_tokens": "aie_engine_request_generation_tokens",
}
# By the text of a FinishReason.
_OUTCOMES: Final = {"stop": "ok", "length": "ok", "repetition": "ok", "abort": "cancelled", "error": "error"}

# How many tokens a request must have had for a field to mean what the catalogue says: of one with fewer vLLM says 0, or worse.
_LEAST_TOKENS: Final = {
    "prefill_time": 1,
    "decode_time": 2,
    "mean_time_per_output_token": 2,
    "num_prompt_tokens": 1,
    "num_generation_tokens": 1,
}


class VllmStats:
    """For all engine cores of one process of vLLM. Called by one thread at a time, as stat loggers are."""

    @staticmethod
    @functools.cache
    def of_process(engine: str, model: str) -> VllmStats:
        """The one of this process for an engine's name and a model: a second emitter would count everything twice. Raises as
        `Emitter` does."""
        return VllmStats(Emitter(engine), model=model)

    def __init__(self, emitter: Emitter, *, model: str, rate: float = 0.1) -> None:
        """`rate` is the share of the observations that are sent; sums are exact. Raises ValueError as handles do."""
        self._emitter = emitter
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._levels: dict[str, dict[int, float]] = {field: {} for field in _LEVELS}
        levels = [name for name, _ in _LEVELS.values()]
        for name in (*levels, *_PREFIX_CACHE.values(), _PROMPT_TOKENS, *_SUMS.values(), *_LISTS.values(), *_OF_REQUESTS.values()):
            kind = CATALOGUE[name].kind
            if kind is Kind.GAUGE:
                self._gauges[name] = emitter.gauge(name, model=model)
            elif kind is Kind.COUNTER:
                self._counters[name] = emitter.counter(name, model=model)
            else:
                self._histograms[name] = emitter.histogram(name, rate, model=model)
        self._ended = {
            outcome: emitter.counter("aie_engine_requests_total", model=model, outcome=outcome)
            for outcome in set(_OUTCOMES.values())
        }

    def record(self, scheduler_stats: Any | None, iteration_stats: Any | None, engine_index: int = 0) -> None:
        """One step of one engine core. Never raises: what cannot be read is logged once and counted as dropped."""
        try:
            if scheduler_stats is not None:
                self._scheduler(scheduler_stats, engine_index)
            if iteration_stats is not None:
                self._iteration(iteration_stats)
        except Exception as error:  # noqa: BLE001 - classes of another project, which say of themselves that they change
            self._emitter.failed("reading vLLM's numbers", error)

    def _scheduler(self, stats: Any, engine_index: int) -> None:
        for field, (name, together) in _LEVELS.items():
            value = getattr(stats, field, None)
            if value is not None:
                levels = self._levels[field]
                levels[engine_index] = value
                self._gauges[name].set(together(levels.values()))
        self._add(getattr(stats, "prefix_cache_stats", None), _PREFIX_CACHE)

    def _iteration(self, stats: Any) -> None:
        self._add(stats, _SUMS)
        # Where vLLM tells sources apart: `local_compute` of its page. Before, all there is, on the page as well.
        by_source = getattr(stats, "prompt_token_stats", None)
        computed = getattr(stats, "num_prompt_tokens", None) if by_source is None else getattr(by_source, "computed", None)
        if computed:
            self._counters[_PROMPT_TOKENS].add(computed)
        for field, name in _LISTS.items():
            histogram = self._histograms[name]
            for value in getattr(stats, field, ()):
                histogram.observe(value)
        self._finished(getattr(stats, "finished_requests", ()))

    def _add(self, stats: Any | None, fields: dict[str, str]) -> None:
        for field, name in fields.items():
            value = getattr(stats, field, None)
            if value:
                self._counters[name].add(value)

    def _finished(self, requests: Iterable[Any]) -> None:
        for request in requests:
            outcome = _OUTCOMES.get(str(request.finish_reason))
            if outcome is None:
                self._emitter.drop("invalid", 1)
            else:
                self._ended[outcome].add()
            tokens = getattr(request, "num_generation_tokens", 0)
            for field, name in _OF_REQUESTS.items():
                value = _of_request(request, field)
                if value is not None and tokens >= _LEAST_TOKENS.get(field, 0):
                    self._histograms[name].observe(value)


def _of_request(request: Any, field: str) -> Any:
    """A field of FinishedRequestStats, or of its `timing`, where newer vLLM has the stages."""
    value = getattr(request, field, None)
    return getattr(getattr(request, "timing", None), field, None) if value is None else value
