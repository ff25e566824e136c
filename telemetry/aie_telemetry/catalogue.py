"""The one table of metrics: every name that aie sends, exports, stores or draws stands here, once.

The StatsD lines, the Prometheus pages, `aie-top` and the generated `docs/metrics.md` use these names; tests fail when one of
them uses a name that is not in the table. Naming follows Prometheus: base units in the suffix, `_total` on counters only,
one `_info` gauge per entity for what is descriptive.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a metric's samples combine: a counter only rises, a gauge is a level, a histogram is a distribution."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the catalogue. `buckets` are a histogram's upper bounds in `unit`, ascending, without +Inf."""

    name: str
    kind: Kind
    unit: str
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


OUTCOMES: Final = ("ok", "error", "cancelled", "timeout", "rejected")
"""How a request ends. Every request an engine received ends in exactly one of them."""

# Bounds follow the field's (OpenTelemetry GenAI, vLLM, SGLang, TensorRT-LLM) and add the low end, where those cannot tell a
# fast small model from a slow one: vLLM's lowest inter-token bound is 10 ms, its lowest queue bound 300 ms.
TTFT_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
INTER_TOKEN_BUCKETS: Final = (
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2, 0.4, 0.6, 0.8,
    1.0, 2.0, 4.0, 6.0, 8.0,
)  # fmt: skip
QUEUE_BUCKETS: Final = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0,
)  # fmt: skip
DURATION_BUCKETS: Final = (
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68, 655.36,
)  # fmt: skip
STEP_BUCKETS: Final = (
    0.001, 0.002, 0.004, 0.008, 0.012, 0.016, 0.024, 0.032, 0.048, 0.064, 0.096, 0.128, 0.192, 0.256, 0.384, 0.512, 1.0,
    2.0, 4.0,
)  # fmt: skip

STAGE_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0,
)  # fmt: skip
PAUSE_BUCKETS: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
LENGTH_BUCKETS: Final = tuple(float(n) for n in (
    1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072,
))  # fmt: skip
BATCH_BUCKETS: Final = tuple(float(n) for n in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512))
NATS_BUCKETS: Final = (
    0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0,
)  # fmt: skip
LOGSUMEXP_BUCKETS: Final = (
    -200.0, -100.0, -50.0, -20.0, -10.0, -5.0, 0.0, 5.0, 10.0, 12.0, 14.0, 16.0, 18.0, 20.0, 22.0, 24.0, 26.0, 28.0, 30.0, 35.0,
    40.0, 50.0, 100.0, 200.0,
)  # fmt: skip

_ENGINE = ("engine", "model")
_MEMORY = ("engine", "device")


def _counter(name: str, unit: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.COUNTER, unit, labels, help_)


def _gauge(name: str, unit: str, labels: tuple[str, ...], help_: str) -> Metric:
    return Metric(name, Kind.GAUGE, unit, labels, help_)


def _histogram(name: str, unit: str, labels: tuple[str, ...], help_: str, buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, unit, labels, help_, buckets)


