"""What panels say that count states, join metrics or leave some out: each case has what must not be counted, too."""

from __future__ import annotations

from typing import Final

from dashboards.table import Kind
from tests.integration.dashboards.oracle import written_labels
from tests.integration.dashboards.truth_cases import Case


def _s(metric: str, values: str, **labels: str) -> dict[str, str]:
    """A series; of host `h` where no other is named."""
    whole = {"job": "aie", "instance": "h", **labels}
    return {f"{metric}{{{written_labels(tuple(whole.items()))}}}": values}


def _finding(severity: str, cause: str, values: str = "1x60", **more: str) -> dict[str, str]:
    return _s("aie_finding", values, **{"cause": cause, "subject": "chat", "severity": severity, **more})


_FOUND: Final = {
    **_s("aie_agent_info", "1x60", version="1"),
    **_finding("critical", "engine_down"),
    **_finding("critical", "gpu_lost", instance="i"),
    **_finding("warning", "cpu_steal"),
    **_finding("warning", "cpu_starved", instance="i"),
    **_finding("info", "stale"),
}
_OVER: Final = {
    **_finding("warning", "swapping", "1x9 stale"),
    **_finding("info", "swapping", "1x9 stale", instance="i"),
    **_finding("warning", "page_faults", "1x9 stale"),
    **_finding("warning", "swapping", "1x9 stale", subject="host"),
}
_NOW: Final = {
    'cause="engine_down", instance="h", subject="chat"': 3.0,
    'cause="gpu_lost", instance="i", subject="chat"': 3.0,
    'cause="cpu_steal", instance="h", subject="chat"': 2.0,
    'cause="cpu_starved", instance="i", subject="chat"': 2.0,
    'cause="stale", instance="h", subject="chat"': 1.0,
}
_NO_MORE: Final = {
    'cause="swapping", instance="h", subject="chat"': 0.0,
    'cause="swapping", instance="i", subject="chat"': 0.0,
    'cause="page_faults", instance="h", subject="chat"': 0.0,
    'cause="swapping", instance="h", subject="host"': 0.0,
}
_SOURCES: Final = {
    **_s("aie_agent_source_up", "1x60", source="nvml"),
    **_s("aie_agent_source_up", "0x60", source="bpf"),
    **_s("aie_agent_source_up", "0x60", source="bpf", instance="i"),
    **_s("aie_agent_source_failures_total", "0+60x60", source="nvml"),
    **_s("aie_agent_source_failures_total", "0+120x60", source="bpf"),
    **_s("aie_agent_source_failures_total", "0+180x60", source="bpf", instance="i"),
}
_LINE: Final = {"engine": "e", "device": "cuda0"}
_LEAKS: Final = {
    **_s("aie_leak_state", "2x60", line="allocated", **_LINE),
    **_s("aie_leak_state", "2x60", line="reserved", **_LINE),
    **_s("aie_leak_state", "1x60", line="cached", **_LINE),
    **_s("aie_leak_state", "1x60", line="outside", **_LINE),
    **_s("aie_leak_state", "1x60", line="outside", engine="f", device="cuda0"),
    **_s("aie_leak_state", "0x60", line="physical", **_LINE),
    **_s("aie_leak_rate_bytes_per_second", "7x60", line="allocated", **_LINE),
    **_s("aie_leak_rate_bytes_per_second", "9x60", line="physical", **_LINE),
}
_STATISTIC: Final = {"engine": "e", "model": "m"}
_DRIFT: Final = {
    key: value
    for statistic, (windows, distance, threshold, outside, unseen, values, lost) in {
        "entropy": ("3x60", "0.5x60", "0.2x60", "0.07x60", "0.04x60", "0+540x60", "0+60x60"),
        "log_length": ("0x60", "0.1x60", "0.3x60", "0.02x60", "0x60", "0+600x60", "0x60"),
    }.items()
    for metric, level in (
        ("aie_drift_consecutive_windows", windows),
        ("aie_drift_distance_ratio", distance),
        ("aie_drift_threshold_ratio", threshold),
        ("aie_drift_outside_ratio", outside),
        ("aie_drift_unseen_ratio", unseen),
        ("aie_drift_values_total", values),
        ("aie_drift_values_lost_total", lost),
    )
    for key, value in _s(metric, level, statistic=statistic, **_STATISTIC).items()
}
_CHANGED: Final = 'engine="e", instance="h", model="m", statistic="entropy"'
_CANARY: Final = {"engine": "e", "model": "m", "canary": "default"}
_GONE: Final = {
    **_s("aie_gpu_up", "1x60", gpu="0"),
    **_s("aie_gpu_up", "1x9 0x60", gpu="1"),
    **_s("aie_gpu_up", "0x9 1x60", gpu="2"),
    **_s("aie_gpu_expected", "3x60"),
    **_s("aie_gpu_present", "2x60"),
    **_s("aie_gpu_expected", "2x60", instance="i"),
    **_s("aie_gpu_present", "1x60", instance="i"),
}
_EVENTS: Final = {
    **_s("aie_gpu_clock_event_active", "1x60", gpu="0", reason="hw_thermal"),
    **_s("aie_gpu_clock_event_active", "1x60", gpu="0", reason="hw_slowdown"),
    **_s("aie_gpu_clock_event_active", "0x60", gpu="0", reason="hw_power_brake"),
    **_s("aie_gpu_clock_event_active", "0x60", gpu="1", reason="hw_thermal"),
    **_s("aie_gpu_clock_event_active", "1x60", gpu="1", reason="idle"),
    **_s("aie_gpu_clock_event_active", "1x60", gpu="1", reason="sw_power_cap"),
}
_ECC: Final = {
    **_s("aie_gpu_ecc_errors_total", "0+5x60", gpu="0", type="uncorrected", since="volatile"),
    **_s("aie_gpu_ecc_errors_total", "0+7x60", gpu="0", type="corrected", since="volatile"),
    **_s("aie_gpu_ecc_errors_total", "0+9x60", gpu="0", type="uncorrected", since="aggregate"),
}
_BUSY: Final = {
    **_s("aie_gpu_utilization_ratio", "0.2x60", gpu="0"),
    **_s("aie_gpu_utilization_ratio", "0.1x60", gpu="1"),
    **_s("aie_gpu_processes", "2x60", gpu="0"),
    **_s("aie_gpu_processes", "0x60", gpu="1"),
}
_HELD: Final = {
    **_s("aie_engine_memory_physical_bytes", "100x60", engine="e", device="cuda0"),
    **_s("aie_engine_memory_physical_bytes", "50x60", engine="e", device="cuda1"),
    **_s("aie_engine_memory_physical_bytes", "999x60", engine="e", device="cpu"),
    **_s("aie_engine_memory_physical_bytes", "30x60", engine="f", device="cuda0", instance="i"),
    **_s("aie_engine_info", "1x60", engine="e", model="m", version="1"),
    **_s("aie_engine_info", "1x60", engine="e", model="m", version="2"),
    **_s("aie_engine_info", "1x60", engine="e", model="n", version="1"),
    **_s("aie_engine_info", "1x60", engine="f", model="m", version="1", instance="i"),
}


