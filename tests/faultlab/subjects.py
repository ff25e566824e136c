"""Whom a finding is about: what is ours, and what this host does not let the agent see, which is a fact and no alarm."""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Final

from aie_agent.analysis.agent_causes import AGENT, PROBES
from aie_agent.analysis.agent_causes import CAUSE as AGENT_BLIND
from aie_agent.sources.bpf.source import BpfSource
from aie_telemetry import api
from tests.faultlab.judge import HOST

ENGINE_NAME: Final = f"faultlab-{os.getpid()}"
"""Its own name: other engines of this model may run on the host."""

_PAGE: Final = "scrape:"


def counts(finding: api.Finding, sources: Container[str], lacks: Container[str]) -> bool:
    """Whether it is about our engine, the host, a GPU, the agent, its probes or its sources, unless it says that the agent does not
    see what it `lacks`. Other engines that run on this host are found too, and are nobody's here."""
    subject = finding.subject
    ours = subject in (ENGINE_NAME, HOST, AGENT, PROBES) or subject in sources or subject.startswith("gpu")
    return ours and not (finding.cause == AGENT_BLIND and subject in lacks)


def lacking(sources: Sequence[api.Source], coverage: Iterable[api.Coverage]) -> dict[str, str]:
    """What an agent that has just begun cannot see on this host, and why: a source that has not worked once, and probes where there
    is no source for them. What worked before and does not any more is none of these. `coverage` is of our engine."""
    down = [each for each in sources if each.state == "down" and not each.name.startswith(_PAGE)]
    never = {each.name: each.reason or "" for each in down if each.last_success_age_s is None}
    if not any(each.name == BpfSource.name for each in sources):
        return never | {PROBES: "; ".join(each.reason for each in coverage)}
    return never | ({PROBES: never[BpfSource.name]} if BpfSource.name in never else {})


def still_lacking(lacks: Mapping[str, str], snapshot: api.Snapshot) -> dict[str, str]:
    """Those that do not work in it either: a source whose first attempt failed may work a moment later. Where the agent still says
    that it is blind there, it tells of what was."""
    works = {each.name for each in snapshot.sources if each.state == "up"}
    if BpfSource.name in works:
        works.add(PROBES)
    works -= {each.subject for each in snapshot.findings if each.cause == AGENT_BLIND}
    return {what: why for what, why in lacks.items() if what not in works}