_ENGINE_METRICS: Final = (
    _gauge("aie_engine_info", "1", (*_ENGINE, "kind", "version", "revision", "device", "dtype"),
           "Always 1; the labels describe the engine: what kind it is, its version, its model's revision, where it computes."),
    _gauge("aie_engine_up", "1", ("engine",),
           "1 while at least one process of the engine is alive, 0 after the last one went. Absent while none was ever seen."),
    _gauge("aie_engine_start_time_seconds", "seconds", _ENGINE, "When the engine started, in seconds since the epoch."),
    _counter("aie_engine_requests_received_total", "requests", _ENGINE,
             "Requests that reached the engine. Equals the sum of all outcomes plus those running and waiting."),
    _counter("aie_engine_requests_total", "requests", (*_ENGINE, "outcome"),
             "Requests ended, by outcome: ok, error, cancelled (the client left), timeout (deadline), rejected (queue full, bad request, or its body came too slowly)."),
    _gauge("aie_engine_requests_running", "requests", _ENGINE, "Requests admitted to the model loop and not ended."),
    _gauge("aie_engine_requests_waiting", "requests", _ENGINE, "Requests accepted and waiting for a place in the batch."),
    _counter("aie_engine_prompt_tokens_total", "tokens", _ENGINE, "Prompt tokens computed (prefill)."),
    _counter("aie_engine_generation_tokens_total", "tokens", _ENGINE, "Tokens generated (decode)."),
    _histogram("aie_engine_time_to_first_token_seconds", "seconds", _ENGINE,
               "From the arrival of a request to its first token.", TTFT_BUCKETS),
    _histogram("aie_engine_inter_token_seconds", "seconds", _ENGINE,
               "Between two consecutive tokens of one request.", INTER_TOKEN_BUCKETS),
    _histogram("aie_engine_queue_seconds", "seconds", _ENGINE,
               "From the arrival of a request to its admission to the batch.", QUEUE_BUCKETS),
    _histogram("aie_engine_request_duration_seconds", "seconds", _ENGINE,
               "From the arrival of an admitted request to its end, whatever the outcome.", DURATION_BUCKETS),
    _histogram("aie_engine_time_per_output_token_seconds", "seconds", _ENGINE,
               "Mean time between the tokens of one request, from its first to its last: one observation a request.", INTER_TOKEN_BUCKETS),
    _histogram("aie_engine_tokenize_seconds", "seconds", _ENGINE,
               "From a complete request body to its token ids: chat template and tokenizer, and the wait for a thread that runs them.", STAGE_BUCKETS),
    _histogram("aie_engine_prefill_seconds", "seconds", _ENGINE,
               "From the admission of a request to its first token.", STAGE_BUCKETS),
    _histogram("aie_engine_decode_seconds", "seconds", _ENGINE,
               "From a request's first token to its last.", STAGE_BUCKETS),
    _histogram("aie_engine_detokenize_seconds", "seconds", _ENGINE,
               "Time that went into turning one request's tokens into text, all its tokens together.", STAGE_BUCKETS),
    _histogram("aie_engine_step_seconds", "seconds", _ENGINE, "Duration of one step of the model loop.", STEP_BUCKETS),
    _histogram("aie_engine_step_batch_size", "requests", _ENGINE, "Requests that a step of the model loop computed for.", BATCH_BUCKETS),
    _histogram("aie_engine_step_tokens", "tokens", _ENGINE, "Tokens, of prompts and of decodes, that a step of the model loop computed.", LENGTH_BUCKETS),
    _histogram("aie_engine_request_prompt_tokens", "tokens", _ENGINE, "Prompt tokens of a request.", LENGTH_BUCKETS),
    _histogram("aie_engine_request_generation_tokens", "tokens", _ENGINE, "Tokens generated for a request that ended.", LENGTH_BUCKETS),
    _histogram("aie_engine_event_loop_lag_seconds", "seconds", _ENGINE,
               "How late the engine's event loop woke from a timer: what every request waits for where HTTP is served.", PAUSE_BUCKETS),
    _histogram("aie_engine_gc_pause_seconds", "seconds", (*_ENGINE, "generation"),
               "Pauses by Python's garbage collector, by generation (0, 1, 2). Every thread of the engine stands still meanwhile.", PAUSE_BUCKETS),
    _gauge("aie_engine_last_token_timestamp_seconds", "seconds", _ENGINE,
           "When the engine last produced a token, in seconds since the epoch. Flat while requests run means that it hangs."),
    _gauge("aie_engine_kv_usage_ratio", "ratio", _ENGINE, "Share of the KV cache that is taken, 0 to 1."),
    _gauge("aie_engine_kv_capacity_tokens", "tokens", _ENGINE, "Token slots of the KV cache. Equals used plus free."),
    _gauge("aie_engine_kv_used_tokens", "tokens", _ENGINE, "Token slots of the KV cache reserved by admitted requests."),
    _gauge("aie_engine_kv_free_tokens", "tokens", _ENGINE, "Token slots of the KV cache reserved by nobody."),
    _gauge("aie_engine_kv_written_tokens", "tokens", _ENGINE, "Token slots of the KV cache that hold a computed token."),
    _gauge("aie_engine_kv_efficiency_ratio", "ratio", _ENGINE,
           "Share of the reserved token slots that hold a computed token: low where answers stay far shorter than what is reserved for them. Absent while nothing is reserved."),
    _counter("aie_engine_preemptions_total", "requests", _ENGINE, "Times that a running request lost its KV cache to others and was put back."),
    _counter("aie_engine_prefix_cache_queries_total", "tokens", _ENGINE, "Prompt tokens that were looked up in the prefix cache."),
    _counter("aie_engine_prefix_cache_hits_total", "tokens", _ENGINE, "Prompt tokens that the prefix cache had."),
    _counter("aie_engine_response_cache_queries_total", "requests", _ENGINE, "Requests that were looked up in the response cache."),
    _counter("aie_engine_response_cache_hits_total", "requests", _ENGINE, "Requests that the response cache answered."),
    _gauge("aie_engine_response_cache_bytes", "bytes", _ENGINE, "Size of the answers and keys that the response cache holds."),
    _histogram("aie_engine_output_entropy_nats", "nats", _ENGINE,
               "Mean entropy of the model's distribution over the tokens of one answer: one observation a sampled request.", NATS_BUCKETS),
    _histogram("aie_engine_output_surprisal_nats", "nats", _ENGINE,
               "Mean of -log p of the chosen tokens of one answer: one observation a sampled request.", NATS_BUCKETS),
    _histogram("aie_engine_first_token_logsumexp_nats", "nats", _ENGINE,
               "Log-sum-exp of the logits before the first token of an answer, which may be negative: one observation a sampled request.", LOGSUMEXP_BUCKETS),
    _histogram("aie_engine_output_log_length", "nats", _ENGINE,
               "Natural logarithm of one answer's length in tokens: one observation a sampled request.", NATS_BUCKETS),
    _gauge("aie_engine_activation_mean", "1", (*_ENGINE, "layer"), "Mean of a watched layer's output in its last sampled step."),
    _gauge("aie_engine_activation_std", "1", (*_ENGINE, "layer"), "Standard deviation of a watched layer's output in its last sampled step."),
    _gauge("aie_engine_activation_max_abs", "1", (*_ENGINE, "layer"), "Largest magnitude in a watched layer's output in its last sampled step."),
    _counter("aie_engine_activation_nonfinite_total", "values", (*_ENGINE, "layer"),
             "NaN and infinite values in a watched layer's output, in sampled steps."),
    _gauge("aie_engine_allocator_allocated_bytes", "bytes", _MEMORY,
           "Bytes of live tensors, as the engine's own allocator counts them."),
    _gauge("aie_engine_allocator_reserved_bytes", "bytes", _MEMORY,
           "Bytes that the engine's own allocator holds from the system: live tensors, caches, pools."),
    _gauge("aie_engine_allocator_inactive_split_bytes", "bytes", _MEMORY,
           "Reserved bytes in free parts of blocks that are partly in use: what fragmentation keeps from being given back."),
    _gauge("aie_engine_allocator_private_pool_bytes", "bytes", _MEMORY, "Reserved bytes in private pools, such as those of CUDA graphs."),
    _gauge("aie_engine_allocator_pinned_bytes", "bytes", _MEMORY, "Pinned host memory that torch's host allocator holds. Reported once a process, with its first device."),
    _gauge("aie_engine_allocator_largest_free_bytes", "bytes", _MEMORY,
           "The largest allocation that the engine's own pool could serve now without asking the system."),
    _counter("aie_engine_allocator_retries_total", "retries", _MEMORY, "Allocations that succeeded only after the allocator's cache was emptied."),
    _counter("aie_engine_allocator_ooms_total", "errors", _MEMORY, "Allocations that failed for lack of memory."),
    _gauge("aie_engine_memory_physical_bytes", "bytes", _MEMORY,
           "Physical memory of the engine's processes on the device. On a CPU: anonymous resident memory (RssAnon)."),
    _gauge("aie_engine_memory_unaccounted_bytes", "bytes", _MEMORY,
           "Physical memory less what the allocator reserved: memory that the allocator does not know of. Negative where reserved memory was never touched."),
)  # fmt: skip

