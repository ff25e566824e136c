"""What panels about engines mean: by board and title, a meaning for each query. Of two of one title, the row stands before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tests.integration.dashboards.oracle import Meaning, level, over, pace, quantile, ratio, rise, share

HOST: Final = "instance"
E: Final = "instance, engine"
DEVICE: Final = "instance, engine, device"
STATISTIC: Final = "instance, engine, model, statistic"
CANARY: Final = "instance, engine, model, canary"


def percentiles(name: str, keep: str = E) -> list[Meaning]:
    """The three that pictures show."""
    return [quantile(at, name, keep) for at in (0.5, 0.95, 0.99)]


OF_ENGINES: Final[dict[str, dict[str, Sequence[Meaning]]]] = {
    "overview": {
        "Requests ended, by outcome": [pace("aie_engine_requests_total", "outcome")],
        "Time to first token, p99": [quantile(0.99, "aie_engine_time_to_first_token_seconds", E)],
        "Tokens generated a second": [pace("aie_engine_generation_tokens_total", E)],
        "GPU memory in use, fullest GPU of each host": [
            ratio("aie_gpu_memory_used_bytes", "aie_gpu_memory_total_bytes", HOST, "max")
        ],
        "GPU utilization, mean of each host": [level("aie_gpu_utilization_ratio", HOST, "avg")],
    },
    "engine": {
        "Requests a second": [pace("aie_engine_requests_total", "")],
        "First token, p99": [over(quantile(0.99, "aie_engine_time_to_first_token_seconds", E), "max")],
        "Between tokens, p99": [over(quantile(0.99, "aie_engine_inter_token_seconds", E), "max")],
        "Waiting requests": [level("aie_engine_requests_waiting", "")],
        "KV cache in use, fullest engine": [level("aie_engine_kv_usage_ratio", "", "max")],
        "Requests ended, by outcome": [pace("aie_engine_requests_total", "outcome")],
        "Running and waiting": [level("aie_engine_requests_running", E), level("aie_engine_requests_waiting", E)],
        "Tokens a second": [pace("aie_engine_prompt_tokens_total", E), pace("aie_engine_generation_tokens_total", E)],
        "Time to first token": percentiles("aie_engine_time_to_first_token_seconds"),
        "Time between tokens": percentiles("aie_engine_inter_token_seconds"),
        "Duration of requests": percentiles("aie_engine_request_duration_seconds"),
        "Stages of a request, p95": [
            quantile(0.95, "aie_engine_tokenize_seconds", E),
            quantile(0.95, "aie_engine_queue_seconds", E),
            quantile(0.95, "aie_engine_prefill_seconds", E),
            quantile(0.95, "aie_engine_decode_seconds", E),
            quantile(0.95, "aie_engine_detokenize_seconds", E),
        ],
        "Step of the model loop": percentiles("aie_engine_step_seconds"),
        "KV cache in use": [level("aie_engine_kv_usage_ratio", E, "max")],
        "Preemptions a second": [pace("aie_engine_preemptions_total", E)],
        "Cache hits": [
            share(pace("aie_engine_prefix_cache_hits_total", E), pace("aie_engine_prefix_cache_queries_total", E)),
            share(pace("aie_engine_response_cache_hits_total", E), pace("aie_engine_response_cache_queries_total", E)),
        ],
        "Requests in a step, p95": [quantile(0.95, "aie_engine_step_batch_size", E)],
        "Event loop late, p95": [quantile(0.95, "aie_engine_event_loop_lag_seconds", E)],
        "Garbage collector": [pace("aie_engine_gc_pause_seconds_sum", E)],
        "Length of prompts": percentiles("aie_engine_request_prompt_tokens"),
        "Length of answers": percentiles("aie_engine_request_generation_tokens"),
        "KV tokens": [
            level("aie_engine_kv_capacity_tokens", E),
            level("aie_engine_kv_used_tokens", E),
            level("aie_engine_kv_written_tokens", E),
        ],
        "Time to first token, all requests of $engine": [pace("aie_engine_time_to_first_token_seconds_bucket", "engine, le")],
    },
    "memory": {
        "Full in": [level("aie_leak_time_to_full_seconds", "", "min")],
        "Out of memory": [rise("aie_engine_allocator_ooms_total", "")],
        "Killed for lack of memory": [rise("aie_host_oom_kills_total", "")],
        "Swapped out": [level("aie_process_swap_bytes", "")],
        "Verdicts": [level("aie_leak_state", "instance, engine, device, line", "max")],
        "In use by tensors": [level("aie_engine_allocator_allocated_bytes", DEVICE)],
        "Unknown to the allocator": [level("aie_engine_memory_unaccounted_bytes", DEVICE)],
        "Physical memory": [level("aie_engine_memory_physical_bytes", DEVICE)],
        "Parts of what is reserved": [
            level("aie_engine_allocator_inactive_split_bytes", DEVICE),
            level("aie_engine_allocator_private_pool_bytes", DEVICE),
            level("aie_engine_allocator_pinned_bytes", DEVICE),
        ],
        "Allocations that failed at first": [
            pace("aie_engine_allocator_retries_total", DEVICE),
            pace("aie_engine_allocator_ooms_total", DEVICE),
        ],
        "Resident memory of engines": [
            level("aie_process_resident_anon_bytes", E),
            level("aie_process_resident_file_bytes", E),
            level("aie_process_resident_shmem_bytes", E),
        ],
        "Memory of malloc": [level("aie_engine_malloc_used_bytes", E, "max"), level("aie_engine_malloc_held_bytes", E, "max")],
        "Memory of the control group": [
            level("aie_process_cgroup_memory_bytes", E, "max"),
            level("aie_process_cgroup_memory_limit_bytes", E, "min"),
        ],
        "Held of the control group's limit": [level("aie_process_cgroup_memory_held_ratio", E, "max")],
        "Outstanding, by kind": [level("aie_cuda_memory_outstanding_bytes", "instance, engine, kind")],
        "Outstanding, by who asked": [level("aie_cuda_memory_module_bytes", "instance, engine, module")],
        "Allocations and frees": [pace("aie_cuda_memory_allocated_bytes_total", E), pace("aie_cuda_memory_freed_bytes_total", E)],
        "Calls that the driver refused": [pace("aie_cuda_failures_total", "instance, engine, call, code")],
        "Outstanding, by size": [level("aie_cuda_memory_class_bytes", "instance, engine, size_class")],
    },
    "drift": {
        "Alarms": [level("aie_drift_alarm", ""), level("aie_drift_canary_alarm", "")],
        "Compared with a reference": [level("aie_drift_watching", "")],
        "False alarm once in": [level("aie_drift_run_length_seconds", "", "min")],
        "NaN and infinite values": [rise("aie_engine_activation_nonfinite_total", "")],
        "Alarms over time": [level("aie_drift_alarm", STATISTIC, "max")],
        "Distance over its threshold": [
            share(level("aie_drift_distance_ratio", STATISTIC, "max"), level("aie_drift_threshold_ratio", STATISTIC, "max"))
        ],
        "Windows in a row": [level("aie_drift_consecutive_windows", STATISTIC, "max")],
        "Outside the reference": [
            level("aie_drift_outside_ratio", STATISTIC, "max"),
            level("aie_drift_unseen_ratio", STATISTIC, "max"),
        ],
        "Scatter of answers": [level("aie_drift_output_stability_ratio", STATISTIC, "max")],
        "Windows that counted": [
            share(pace("aie_drift_windows_beyond_total", STATISTIC), pace("aie_drift_windows_total", STATISTIC))
        ],
        "Runs of the canary": [pace("aie_engine_canary_runs_total", "instance, engine, model, canary, outcome")],
        "Canary alarms over time": [level("aie_drift_canary_alarm", CANARY, "max")],
        "Entropy of answers": percentiles("aie_engine_output_entropy_nats", "instance, engine, model"),
        "Surprisal of answers": percentiles("aie_engine_output_surprisal_nats", "instance, engine, model"),
        "First token, log-sum-exp": percentiles("aie_engine_first_token_logsumexp_nats", "instance, engine, model"),
        "Activations, largest magnitude": [level("aie_engine_activation_max_abs", "instance, engine, model, layer", "max")],
        "Activations, standard deviation": [level("aie_engine_activation_std", "instance, engine, model, layer", "max")],
    },
}