def _ended(**rates: str) -> dict[str, str]:
    labels = {"engine": "e", "model": "m"}
    return {
        key: value
        for outcome, values in rates.items()
        for key, value in _s("aie_engine_requests_total", values, outcome=outcome, **labels).items()
    }


def _engines_up() -> dict[str, str]:
    return {
        **_s("aie_engine_up", "1x60", engine="e"),
        **_s("aie_engine_up", "0x60", engine="f"),
        **_s("aie_engine_up", "0x60", engine="g", instance="i"),
    }


_AGENTS: Final = {
    **_s("up", "1x60"),
    **_s("up", "0x60", instance="i"),
    **_s("up", "0x60", instance="k"),
    **_s("aie_agent_info", "1x60", version="1"),
    **_s("aie_agent_info", "1x9 stale", version="1", instance="i"),
}
_DEAD: Final = {
    **_s("up", "1x19 0x1700"),
    **_s("up", "0x1720", job="an engine"),
    **_s("aie_agent_info", "1x19 stale", version="1"),
}
_SHORT: Final = {**_s("up", "_x3 1x5 0x130"), **_s("aie_agent_info", "_x3 1x5 stale", version="1")}
_NOT_ANSWERING: Final = "Agents that do not answer"
_NO_AGENTS: Final = {'up{job="aie", instance="an engine"}': "0x60"}
_AT: Final = "30m"
_STATES: Final = (
    Case("two are critical", "overview", "Critical findings", _FOUND, _AT, {"": 2.0}),
    Case("two are warnings", "overview", "Warnings", _FOUND, _AT, {"": 2.0}),
    Case("none is found", "overview", "Warnings", {**_s("aie_agent_info", "1x60", version="1"), **_OVER}, _AT, {"": 0.0}),
    Case(
        "none is critical", "overview", "Critical findings", {**_s("aie_agent_info", "1x60", version="1"), **_OVER}, _AT, {"": 0.0}
    ),
    Case("two of three are down", "overview", "Engines down", _engines_up(), _AT, {"": 2.0}),
    Case("two are missing", "overview", "GPUs that do not answer", _GONE, _AT, {"": 2.0}),
    Case("two sources fail", "overview", "Sources that fail", _SOURCES, _AT, {"": 2.0}),
    Case("two do not answer", "overview", _NOT_ANSWERING, _AGENTS, _AT, {"": 2.0}),
    Case("no agent, but an engine", "overview", _NOT_ANSWERING, _NO_AGENTS, _AT, {}),
    Case("by how grave they are", "overview", "What is wrong now", {**_FOUND, **_OVER}, _AT, _NOW),
    Case("and those that are over", "overview", "When it began", {**_FOUND, **_OVER}, _AT, {**_NOW, **_NO_MORE}),
    Case(
        "of what there is",
        *("overview", "Host memory available"),
        {**_s("aie_host_memory_available_bytes", "30x60"), **_s("aie_host_memory_total_bytes", "120x60")},
        *(_AT, {'instance="h"': 0.25}),
    ),
    *(
        case
        for board in ("overview", "agent")
        for case in (
            Case("the only one died before the time shown", board, _NOT_ANSWERING, _DEAD, "130m", {"": 1.0}),
            Case("the only one died more than a day ago", board, _NOT_ANSWERING, _DEAD, "1700m", {"": 1.0}),
            Case("the only one lived for minutes", board, _NOT_ANSWERING, _SHORT, "130m", {"": 1.0}),
            Case("the one that is chosen answers", board, _NOT_ANSWERING, _AGENTS, _AT, {"": 0.0}, instance="h"),
            Case("the one that is chosen never answered", board, _NOT_ANSWERING, _AGENTS, _AT, {"": 1.0}, instance="k"),
        )
    ),
    Case("two do not answer", "agent", _NOT_ANSWERING, _AGENTS, _AT, {"": 2.0}),
    Case("no agent, but an engine", "agent", _NOT_ANSWERING, _NO_AGENTS, _AT, {}),
    Case("two fail", "agent", "Sources that fail", _SOURCES, _AT, {"": 2.0}),
    *(
        Case(f"those that fail, {what}", "agent", "Which sources fail", _SOURCES, _AT, expected, query)
        for what, query, expected in (
            ("and how", 0, {'instance="h", source="bpf"': 0.0, 'instance="i", source="bpf"': 0.0}),
            ("and how often", 1, {'instance="h", source="bpf"': 2.0, 'instance="i", source="bpf"': 3.0}),
        )
    ),
    Case(
        "those that are broken",
        *("agent", "Rules that engines' pages break"),
        {**_s("aie_agent_scrape_lint", "1x60", engine="e", rule="r"), **_s("aie_agent_scrape_lint", "0x60", engine="e", rule="s")},
        *(_AT, {'engine="e", instance="h", rule="r"': 1.0}),
    ),
)
_OF_ENGINES: Final = (
    Case(
        "who left is no failure",
        *("engine", "Requests that failed"),
        _ended(ok="0+540x60", error="0+30x60", timeout="0+18x60", rejected="0+6x60", cancelled="0+6x60"),
        *(_AT, {"": 0.09}),
    ),
    Case("none ever failed", "engine", "Requests that failed", _ended(ok="0+600x60"), _AT, {"": 0.0}),
    Case("nobody asks", "engine", "Requests that failed", _ended(ok="5x60", error="1x60"), _AT, {}),
    Case(
        "of the model that spoke last",
        *("engine", "Since the last token"),
        {
            **_s("aie_engine_last_token_timestamp_seconds", "1700x60", engine="e", model="m"),
            **_s("aie_engine_last_token_timestamp_seconds", "1000x60", engine="e", model="n"),
        },
        *(_AT, {'engine="e", instance="h"': 100.0}),
    ),
    Case("two leak", "memory", "Leaks", _LEAKS, _AT, {"": 2.0}),
    Case("three may", "memory", "Suspects", _LEAKS, _AT, {"": 3.0}),
    Case(
        "what rises",
        *("memory", "What leaks", _LEAKS, _AT),
        {
            f'device="cuda0", engine="{engine}", instance="h", line="{line}"': state
            for engine, line, state in (
                *(("e", "allocated", 2.0), ("e", "reserved", 2.0), ("e", "cached", 1.0)),
                *(("e", "outside", 1.0), ("f", "outside", 1.0)),
            )
        },
    ),
    Case("how fast", "memory", "What leaks", _LEAKS, _AT, {'device="cuda0", engine="e", instance="h", line="allocated"': 7.0}, 1),
    Case(
        "what is not in use",
        *("memory", "Reserved and not in use"),
        {
            **_s("aie_engine_allocator_reserved_bytes", "90x60", **_LINE),
            **_s("aie_engine_allocator_allocated_bytes", "60x60", **_LINE),
        },
        *(_AT, {'device="cuda0", engine="e", instance="h"': 30.0}),
    ),
    Case(
        "of all hosts, engines and models",
        *("drift", "Answers looked at a second"),
        {
            **_s("aie_drift_values_total", "0+600x60", statistic="entropy", **_STATISTIC),
            **_s("aie_drift_values_total", "0+300x60", statistic="entropy", instance="i", **_STATISTIC),
            **_s("aie_drift_values_total", "0+180x60", statistic="entropy", engine="f", model="m"),
            **_s("aie_drift_values_total", "0+120x60", statistic="entropy", engine="e", model="n"),
        },
        *(_AT, {"": 20.0}),
    ),
    Case("each answer once", "drift", "Answers looked at a second", _DRIFT, _AT, {"": 10.0}),
    Case("a twentieth", "drift", "Answers not looked at", _DRIFT, _AT, {"": 0.05}),
    *(
        Case(f"only what counts: {number:g}", "drift", "What has changed", _DRIFT, _AT, {_CHANGED: number}, query)
        for query, number in enumerate((3.0, 0.5, 0.2, 0.07, 0.04))
    ),
    *(
        Case(
            f"as far on either side: {nats}",
            *("drift", "Distance from its level, of what may be"),
            {
                **_s("aie_engine_canary_logprob_nats", f"{nats}x60", **_CANARY),
                **_s("aie_drift_canary_level_nats", "-4x60", **_CANARY),
                **_s("aie_drift_canary_limit_nats", "0.5x60", **_CANARY),
            },
            *(_AT, {'canary="default", engine="e", instance="h", model="m"': 2.0}),
        )
        for nats in ("-5", "-3")
    ),
)
_OF_GPUS: Final = (
    Case("two are missing", "gpus", "GPUs that do not answer", _GONE, _AT, {"": 2.0}, kind=Kind.STAT),
    Case(
        "those that were gone, and as they are",
        *("gpus", "GPUs that do not answer", _GONE, _AT),
        {'gpu="1", instance="h"': 0.0, 'gpu="2", instance="h"': 1.0},
        kind=Kind.TIMELINE,
    ),
    Case("once, for whatever reasons", "gpus", "Held back now", _EVENTS, _AT, {"": 1.0}),
    Case(
        "by which reason",
        *("gpus", "Held back by heat or power supply", _EVENTS, _AT),
        {f'gpu="0", instance="h", reason="{reason}"': 1.0 for reason in ("hw_thermal", "hw_slowdown")},
    ),
    Case("since the driver was loaded", "gpus", "ECC errors, uncorrected", _ECC, _AT, {'gpu="0", instance="h"': 25.0}),
    Case(
        "of both types",
        *("gpu", "ECC errors", _ECC, _AT),
        {'gpu="0", instance="h", type="corrected"': 35.0, 'gpu="0", instance="h", type="uncorrected"': 25.0},
    ),
    Case(
        "below the limit that slows it",
        *("gpus", "Degrees below slowdown"),
        {
            **_s("aie_gpu_temperature_limit_celsius", "87x60", gpu="0", limit="slowdown"),
            **_s("aie_gpu_temperature_limit_celsius", "92x60", gpu="0", limit="shutdown"),
            **_s("aie_gpu_temperature_limit_celsius", "83x60", gpu="0", limit="gpu_max"),
            **_s("aie_gpu_temperature_celsius", "60x60", gpu="0", sensor="gpu"),
            **_s("aie_gpu_temperature_celsius", "80x60", gpu="0", sensor="memory"),
        },
        *(_AT, {'gpu="0", instance="h"': 27.0}),
    ),
    Case(
        "a host without any",
        *("gpus", "Agents that see no GPU"),
        {
            **_s("aie_agent_info", "1x60", version="1"),
            **_s("aie_agent_info", "1x60", version="1", instance="i"),
            **_s("aie_gpu_present", "0x60"),
        },
        *(_AT, {'instance="i"': 1.0}),
    ),
    Case(
        "of both ways",
        "host",
        "Swap traffic",
        {
            **_s("aie_host_swap_in_pages_total", "0+60x60"),
            **_s("aie_host_swap_in_pages_total", "0+180x60", instance="i"),
            **_s("aie_host_swap_out_pages_total", "0+120x60"),
            **_s("aie_host_swap_out_pages_total", "0+240x60", instance="i"),
        },
        _AT,
        {"": 10.0},
    ),
    Case("for each of two models", "hot", "GPU memory by model", _HELD, _AT, {'model="m"': 180.0, 'model="n"': 150.0}),
    Case("those that are taken", "hot", "Idlest GPUs that hold memory", _BUSY, _AT, {'gpu="0", instance="h"': 0.2}),
)
JOINING_CASES: Final = (*_STATES, *_OF_ENGINES, *_OF_GPUS)
