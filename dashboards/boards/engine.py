"""One engine or some: what is asked of it, how long that takes and where, what limits it."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import Board, Kind, Panel, Query, Row, Situation, Step, Word, lines, stat

_E: Final = "instance, engine"
PERCENTILES: Final = ((0.5, "p50", "blue"), (0.95, "p95", "purple"), (0.99, "p99", "orange"))
OUTCOMES: Final = (
    ("ok", Word("", "green")),
    ("error", Word("", "red")),
    ("timeout", Word("", "orange")),
    ("rejected", Word("", "yellow")),
    ("cancelled", Word("", "blue")),
)


def percentiles(title: str, question: str, histogram: str, unit: str = "s", *, by_model: bool = False, **more: object) -> Panel:
    """The middle, the slow and the slowest of what a histogram saw; of each model of an engine, where they must not be mixed."""
    labels, whose = (f"{_E}, model", "{{engine}} {{model}} ({{instance}})") if by_model else (_E, p.OF_ENGINE)
    queries = (Query(p.quantile(at, histogram, labels, p.MODEL), f"{name} {whose}") for at, name, _ in PERCENTILES)
    return lines(title, question, unit, *queries, colours=tuple(colour for _, _, colour in PERCENTILES), **more)


def _slow(title: str, question: str, metric: str, unit: str = "s", **more: object) -> Panel:
    """A percentile of each of some histograms."""
    return lines(title, question, unit, Query(p.quantile(0.95, metric, _E, p.MODEL), p.OF_ENGINE), **more)


def _slowest(share: float, histogram: str) -> str:
    """The largest of the engines' percentiles. Buckets of engines are not added up: each kind of engine has bounds of its own."""
    return p.by("", p.quantile(share, histogram, _E, p.MODEL), "max")


_ENDED: Final = p.total("aie_engine_requests_total", "", p.MODEL)
_FAILED: Final = p.total("aie_engine_requests_total", "", p.MODEL, 'outcome=~"error|timeout|rejected"')
"""Of an engine that never failed there may be no such series: then it is 0 of those that ended."""

_ANSWER: Final = Row(
    "",
    (
        stat(
            "Requests a second",
            "How much is asked?",
            "reqps",
            Query(p.total("aie_engine_requests_total", "", p.MODEL), "{{job}}"),
        ),
        stat(
            "Requests that failed",
            "Which share ended in an error or a timeout, or was rejected?",
            "percentunit",
            Query(
                p.share(
                    f"({_FAILED} or 0 * {_ENDED})",
                    _ENDED,
                ),
                "{{job}}",
            ),
            empty="no request ended",
        ),
        stat(
            "First token, p99",
            "How long does the unluckiest of a hundred wait for a first token, at the slowest engine?",
            "s",
            Query(_slowest(0.99, "aie_engine_time_to_first_token_seconds"), "{{job}}"),
        ),
        stat(
            "Between tokens, p99",
            "How long is the longest of a hundred pauses between tokens, at the slowest engine?",
            "s",
            Query(_slowest(0.99, "aie_engine_inter_token_seconds"), "{{job}}"),
        ),
        stat(
            "Waiting requests",
            "Is there a queue?",
            "none",
            Query(p.by("", p.of("aie_engine_requests_waiting", p.MODEL)), "{{job}}"),
        ),
        stat(
            "KV cache in use, fullest engine",
            "Is there room for more requests?",
            "percentunit",
            Query(p.by("", p.of("aie_engine_kv_usage_ratio", p.MODEL), "max"), "{{job}}"),
        ),
    ),
)

_TRAFFIC: Final = Row(
    "Traffic",
    (
        lines(
            "Requests ended, by outcome",
            "How much is asked, and does it end well?",
            "reqps",
            Query(p.total("aie_engine_requests_total", "outcome", p.MODEL), "{{outcome}}"),
            stacked=True,
            words=OUTCOMES,
        ),
        lines(
            "Running and waiting",
            "Does the queue grow, while how many are served at once?",
            "none",
            Query(p.by(_E, p.of("aie_engine_requests_running", p.MODEL)), f"running {p.OF_ENGINE}"),
            Query(p.by(_E, p.of("aie_engine_requests_waiting", p.MODEL)), f"waiting {p.OF_ENGINE}"),
            colours=("blue", "orange"),
            runbooks=("queue_saturation", "client_flood"),
        ),
        lines(
            "Tokens a second",
            "How much is read, and how much written?",
            "short",
            Query(p.total("aie_engine_prompt_tokens_total", _E, p.MODEL), f"prompt {p.OF_ENGINE}"),
            Query(p.total("aie_engine_generation_tokens_total", _E, p.MODEL), f"generated {p.OF_ENGINE}"),
            colours=("purple", "blue"),
        ),
    ),
)

_LATENCY: Final = Row(
    "Latency",
    (
        percentiles(
            "Time to first token",
            "How long until a user sees something?",
            "aie_engine_time_to_first_token_seconds",
            runbooks=("queue_saturation", "prefill_interference"),
        ),
        percentiles(
            "Time between tokens",
            "Does text come steadily?",
            "aie_engine_inter_token_seconds",
            runbooks=("prefill_interference", "python_gc"),
        ),
        percentiles(
            "Duration of requests",
            "How long does a whole answer take? Long answers take long: see the lengths below.",
            "aie_engine_request_duration_seconds",
        ),
    ),
)

