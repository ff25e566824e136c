"""What is wrong, from the agents' findings; then how engines, GPUs and hosts do."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import HEALTHY, NOTABLE, Board, Column, Query, Row, Situation, Word, lines, stat, table, timeline

SEVERITIES: Final = (("3", Word("critical", "red")), ("2", Word("warning", "orange")), ("1", Word("info", "blue")))
_OF_FINDING: Final = "instance, cause, subject"


def _graveness(severity: str, rank: int) -> str:
    return f"{rank} * {p.by(_OF_FINDING, p.of('aie_finding', extra=p.exactly('severity', severity)), 'max')}"


FINDINGS: Final = " or ".join(_graveness(word.text, int(rank)) for rank, word in SEVERITIES)
"""What is found, by how grave it is: 3 critical, 2 warning, 1 info."""
_FOUND_LATELY: Final = p.by(_OF_FINDING, f"max_over_time({p.of('aie_finding')}[$__range])", "max")
HISTORY: Final = f"{FINDINGS} or 0 * {_FOUND_LATELY}"
"""The same, and 0 for what is found no more: a picture of states draws on what ends without a word."""


def _findings(severity: str) -> str:
    """How many there are; of agents that find none, 0."""
    found = p.by("", p.of("aie_finding", extra=p.exactly("severity", severity)))
    return f"{found} or 0 * {p.by('', p.of('aie_agent_info'))}"


_ANSWER: Final = Row(
    "",
    (
        stat(
            "Critical findings",
            "Is anything broken now?",
            "none",
            Query(_findings("critical"), "{{job}}"),
            steps=HEALTHY,
        ),
        stat(
            "Warnings",
            "Is anything about to break, or slower than it should be?",
            "none",
            Query(_findings("warning"), "{{job}}"),
            steps=NOTABLE,
        ),
        stat(
            "Engines down",
            "Has every process of an engine gone that was there?",
            "none",
            Query(p.by("", f"{p.of('aie_engine_up')} == bool 0"), "{{job}}"),
            steps=HEALTHY,
            empty="no engine's process was seen yet",
            runbooks=("engine_down", "AieEngineVanished", "AieEngineAbsent"),
        ),
        stat(
            "GPUs that do not answer",
            "Are all GPUs there that the agents know of?",
            "none",
            Query(p.by("", f"{p.of('aie_gpu_expected')} - {p.of('aie_gpu_present')}"), "{{job}}"),
            situation=Situation.GPUS,
            steps=HEALTHY,
            empty="no agent here sees a GPU; `aie-agent check` says why",
        ),
        stat(
            "Sources that fail",
            "Is there anything that the agents should see and do not?",
            "none",
            Query(p.by("", f"{p.of('aie_agent_source_up')} == bool 0"), "{{job}}"),
            steps=NOTABLE,
        ),
        stat(
            "Agents that do not answer",
            "Are there hosts of which Prometheus hears nothing?",
            "none",
            Query(p.agents_down(), "{{job}}"),
            steps=HEALTHY,
            runbooks=("AieAgentDown", "AieAgentAbsent"),
        ),
        table(
            "What is wrong now",
            "What is wrong, with whom, and how bad is it? `aie-top` tells the evidence, and what to do.",
            Query(FINDINGS),
            columns=(
                Column("Value", "severity", width=110, words=SEVERITIES),
                Column("cause", "cause", link="runbook"),
                Column("subject", "subject"),
                Column("instance", "instance", link="host"),
                Column("job", "job", width=140),
            ),
            sort="severity",
            situation=Situation.FAULTS,
            empty="nothing is wrong",
            trouble=True,
        ),
        timeline(
            "When it began",
            "Since when is it so, and what began with it?",
            Query(HISTORY, "{{cause}}: {{subject}} ({{instance}})"),
            words=(*SEVERITIES, ("0", Word("no more", "transparent"))),
            height=9,
            situation=Situation.FAULTS,
            empty="nothing was wrong in this time",
            trouble=True,
        ),
    ),
)

_ENGINES: Final = Row(
    "Engines",
    (
        lines(
            "Requests ended, by outcome",
            "How much is asked of the engines, and does it end well?",
            "reqps",
            Query(p.total("aie_engine_requests_total", "outcome"), "{{outcome}}"),
            stacked=True,
            words=(
                ("ok", Word("", "green")),
                ("error", Word("", "red")),
                ("timeout", Word("", "orange")),
                ("rejected", Word("", "yellow")),
                ("cancelled", Word("", "blue")),
            ),
        ),
        lines(
            "Time to first token, p99",
            "Which engine keeps its users waiting?",
            "s",
            Query(p.quantile(0.99, "aie_engine_time_to_first_token_seconds", "instance, engine"), p.OF_ENGINE),
            link="engine",
            runbooks=("queue_saturation", "prefill_interference"),
        ),
        lines(
            "Tokens generated a second",
            "How much do the engines deliver?",
            "short",
            Query(p.total("aie_engine_generation_tokens_total", "instance, engine"), p.OF_ENGINE),
            link="engine",
        ),
    ),
)

_MACHINES: Final = Row(
    "GPUs and hosts",
    (
        lines(
            "GPU memory in use, fullest GPU of each host",
            "Is any GPU about to run out of memory? Engines that take all of it at their start stay where they are.",
            "percentunit",
            Query(
                p.by(
                    "instance",
                    p.share(p.of("aie_gpu_memory_used_bytes"), p.of("aie_gpu_memory_total_bytes")),
                    "max",
                ),
                p.OF_HOST,
            ),
            situation=Situation.GPUS,
            most=1,
            empty="no agent here sees a GPU",
        ),
        lines(
            "GPU utilization, mean of each host",
            "Are the GPUs at work? A mean of gauges of one moment: how even it is, the board of GPUs tells.",
            "percentunit",
            Query(p.by("instance", p.of("aie_gpu_utilization_ratio"), "avg"), p.OF_HOST),
            situation=Situation.GPUS,
            most=1,
            empty="no agent here sees a GPU",
        ),
        lines(
            "Host memory available",
            "Is any host about to swap, or to kill?",
            "percentunit",
            Query(p.share(p.of("aie_host_memory_available_bytes"), p.of("aie_host_memory_total_bytes")), p.OF_HOST),
            most=1,
            link="host",
            runbooks=("host_memory_low", "oom_killed"),
        ),
    ),
)

OVERVIEW: Final = Board(
    "overview",
    "aie / Overview",
    "What is wrong, with whom, and since when?",
    ("job", "instance"),
    (_ANSWER, _ENGINES, _MACHINES),
)
