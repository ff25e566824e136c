"""The agent about itself: `aie_agent_*`."""

from __future__ import annotations

from typing import Final

from aie_telemetry.catalogue.metric import Metric, counter, gauge

AGENT_METRICS: Final[tuple[Metric, ...]] = (
    gauge("aie_agent_info", "1", ("version",), "Always 1; the agent's version."),
    gauge("aie_agent_start_time_seconds", "seconds", (), "When the agent started, in seconds since the epoch."),
    counter("aie_agent_cpu_seconds_total", "seconds", (), "CPU time that the agent used."),
    gauge("aie_agent_clock_ahead_seconds", "seconds", (),
           "How far the agent's time is ahead of the wall clock, after that was set back; the agent's time never goes back."),
    gauge("aie_agent_resident_bytes", "bytes", (), "Resident memory of the agent."),
    gauge("aie_agent_source_up", "1", ("source",), "1 when the source's last collection worked, else 0."),
    counter("aie_agent_source_collections_total", "collections", ("source",), "Collections that the source began."),
    counter("aie_agent_source_failures_total", "collections", ("source",), "Collections that failed."),
    counter("aie_agent_source_seconds_total", "seconds", ("source",), "Time spent in collections of the source."),
    gauge("aie_agent_source_last_success_timestamp_seconds", "seconds", ("source",),
           "When the source last collected without failure, in seconds since the epoch. Absent until it has."),
    gauge("aie_agent_series", "series", (), "Series in the store."),
    gauge("aie_agent_series_limit", "series", (), "Most series that the store takes."),
    counter("aie_agent_samples_total", "samples", ("source",), "Samples taken into the store."),
    counter("aie_agent_samples_refused_total", "samples", ("reason",),
             "Samples not taken into the store: series_limit, page_share (one page has a quarter of the store, or a twentieth where nobody configured it), foreign_limit (names of others have at most half of the store), kind_conflict, reserved_name, bad_labels, out_of_order, too_large, engine_limit."),
    counter("aie_agent_samples_shadowed_total", "samples", (),
             "Samples passed over because a better source reports the same metric of the same engine (page before StatsD before eBPF)."),
    counter("aie_agent_scrape_refused_total", "samples", ("engine", "reason"),
             "Samples of an engine's page not taken, by reason: foreign or missing labels, another kind, duplicate, not_finite, negative, series_too_long, bad_histogram, series_limit."),
    gauge("aie_agent_scrape_lint", "1", ("engine", "rule"),
           "1 while an engine's page breaks a rule: missing_family, duplicate_pid, gauge_for_counter, counter_for_gauge, totals_disagree, undeclared. Shown by `aie-agent check`."),
    counter("aie_agent_nvml_seconds_total", "seconds", ("call",), "Time spent in calls to NVML, by function."),
    counter("aie_agent_nvml_errors_total", "errors", ("call", "code"), "Calls to NVML that failed, by function and error; what a GPU does not support is asked once and not counted."),
    counter("aie_agent_events_total", "events", ("kind",), "Events that hooks sent and the agent keeps: oom."),
    counter("aie_agent_statsd_packets_total", "packets", ("socket",), "StatsD packets received, by socket: unix, udp."),
    counter("aie_agent_statsd_bytes_total", "bytes", ("socket",), "StatsD bytes received."),
    counter("aie_agent_statsd_samples_total", "samples", (), "Samples parsed from StatsD lines."),
    counter("aie_agent_statsd_dropped_total", "parts", ("reason",), "StatsD input refused, by reason (the codec's reasons, and the agent's caps)."),
    counter("aie_agent_statsd_ignored_total", "lines", ("kind",), "StatsD lines of kinds that aie does not use: event, service_check."),
    counter("aie_agent_statsd_kernel_drops_total", "packets", ("socket",),
             "Packets that the kernel dropped because the agent did not read fast enough. Unix senders see a full socket themselves and count there."),
    counter("aie_agent_relay_packets_total", "packets", (), "StatsD packets passed on to the upstream server."),
    counter("aie_agent_relay_dropped_total", "packets", ("reason",), "StatsD packets not passed on, by reason."),
    gauge("aie_agent_http_streams", "connections", (), "Open event streams of the HTTP API."),
    counter("aie_agent_http_requests_total", "requests", ("path", "code"), "Requests to the HTTP API. Unknown paths are counted as 'other'."),
)  # fmt: skip