_STAGES: Final = Row(
    "Where the time goes (p95)",
    (
        lines(
            "Stages of a request, p95",
            "Which stage takes the time: tokenising, the queue, the prompt, or the answer?",
            "s",
            *(
                Query(p.quantile(0.95, f"aie_engine_{stage}_seconds", _E, p.MODEL), f"{stage} {p.OF_ENGINE}")
                for stage in ("tokenize", "queue", "prefill", "decode", "detokenize")
            ),
            colours=("yellow", "orange", "purple", "blue", "green"),
            width=16,
            runbooks=("tokenizer_bound", "queue_saturation"),
            empty="this engine's page tells no stages",
        ),
        percentiles(
            "Step of the model loop",
            "How long does one step take, which all its requests wait for?",
            "aie_engine_step_seconds",
            empty="this engine's page does not tell",
        ),
    ),
)

_LIMITS: Final = Row(
    "What limits it",
    (
        lines(
            "KV cache in use",
            "Is there room for more requests?",
            "percentunit",
            Query(p.by(_E, p.of("aie_engine_kv_usage_ratio", p.MODEL), "max"), p.OF_ENGINE),
            most=1,
            runbooks=("kv_preemption", "kv_accounting", "AieKvCacheFull"),
        ),
        lines(
            "Preemptions a second",
            "Do running requests lose their cache to others, and begin again?",
            "short",
            Query(p.total("aie_engine_preemptions_total", _E, p.MODEL), p.OF_ENGINE),
            situation=Situation.OTHERS,
            empty="this engine never preempts, or its page does not tell",
            runbooks=("kv_preemption",),
        ),
        lines(
            "Cache hits",
            "Which share of prompt tokens, or of requests, was answered from a cache?",
            "percentunit",
            Query(
                p.share(
                    p.total("aie_engine_prefix_cache_hits_total", _E, p.MODEL),
                    p.total("aie_engine_prefix_cache_queries_total", _E, p.MODEL),
                ),
                f"prefix {p.OF_ENGINE}",
                Situation.OTHERS,  # aie-engine has no such cache
            ),
            Query(
                p.share(
                    p.total("aie_engine_response_cache_hits_total", _E, p.MODEL),
                    p.total("aie_engine_response_cache_queries_total", _E, p.MODEL),
                ),
                f"responses {p.OF_ENGINE}",
            ),
            colours=("blue", "green"),
            most=1,
            situation=Situation.HOOKS,
            empty="this engine has no such cache, or nothing was looked up",
            runbooks=("cache_hit_collapse",),
        ),
        _slow(
            "Requests in a step, p95",
            "How far are requests batched?",
            "aie_engine_step_batch_size",
            "none",
            empty="this engine's page does not tell",
        ),
        _slow(
            "Event loop late, p95",
            "Does every request wait where HTTP is served?",
            "aie_engine_event_loop_lag_seconds",
            empty="this engine's page does not tell",
            runbooks=("gil_contention",),
        ),
        lines(
            "Garbage collector",
            "For which share of time does all of Python stand still?",
            "percentunit",
            Query(p.total("aie_engine_gc_pause_seconds_sum", _E, p.MODEL), p.OF_ENGINE),
            empty="this engine's page does not tell",
            runbooks=("python_gc",),
        ),
    ),
)

_REQUESTS: Final = Row(
    "What is asked",
    (
        percentiles(
            "Length of prompts",
            "Have prompts become longer?",
            "aie_engine_request_prompt_tokens",
            "short",
            width=12,
        ),
        percentiles(
            "Length of answers",
            "Have answers become longer, or end early?",
            "aie_engine_request_generation_tokens",
            "short",
            width=12,
            runbooks=("output_collapse",),
        ),
        lines(
            "KV tokens",
            "Is memory reserved that no token fills?",
            "short",
            Query(p.by(_E, p.of("aie_engine_kv_capacity_tokens", p.MODEL)), f"capacity {p.OF_ENGINE}"),
            Query(p.by(_E, p.of("aie_engine_kv_used_tokens", p.MODEL)), f"reserved {p.OF_ENGINE}"),
            Query(p.by(_E, p.of("aie_engine_kv_written_tokens", p.MODEL)), f"written {p.OF_ENGINE}"),
            colours=("text", "orange", "blue"),
            width=12,
            empty="this engine's page does not tell",
        ),
        lines(
            "Since the last token",
            "Does an engine with requests in it produce nothing?",
            "s",
            Query(
                p.by(_E, f"time() - {p.of('aie_engine_last_token_timestamp_seconds', p.MODEL)}", "min"),
                p.OF_ENGINE,
            ),
            steps=(Step(None, "transparent"), Step(60, "red")),
            width=12,
            empty="this engine's page does not tell",
            runbooks=("engine_hung", "engine_stopped", "AieEngineStalled"),
        ),
    ),
    folded=True,
)

_EACH: Final = Row(
    "All requests of each engine",
    (
        Panel(
            "Time to first token, all requests of $engine",
            "Are there two kinds of requests, which a percentile would hide? A picture for each engine; choose one job.",
            "s",
            (Query(p.total("aie_engine_time_to_first_token_seconds_bucket", "engine, le", p.MODEL)),),
            kind=Kind.HEATMAP,
            width=12,
        ),
    ),
    folded=True,
)

ENGINE: Final = Board(
    "engine",
    "aie / Engine",
    "How do the engines do, and where does the time go?",
    ("job", "instance", "engine", "model"),
    (_ANSWER, _TRAFFIC, _LATENCY, _STAGES, _LIMITS, _REQUESTS, _EACH),
)