_PROCESS = ("engine",)
_PROCESS_METRICS: Final = (
    _gauge("aie_process_instances", "processes", _PROCESS, "Live processes of the engine."),
    _gauge("aie_process_threads", "threads", _PROCESS, "Threads of the engine's processes."),
    _gauge("aie_process_resident_anon_bytes", "bytes", _PROCESS, "Resident anonymous memory (RssAnon): heap, tensors, stacks."),
    _gauge("aie_process_resident_file_bytes", "bytes", _PROCESS, "Resident file-backed memory (RssFile): code, mapped weights."),
    _gauge("aie_process_resident_shmem_bytes", "bytes", _PROCESS, "Resident shared memory (RssShmem)."),
    _gauge("aie_process_swap_bytes", "bytes", _PROCESS, "Memory of the engine's processes that is swapped out."),
    _counter("aie_process_cpu_seconds_total", "seconds", (*_PROCESS, "mode"), "CPU time by mode: user, system."),
    _counter("aie_process_run_queue_seconds_total", "seconds", _PROCESS,
             "Time that threads were ready to run and waited for a CPU (schedstat). Rises when neighbours take the CPU."),
    _counter("aie_process_context_switches_total", "switches", (*_PROCESS, "kind"),
             "Context switches: voluntary (the thread waited) or involuntary (it was preempted)."),
    _counter("aie_process_major_faults_total", "faults", _PROCESS, "Page faults that needed the disk."),
    _counter("aie_process_cgroup_throttled_seconds_total", "seconds", _PROCESS,
             "Time that the CPU quota of the engine's cgroup stopped it. Absent where no quota is set."),
    _counter("aie_process_cgroup_throttled_periods_total", "periods", _PROCESS,
             "Enforcement periods in which the quota stopped the cgroup. Absent where no quota is set."),
    _counter("aie_process_cgroup_periods_total", "periods", _PROCESS,
             "Enforcement periods of the quota. Absent where no quota is set."),
    _gauge("aie_process_cgroup_memory_bytes", "bytes", _PROCESS, "Memory charged to the engine's cgroup, page cache included."),
    _gauge("aie_process_cgroup_memory_limit_bytes", "bytes", _PROCESS, "Memory limit of the engine's cgroup. Absent where none is set."),
)  # fmt: skip

