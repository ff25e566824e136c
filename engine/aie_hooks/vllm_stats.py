"""vLLM's numbers, as its stat loggers are given them, in aie's names. Knows the fields, and imports nothing of vLLM.

    stats = VllmStats(Emitter("vllm"), model="m")
    stats.record(scheduler_stats, iteration_stats)       # from `StatLoggerBase.record`, once a step

`docs/instrument-your-engine.md` has the plugin around it. vLLM does not call these classes stable: a field that is not there is a
metric that is not sent. Times below vLLM's lowest bucket bounds (10 ms between tokens, 0.3 s in the queue) can be told apart here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from aie_hooks.emitter import Emitter
from aie_hooks.series import Counter, Gauge, Histogram
from aie_telemetry.catalogue import CATALOGUE, Kind

# By field of SchedulerStats.
_LEVELS: Final = {
    "num_running_reqs": "aie_engine_requests_running",
    "num_waiting_reqs": "aie_engine_requests_waiting",
    "kv_cache_usage": "aie_engine_kv_usage_ratio",
}
# By field of its `prefix_cache_stats`: what was added since the step before.
_PREFIX_CACHE: Final = {
    "queries": "aie_engine_prefix_cache_queries_total",
    "hits": "aie_engine_prefix_cache_hits_total",
}
# By field of IterationStats: sums of the step, and lists of its observations.
_SUMS: Final = {
    "num_prompt_tokens": "aie_engine_prompt_tokens_total",
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

# Of a request with one token there is no time between tokens, and vLLM says 0.
_ONLY_ABOVE_0: Final = frozenset({"decode_time", "mean_time_per_output_token"})


class VllmStats:
    """For one engine core of vLLM. Called by one thread at a time, as stat loggers are."""

    def __init__(self, emitter: Emitter, *, model: str, rate: float = 0.1) -> None:
        """`rate` is the share of the observations that are sent; sums are exact. Raises ValueError as handles do."""
        self._emitter = emitter
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for name in (*_LEVELS.values(), *_PREFIX_CACHE.values(), *_SUMS.values(), *_LISTS.values(), *_OF_REQUESTS.values()):
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

    def record(self, scheduler_stats: Any | None, iteration_stats: Any | None) -> None:
        """One step. Never raises: what cannot be read is logged once and counted as dropped."""
        try:
            if scheduler_stats is not None:
                self._scheduler(scheduler_stats)
            if iteration_stats is not None:
                self._iteration(iteration_stats)
        except Exception as error:  # noqa: BLE001 - classes of another project, which say of themselves that they change
            self._emitter.failed("reading vLLM's numbers", error)

    def _scheduler(self, stats: Any) -> None:
        for field, name in _LEVELS.items():
            value = getattr(stats, field, None)
            if value is not None:
                self._gauges[name].set(value)
        self._add(getattr(stats, "prefix_cache_stats", None), _PREFIX_CACHE)

    def _iteration(self, stats: Any) -> None:
        self._add(stats, _SUMS)
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
            for field, name in _OF_REQUESTS.items():
                value = getattr(request, field, None)
                if value is not None and (value > 0 or field not in _ONLY_ABOVE_0):
                    self._histograms[name].observe(value)
