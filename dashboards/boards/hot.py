"""Where to look first: the ten of each kind that have the most, or are the worst."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import Board, Query, Row, Situation, bars

_E: Final = "instance, engine"
_TEN: Final = 10
_ON_GPU: Final = 'device!="cpu"'
_OF_MODEL: Final = "{{model}}"
_MODELS: Final = p.by("instance, engine, model", p.of("aie_engine_info", p.ENGINE), "max")
_HELD: Final = p.by(_E, p.of("aie_engine_memory_physical_bytes", p.ENGINE, _ON_GPU))
_HELD_BY_MODELS: Final = f"{_MODELS} * on (job, instance, engine) group_left () {_HELD}"
"""Memory is of an engine and its device; which models that is, its page tells. One engine may have many: they stand first."""

_GPU: Final = Row(
    "GPUs",
    (
        bars(
            "GPU memory by model",
            "Which models hold the most GPU memory, over all hosts? What an engine of several holds counts for each.",
            "bytes",
            Query(p.top(_TEN, p.by("model", _HELD_BY_MODELS)), _OF_MODEL),
            situation=Situation.GPUS,
            empty="no engine of a known model is seen on a GPU",
        ),
        bars(
            "GPU memory by engine",
            "Which engines hold the most of it?",
            "bytes",
            Query(p.top(_TEN, _HELD), p.OF_ENGINE),
            situation=Situation.GPUS,
            link="memory",
            empty="no engine is seen on a GPU",
        ),
        bars(
            "Fullest GPUs",
            "Which GPUs have the least memory left?",
            "percentunit",
            Query(
                p.top(
                    _TEN,
                    p.by("instance, gpu", p.share(p.of("aie_gpu_memory_used_bytes"), p.of("aie_gpu_memory_total_bytes")), "max"),
                ),
                p.OF_GPU,
            ),
            most=1,
            situation=Situation.GPUS,
            link="gpu",
            empty="no agent here sees a GPU",
        ),
        bars(
            "Idlest GPUs that hold memory",
            "Which GPUs are taken, and do nothing?",
            "percentunit",
            Query(
                p.bottom(
                    _TEN,
                    f"{p.by('instance, gpu', p.of('aie_gpu_utilization_ratio'), 'max')}"
                    f" and on (job, instance, gpu) {p.by('instance, gpu', p.of('aie_gpu_processes'), 'max')} > 0",
                ),
                p.OF_GPU,
            ),
            most=1,
            situation=Situation.GPUS,
            link="gpu",
            empty="no GPU is taken",
        ),
    ),
)

_ENGINES: Final = Row(
    "Engines",
    (
        bars(
            "Slowest to the first token, p99",
            "Whose users wait longest?",
            "s",
            Query(p.top(_TEN, p.quantile(0.99, "aie_engine_time_to_first_token_seconds", _E, p.ENGINE)), p.OF_ENGINE),
            link="engine",
        ),
        bars(
            "Most requests waiting",
            "Where are the queues?",
            "none",
            Query(p.top(_TEN, p.by(_E, p.of("aie_engine_requests_waiting", p.ENGINE))), p.OF_ENGINE),
            link="engine",
        ),
        bars(
            "Fullest KV caches",
            "Who can take no more requests soon?",
            "percentunit",
            Query(p.top(_TEN, p.by(_E, p.of("aie_engine_kv_usage_ratio", p.ENGINE), "max")), p.OF_ENGINE),
            most=1,
            link="engine",
        ),
        bars(
            "Most tokens a second",
            "Who does the work?",
            "short",
            Query(p.top(_TEN, p.total("aie_engine_generation_tokens_total", _E, p.ENGINE)), p.OF_ENGINE),
            link="engine",
        ),
    ),
)

_HOSTS: Final = Row(
    "Memory and CPU",
    (
        bars(
            "Fastest growing memory",
            "Which line of memory rises fastest, of those that may leak?",
            "binBps",
            Query(
                p.top(_TEN, p.by(f"{_E}, device, line", p.of("aie_leak_rate_bytes_per_second", p.ENGINE), "max")),
                "{{line}} {{engine}} {{device}} ({{instance}})",
            ),
            situation=Situation.HOOKS,
            link="memory",
            empty="nothing rises as a leak does",
        ),
        bars(
            "Most heap on the host",
            "Which engines hold the most memory of their hosts?",
            "bytes",
            Query(p.top(_TEN, p.by(_E, p.of("aie_process_resident_anon_bytes", p.ENGINE))), p.OF_ENGINE),
            link="memory",
            empty="no engine's process is known",
        ),
        bars(
            "Most CPU",
            "Which engines take the most CPU, in CPUs?",
            "short",
            Query(p.top(_TEN, p.total("aie_process_cpu_seconds_total", _E, p.ENGINE)), p.OF_ENGINE),
            link="host",
            empty="no engine's process is known",
        ),
        bars(
            "Longest waits for locks",
            "Which engines' threads stand before locks, in threads?",
            "short",
            Query(
                p.top(_TEN, p.total("aie_process_wait_seconds_total", f"{_E}, reason", p.ENGINE, 'reason=~"lock|gil"')),
                f"{{{{reason}}}} {p.OF_ENGINE}",
            ),
            situation=Situation.PROBES,
            link="host",
            empty="needs eBPF: `aie-agent check` says what is missing",
        ),
    ),
)

HOT: Final = Board(
    "hot",
    "aie / Hot spots",
    "Which ten have the most, or are the worst?",
    ("job", "instance", "engine"),
    (_GPU, _ENGINES, _HOSTS),
)