_HOST_METRICS: Final = (
    _gauge("aie_host_info", "1", ("hostname", "kernel"), "Always 1; the labels describe the host."),
    _gauge("aie_host_cpus", "cpus", (), "CPUs that are online."),
    _counter("aie_host_cpu_seconds_total", "seconds", ("mode",),
             "CPU time of all CPUs by mode: user, nice, system, idle, iowait, irq, softirq, steal. Modes are disjoint, guest time is in user."),
    _gauge("aie_host_load1", "tasks", (), "Load average over one minute: tasks that run, wait to run or wait for the disk."),
    _gauge("aie_host_memory_total_bytes", "bytes", (), "Memory of the host."),
    _gauge("aie_host_memory_available_bytes", "bytes", (), "Memory that can be had without swapping (MemAvailable)."),
    _gauge("aie_host_swap_total_bytes", "bytes", (), "Swap space."),
    _gauge("aie_host_swap_used_bytes", "bytes", (), "Swap space in use."),
    _counter("aie_host_swap_in_pages_total", "pages", (), "Pages read back from swap."),
    _counter("aie_host_swap_out_pages_total", "pages", (), "Pages written to swap."),
    _counter("aie_host_major_faults_total", "faults", (), "Page faults of all processes that needed the disk."),
    _counter("aie_host_oom_kills_total", "kills", (), "Processes that the kernel killed for lack of memory."),
    _counter("aie_host_pressure_seconds_total", "seconds", ("resource", "kind"),
             "Pressure stall information: time that some, or all (full), runnable tasks stalled on cpu, memory or io."),
)  # fmt: skip

_FINDING_METRICS: Final = (
    _gauge(
        "aie_finding",
        "1",
        ("cause", "subject", "severity"),
        "1 while the agent holds that something is wrong: what (cause), with whom (subject), how bad (severity: info, warning, critical).",
    ),
)

