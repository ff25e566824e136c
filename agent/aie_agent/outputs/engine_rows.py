"""One engine as the API's snapshot shows it. Most fields are one metric each: tables say which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from aie_agent.analysis.window import level_history, observation_rate, quantiles_of, rate, rate_history
from aie_agent.discovered import Discovered
from aie_agent.identity import Engines
from aie_agent.outputs.probe_rows import probe_fields
from aie_agent.samples import Found
from aie_agent.series import HistogramSeries, Series
from aie_agent.sources.bpf.build import NoProbes, Probes
from aie_agent.sources.containers import pod_uid
from aie_agent.sources.process import ProcessRow, ProcessSource
from aie_agent.sources.procfs_text import container_id
from aie_agent.store import Store
from aie_telemetry import api

HISTORY_POINTS: Final = 60
HISTORY_STEP_S: Final = 1.0

# Sources by the part of their name before ':', and how they are called where an engine's numbers come from.
_ORIGINS: Final = {"scrape": "page", "statsd": "statsd", "bpf": "ebpf"}

_RUNNING: Final = "aie_engine_requests_running"
_TOKENS: Final = "aie_engine_generation_tokens_total"

_LEVELS: Final = {
    "running": _RUNNING,
    "waiting": "aie_engine_requests_waiting",
    "kv_usage_ratio": "aie_engine_kv_usage_ratio",
}
_RATES: Final = {
    "prompt_tokens_per_second": "aie_engine_prompt_tokens_total",
    "generation_tokens_per_second": _TOKENS,
    "cpu_cores": "aie_process_cpu_seconds_total",
    "run_queue_threads": "aie_process_run_queue_seconds_total",
    "throttled_cores": "aie_process_cgroup_throttled_seconds_total",
    "major_faults_per_second": "aie_process_major_faults_total",
}
_QUANTILES: Final = {
    "time_to_first_token": "aie_engine_time_to_first_token_seconds",
    "inter_token": "aie_engine_inter_token_seconds",
    "queue": "aie_engine_queue_seconds",
    "prefill": "aie_engine_prefill_seconds",
    "decode": "aie_engine_decode_seconds",
    "tokenize": "aie_engine_tokenize_seconds",
    "duration": "aie_engine_request_duration_seconds",
}


class EngineRows:
    """Builds rows of engines. Reads the store, the engines and their processes; changes nothing."""

    def __init__(
        self,
        store: Store,
        engines: Engines,
        processes: ProcessSource,
        discovered: Discovered | None,
        gpu_note: Callable[[str], str | None] = lambda _: None,
        probes: Probes | None = None,
    ) -> None:
        self._store = store
        self._engines = engines
        self._processes = processes
        self._discovered = discovered
        self._gpu_note = gpu_note
        self._probes = probes or NoProbes()

    def row(self, name: str, now_s: float, start_s: float, wall_s: float) -> api.Engine:
        """The engine `name` at `now_s`, with rates and quantiles since `start_s`. `wall_s` is now by the wall clock, by which
        engines give their times."""
        found = self._discovered.of(name) if self._discovered else None
        return api.Engine(
            name=name,
            state=self._engines.state(name),
            down_since_s=self._engines.down_since_s(name),
            **self._place(name, found),
            metrics_from=self._origins(name, now_s),
            processes=tuple(_process(row) for row in self._processes.rows(name)),
            page_reason=self._page_reason(name, found),
            running_at_end=self._running_at_end(name),
            note=self._note(name, found),
            **self._descriptions(name, found, now_s),
            **self._requests(name, now_s, start_s),
            **self._ages(name, now_s, wall_s),
            **self._histories(name, now_s),
            **self._measured(name, now_s, start_s),
            **probe_fields(self._store, self._probes, name, now_s, start_s),
        )

    def _measured(self, name: str, now_s: float, start_s: float) -> Mapping[str, Any]:
        """The fields that are one metric each."""
        return {
            **{field: self._store.current(metric, now_s, engine=name) for field, metric in _LEVELS.items()},
            **{field: rate(self._live(metric, name, now_s), start_s, now_s) for field, metric in _RATES.items()},
            **{field: self._quantiles(metric, name, now_s, start_s) for field, metric in _QUANTILES.items()},
        }

    def _live(self, metric: str, name: str, now_s: float) -> list[Series]:
        return live(self._store.scalars(metric, engine=name), now_s)

    def _live_histograms(self, metric: str, name: str, now_s: float) -> list[HistogramSeries]:
        return [series for series in self._store.histograms(metric, engine=name) if series.valid_until_s >= now_s]

    def _quantiles(self, metric: str, name: str, now_s: float, start_s: float) -> api.Quantiles:
        p50, p99 = quantiles_of(self._live_histograms(metric, name, now_s), start_s, (0.5, 0.99))
        return api.Quantiles(p50_seconds=p50, p99_seconds=p99)

    def _descriptions(self, name: str, found: Found | None, now_s: float) -> Mapping[str, Any]:
        """What its page or the scan says of it in words. A label that is empty says nothing."""
        info = self._live("aie_engine_info", name, now_s)
        labels = dict(info[-1].tags) if info else {}
        tokens = self._store.scalars(_TOKENS, engine=name)
        return {
            "kind": labels.get("kind") or (found.kind if found else None),
            "model": labels.get("model") or _label_of(tokens, "model"),
            "version": labels.get("version") or None,
            "device": labels.get("device") or None,
        }

    def _requests(self, name: str, now_s: float, start_s: float) -> Mapping[str, Any]:
        """How requests end. Where it is not said how many end well, all that end are those of which a duration was observed; and
        without any count of errors there is none, rather than 0."""
        outcomes = rates_by_label(self._store.scalars("aie_engine_requests_total", engine=name), "outcome", now_s, start_s)
        ended = sum(outcomes.values()) if outcomes else None
        if "ok" not in outcomes:
            timed = observation_rate(self._live_histograms("aie_engine_request_duration_seconds", name, now_s), start_s, now_s)
            ended = max((each for each in (ended, timed) if each is not None), default=None)
        failed = [value for outcome, value in outcomes.items() if outcome in ("error", "timeout")]
        return {
            "requests_per_second": ended,
            "errors_per_second": sum(failed) if failed or "ok" in outcomes else None,
            "outcomes_per_second": outcomes,
        }

    def _ages(self, name: str, now_s: float, wall_s: float) -> Mapping[str, Any]:
        metrics = {"uptime_s": "aie_engine_start_time_seconds", "last_token_age_s": "aie_engine_last_token_timestamp_seconds"}
        since = {field: self._store.current(metric, now_s, engine=name) for field, metric in metrics.items()}
        if since["uptime_s"] is None:  # nobody says when it began: its first process did no later
            since["uptime_s"] = min((row.start_time_s for row in self._processes.rows(name)), default=None)
        return {field: None if then_s is None else max(wall_s - then_s, 0.0) for field, then_s in since.items()}

    def _histories(self, name: str, now_s: float) -> Mapping[str, Any]:
        tokens, running = (self._store.scalars(metric, engine=name) for metric in (_TOKENS, _RUNNING))
        return {
            "generation_tokens_history": rate_history(tokens, now_s, HISTORY_POINTS, HISTORY_STEP_S),
            "running_history": level_history(running, now_s, HISTORY_POINTS, HISTORY_STEP_S),
        }

    def _place(self, name: str, found: Found | None) -> Mapping[str, Any]:
        """In which container and pod it runs: as the scan found it, else as the control groups of its first process say."""
        if found is not None:
            return {"container": found.container, "pod": found.pod}
        groups = next((row.cgroups for row in self._processes.rows(name) if row.cgroups is not None), None)
        paths = "\n".join(filter(None, groups or ())).encode("utf-8", "surrogateescape")
        return {"container": container_id(paths), "pod": pod_uid(paths)}

    def _note(self, name: str, found: Found | None) -> str | None:
        """What cannot be seen of an engine, and why."""
        if self._engines.state(name) == "unknown":
            return "no process of it is known, so its memory and CPU are not seen (on another host, or another user's?)"
        page = found.note if found else None
        notes = (each.note(name) for each in (self._engines, self._processes, self._probes))
        return "; ".join(filter(None, (*notes, page, self._gpu_note(name)))) or None

    def _page_reason(self, name: str, found: Found | None) -> str | None:
        """Why the page of a live engine cannot be read."""
        health = self._discovered.page_health(name) if self._discovered else None
        if health is None or health.reason is None or self._engines.state(name) == "down":
            return None
        return "; ".join(filter(None, (health.reason, found.hint if found else None)))

    def _running_at_end(self, name: str) -> float | None:
        """What ran when an engine that is down was last heard, as the source that heard it last tells it."""
        known = self._store.scalars(_RUNNING, engine=name) if self._engines.state(name) == "down" else []
        newest = max(known, key=lambda series: series.last_time_s, default=None)
        return sum(series.value for series in known if series.source == newest.source) if newest is not None else None

    def _origins(self, name: str, now_s: float) -> tuple[str, ...]:
        """From where this engine's own numbers come at present."""
        current = self._live("aie_engine_requests_total", name, now_s) + self._live(_TOKENS, name, now_s)
        kinds = {series.source.partition(":")[0] for series in current}
        return tuple(word for kind, word in _ORIGINS.items() if kind in kinds)


def live(all_series: Iterable[Series], now_s: float) -> list[Series]:
    """Those whose last value still counts."""
    return [series for series in all_series if series.valid_until_s >= now_s]


def rates_by_label(all_series: Iterable[Series], label: str, now_s: float, start_s: float) -> dict[str, float]:
    """Rates per second of counters, by the value of one of their labels."""
    groups: dict[str, list[Series]] = {}
    for series in live(all_series, now_s):
        groups.setdefault(dict(series.tags).get(label, ""), []).append(series)
    rates = {value: rate(group, start_s, now_s) for value, group in groups.items()}
    return {value: found for value, found in rates.items() if found is not None}


def _label_of(all_series: Sequence[Series], label: str) -> str | None:
    return dict(all_series[-1].tags).get(label) if all_series else None


def _process(row: ProcessRow) -> api.Process:
    return api.Process(
        tgid=row.tgid,
        start_time_s=row.start_time_s,
        command=row.command,
        resident_anon_bytes=row.resident_anon_bytes,
        cpu_cores=row.cpu_cores,
        threads=row.threads,
    )
