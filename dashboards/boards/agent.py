"""Whether the agents see what they should, and what they cost."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import HEALTHY, NOTABLE, Board, Column, Query, Row, Situation, Step, Word, lines, stat, table

_I: Final = "instance"
_PROBED: Final = "needs eBPF on that host: `aie-agent check` says what is missing"
_P: Final = Situation.PROBES
_BLIND: Final = ("agent_blind",)
_SPANS: Final = (
    ("ok", Word("", "green")),
    ("failed", Word("", "red")),
    ("refused", Word("", "orange")),
    ("dropped", Word("", "purple")),
)
_FAILS: Final = f"{p.by('instance, source', p.of('aie_agent_source_up'), 'max')} == 0"

_ANSWER: Final = Row(
    "",
    (
        stat(
            "Agents",
            "How many agents answer?",
            "none",
            Query(p.by("", p.of("aie_agent_info"), "count"), "{{job}}"),
            runbooks=("AieAgentAbsent",),
        ),
        stat(
            "Agents that do not answer",
            "Are there hosts of which Prometheus hears nothing?",
            "none",
            Query(p.agents_down(), "{{job}}"),
            steps=HEALTHY,
            runbooks=("AieAgentDown", "AieAgentRestarts"),
        ),
        stat(
            "Sources that fail",
            "Is there anything that agents should see and do not?",
            "none",
            Query(p.by("", f"{p.of('aie_agent_source_up')} == bool 0"), "{{job}}"),
            steps=NOTABLE,
            runbooks=("AieAgentBlind",),
        ),
        stat(
            "Series refused a second",
            "Is the store of any agent full, or is it sent what it cannot take?",
            "short",
            Query(p.total("aie_agent_samples_refused_total", ""), "{{job}}"),
            steps=(Step(None, "green"), Step(0.001, "orange")),
            runbooks=("AieAgentSeriesRefused",),
        ),
        stat(
            "CPU, busiest agent",
            "What does watching cost, as a share of one CPU? 2 % is the budget of eight GPUs and 64 processes.",
            "percentunit",
            Query(p.by("", p.total("aie_agent_cpu_seconds_total", _I), "max"), "{{job}}"),
        ),
        stat(
            "Memory, largest agent",
            "How much memory does an agent take, without its probes? The budget is 120 MiB.",
            "bytes",
            Query(p.by("", p.of("aie_agent_resident_bytes"), "max"), "{{job}}"),
            steps=(Step(None, "green"), Step(120 * 2**20, "orange")),
        ),
        table(
            "Which sources fail",
            "What can be seen on which host no more? `aie-agent check` there says why, and what to do.",
            Query(_FAILS),
            Query(p.among(p.by("instance, source", p.rate("aie_agent_source_failures_total")), "instance, source", _FAILS)),
            columns=(
                Column("source", "source"),
                Column("Value #A", "state", width=110, words=(("0", Word("fails", "red")),)),
                Column("Value #B", "failures a second", unit="short", width=160),
                Column("instance", "instance", link="host"),
                Column("job", "job", width=140),
            ),
            sort="state",
            ascending=True,
            situation=Situation.FAULTS,
            empty="all sources work",
            trouble=True,
            height=7,
            runbooks=("agent_blind", "AieAgentBlind"),
        ),
    ),
)

_COST: Final = Row(
    "What it costs",
    (
        lines(
            "CPU",
            "What does watching take, in CPUs?",
            "percentunit",
            Query(p.total("aie_agent_cpu_seconds_total", _I), f"agent {p.OF_HOST}"),
            colours=("blue",),
        ),
        lines(
            "Memory",
            "Does an agent itself grow?",
            "bytes",
            Query(p.by(_I, p.of("aie_agent_resident_bytes"), "max"), f"agent {p.OF_HOST}"),
            colours=("blue",),
        ),
        lines(
            "Series, of what the store takes",
            "Is the store about to be full?",
            "percentunit",
            Query(p.by(_I, p.share(p.of("aie_agent_series"), p.of("aie_agent_series_limit")), "max"), p.OF_HOST),
            most=1,
            runbooks=("series_refused", "AieAgentSeriesNearLimit"),
        ),
        lines(
            "Time in sources",
            "Which source takes the agent's time, in seconds a second?",
            "percentunit",
            Query(p.total("aie_agent_source_seconds_total", "instance, source"), "{{source}} ({{instance}})"),
        ),
        lines(
            "Taken from engines by probes",
            "What do probes cost an engine, as a share of one CPU?",
            "percentunit",
            Query(p.by("instance, engine", p.of("aie_agent_probe_overhead_ratio", p.INSTANCE), "max"), p.OF_ENGINE),
            steps=(Step(None, "transparent"), Step(0.01, "red")),
            situation=_P,
            empty=_PROBED,
            runbooks=("AieAgentProbesCostly", "AieAgentProbesDetached"),
        ),
        lines(
            "Time in NVML",
            "Which calls to the driver take long?",
            "percentunit",
            Query(p.total("aie_agent_nvml_seconds_total", "instance, call"), "{{call}} ({{instance}})"),
            situation=Situation.GPUS,
            empty="no agent here sees a GPU",
        ),
    ),
)

_INPUT: Final = Row(
    "What comes in",
    (
        lines(
            "Samples taken",
            "How much does each source tell?",
            "short",
            Query(p.total("aie_agent_samples_total", "instance, source"), "{{source}} ({{instance}})"),
        ),
        lines(
            "Samples refused",
            "What is not taken into the store, and why?",
            "short",
            Query(p.total("aie_agent_samples_refused_total", "instance, reason"), "{{reason}} ({{instance}})"),
            runbooks=("series_refused", "AieAgentSeriesRefused"),
        ),
        lines(
            "Refused of engines' pages",
            "Which page breaks rules, and how?",
            "short",
            Query(p.total("aie_agent_scrape_refused_total", "instance, engine, reason"), f"{{{{reason}}}} {p.OF_ENGINE}"),
            situation=Situation.FAULTS,
            empty="no page was ever refused anything",
        ),
        lines(
            "StatsD packets",
            "Do hooks send, and is all of it read?",
            "short",
            Query(p.total("aie_agent_statsd_packets_total", "instance, socket"), "{{socket}} ({{instance}})"),
            situation=Situation.HOOKS,
            empty="nobody ever sent any",
        ),
        lines(
            "StatsD lost",
            "What is refused, dropped by the kernel, or dropped by who sends?",
            "short",
            Query(p.total("aie_agent_statsd_dropped_total", "instance, reason"), "refused: {{reason}} ({{instance}})"),
            Query(p.total("aie_agent_statsd_kernel_drops_total", "instance, socket"), "kernel: {{socket}} ({{instance}})"),
            Query(p.total("aie_hooks_dropped_total", "instance, engine, reason"), "hooks: {{reason}} {{engine}} ({{instance}})"),
            colours=("orange", "red", "purple"),
            situation=Situation.FAULTS,
            empty="nothing was ever lost",
            runbooks=("AieAgentInputDropped",),
        ),
        table(
            "Rules that engines' pages break",
            "Which engine's page says what cannot be true? `aie-agent check` tells more.",
            Query(f"{p.by('instance, engine, rule', p.of('aie_agent_scrape_lint'), 'max')} == 1"),
            columns=(
                Column("engine", "engine"),
                Column("rule", "rule"),
                Column("instance", "instance", link="host"),
            ),
            sort="engine",
            ascending=True,
            width=8,
            situation=Situation.FAULTS,
            empty="none does",
            trouble=True,
        ),
    ),
)

_OUTPUT: Final = Row(
    "What goes out",
    (
        lines(
            "Requests to the agent",
            "Who asks the agent, and is anybody refused?",
            "reqps",
            Query(p.total("aie_agent_http_requests_total", "instance, path, code"), "{{code}} {{path}} ({{instance}})"),
        ),
        lines(
            "Pushes to an OTLP collector",
            "Does what is pushed arrive?",
            "short",
            Query(p.total("aie_agent_otlp_exports_total", "instance, result"), "{{result}} ({{instance}})"),
            words=(("ok", Word("", "green")), ("failed", Word("", "red"))),
            situation=Situation.FAULTS,
            empty="no collector is configured",
            runbooks=("AieAgentPushesFail",),
        ),
        lines(
            "Spans of engines",
            "Do the spans of requests arrive? Failed is a whole batch, refused a part of one; dropped had no room to wait.",
            "short",
            Query(p.total("aie_engine_spans_total", "instance, engine, result"), f"{{{{result}}}} {p.OF_ENGINE}"),
            words=_SPANS,
            situation=Situation.HOOKS,
            empty="no engine here pushes spans itself",
            runbooks=("AieEngineSpansLost",),
        ),
    ),
)

_PROBES: Final = Row(
    "Probes (eBPF)",
    (
        lines(
            "Hits of probes",
            "How often do probes run?",
            "short",
            Query(p.total("aie_agent_probe_hits_total", "instance, engine, set"), f"{{{{set}}}} {p.OF_ENGINE}"),
            situation=_P,
            empty=_PROBED,
        ),
        lines(
            "Memory of the child",
            "Does the process that holds the probes stay alive, and small? 125 MiB is its budget.",
            "bytes",
            Query(p.by(_I, p.of("aie_agent_bpf_resident_bytes"), "max"), p.OF_HOST),
            situation=_P,
            empty=_PROBED,
            runbooks=_BLIND,
        ),
        lines(
            "Starts of the child",
            "Was it started again, because it ended or went silent?",
            "none",
            Query(p.by(_I, p.of("aie_agent_bpf_starts_total"), "max"), p.OF_HOST),
            situation=_P,
            empty=_PROBED,
            runbooks=(*_BLIND, "AieAgentProbeChildRestarts"),
        ),
        lines(
            "Events lost",
            "What could probes not note, because a map was full?",
            "short",
            Query(p.total("aie_agent_probe_lost_total", "instance, map"), "{{map}} ({{instance}})"),
            situation=Situation.NOT_HERE,
            why="needs a map of the kernel to overflow, which takes more than a test may take of its host",
            empty="nothing was ever lost",
            runbooks=("AieAgentProbeEventsLost",),
        ),
    ),
    folded=True,
)

AGENT: Final = Board(
    "agent",
    "aie / Agent health",
    "Do the agents see what they should, and what do they cost?",
    ("job", "instance"),
    (_ANSWER, _COST, _INPUT, _OUTPUT, _PROBES),
    range="now-3h",
)