_AGENT_METRICS: Final = (
    _gauge("aie_agent_info", "1", ("version",), "Always 1; the agent's version."),
    _gauge("aie_agent_start_time_seconds", "seconds", (), "When the agent started, in seconds since the epoch."),
    _counter("aie_agent_cpu_seconds_total", "seconds", (), "CPU time that the agent used."),
    _gauge("aie_agent_clock_ahead_seconds", "seconds", (),
           "How far the agent's time is ahead of the wall clock, after that was set back; the agent's time never goes back."),
    _gauge("aie_agent_resident_bytes", "bytes", (), "Resident memory of the agent."),
    _gauge("aie_agent_source_up", "1", ("source",), "1 when the source's last collection worked, else 0."),
    _counter("aie_agent_source_collections_total", "collections", ("source",), "Collections that the source began."),
    _counter("aie_agent_source_failures_total", "collections", ("source",), "Collections that failed."),
    _counter("aie_agent_source_seconds_total", "seconds", ("source",), "Time spent in collections of the source."),
    _gauge("aie_agent_source_last_success_timestamp_seconds", "seconds", ("source",),
           "When the source last collected without failure, in seconds since the epoch. Absent until it has."),
    _gauge("aie_agent_series", "series", (), "Series in the store."),
    _gauge("aie_agent_series_limit", "series", (), "Most series that the store takes."),
    _counter("aie_agent_samples_total", "samples", ("source",), "Samples taken into the store."),
    _counter("aie_agent_samples_refused_total", "samples", ("reason",),
             "Samples not taken into the store: series_limit, foreign_limit (names of others have at most half of the store), kind_conflict, reserved_name, bad_labels, out_of_order, too_large, engine_limit."),
    _counter("aie_agent_samples_shadowed_total", "samples", (),
             "Samples passed over because a better source reports the same metric of the same engine (page before StatsD before eBPF)."),
    _counter("aie_agent_scrape_refused_total", "samples", ("engine", "reason"),
             "Samples of an engine's page not taken, by reason: foreign or missing labels, another kind, duplicate, not_finite, bad_histogram, series_limit."),
    _gauge("aie_agent_scrape_lint", "1", ("engine", "rule"),
           "1 while an engine's page breaks a rule: missing_family, duplicate_pid, gauge_for_counter, counter_for_gauge, totals_disagree, undeclared. Shown by `aie-agent check`."),
    _counter("aie_agent_events_total", "events", ("kind",), "Events that hooks sent and the agent keeps: oom."),
    _counter("aie_agent_statsd_packets_total", "packets", ("socket",), "StatsD packets received, by socket: unix, udp."),
    _counter("aie_agent_statsd_bytes_total", "bytes", ("socket",), "StatsD bytes received."),
    _counter("aie_agent_statsd_samples_total", "samples", (), "Samples parsed from StatsD lines."),
    _counter("aie_agent_statsd_dropped_total", "parts", ("reason",), "StatsD input refused, by reason (the codec's reasons, and the agent's caps)."),
    _counter("aie_agent_statsd_ignored_total", "lines", ("kind",), "StatsD lines of kinds that aie does not use: event, service_check."),
    _counter("aie_agent_statsd_kernel_drops_total", "packets", ("socket",),
             "Packets that the kernel dropped because the agent did not read fast enough. Unix senders see a full socket themselves and count there."),
    _counter("aie_agent_relay_packets_total", "packets", (), "StatsD packets passed on to the upstream server."),
    _counter("aie_agent_relay_dropped_total", "packets", ("reason",), "StatsD packets not passed on, by reason."),
    _gauge("aie_agent_http_streams", "connections", (), "Open event streams of the HTTP API."),
    _counter("aie_agent_http_requests_total", "requests", ("path", "code"), "Requests to the HTTP API. Unknown paths are counted as 'other'."),
)  # fmt: skip

_HOOK_METRICS: Final = (
    _gauge("aie_hooks_process", "1", ("engine", "pid"),
           "The hello line: which process emits for which engine. Consumed by the agent to join processes, never stored as a series."),
    _counter("aie_hooks_dropped_total", "metrics", ("engine", "reason"),
             "Metrics that the emitter dropped: would_block (receiver slow), budget (packet budget spent), no_receiver, invalid."),
)  # fmt: skip

CATALOGUE: Final[dict[str, Metric]] = {
    metric.name: metric
    for family in (_ENGINE_METRICS, _PROCESS_METRICS, _HOST_METRICS, _FINDING_METRICS, _AGENT_METRICS, _HOOK_METRICS)
    for metric in family
}

RESERVED_PREFIX: Final = "aie_"
"""Names that begin so belong to the catalogue; a foreign metric may not use one that is not in it."""


def markdown() -> str:
    """The metric reference as Markdown: what `docs/metrics.md` holds."""
    parts = [
        "# Metrics\n",
        "Generated from `telemetry/aie_telemetry/catalogue.py` by `python -m aie_telemetry.catalogue`; a test compares.\n",
    ]
    for title, family in (
        ("Engines (`aie_engine_*`)", _ENGINE_METRICS),
        ("Engine processes (`aie_process_*`)", _PROCESS_METRICS),
        ("Host (`aie_host_*`)", _HOST_METRICS),
        ("Findings (`aie_finding`)", _FINDING_METRICS),
        ("The agent about itself (`aie_agent_*`)", _AGENT_METRICS),
        ("Hooks (`aie_hooks_*`)", _HOOK_METRICS),
    ):
        parts.append(f"\n## {title}\n\n| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n")
        for metric in family:
            labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
            parts.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |\n")
    parts.append("\n## Buckets of the histograms\n\n| metric | upper bounds |\n| --- | --- |\n")
    for metric in CATALOGUE.values():
        if metric.kind is Kind.HISTOGRAM:
            bounds = " ".join(f"{bound:g}" for bound in metric.buckets)
            parts.append(f"| `{metric.name}` | {bounds} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(markdown(), end="")
