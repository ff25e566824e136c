"""What is wrong with GPUs, as problems: a line for all of a host that have the same, where no finding tells it.

Findings begin after some seconds, by when what comes and goes is over. So a line of our own waits for longer than any of them: it
is for agents that do not have the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aie_telemetry.api import Event, Gpu, Severity, Snapshot
from aie_top import format as fmt
from aie_top.events import SHOWN_S, XID_EVENT
from aie_top.gpu_state import XID, Condition, conditions, when
from aie_top.rows import ProblemRow

_INDEX: Final = re.compile(r"(?i)gpu\D{0,2}(\d{1,3})")
_ABOUT_GPUS: Final = re.compile(r"(?i)(simulated )?gpus?[ :]?\d")
_RUN: Final = re.compile(r"(\d{1,3})(?:-(\d{1,3}))?")
# A finding about many GPUs may name each of them, and each has a line of its own here.
_MOST_REASONS: Final = 4
FINDING_BEGINS_S: Final = 10.0
"""By then the agent has told of it, or never will."""


_Member = tuple[Gpu, Condition]


def gpu_problems(snapshot: Snapshot) -> Iterator[ProblemRow]:
    groups: dict[tuple[Severity, str], list[_Member]] = {}
    told = told_by_agent(snapshot)
    recent = recent_xids(snapshot)
    for gpu in snapshot.gpus:
        for one in conditions(gpu, recent.get(gpu.index)):
            if one.severity is not None and not _is_told(one.cause, gpu, told) and not _is_young(one, snapshot.time_s):
                groups.setdefault((one.severity, one.words), []).append((gpu, one))
    for (severity, words), members in groups.items():
        yield ProblemRow(
            severity=severity,
            summary=words,
            subject=name_of([gpu for gpu, _ in members]),
            host=snapshot.host.hostname,
            age_s=_age_s(members, snapshot.time_s),
            why=tuple(_why(members, snapshot.time_s)),
            advice=members[0][1].do,
        )


def _is_young(one: Condition, now_s: float) -> bool:
    return one.time_s is not None and 0.0 <= now_s - one.time_s < FINDING_BEGINS_S


def recent_xids(snapshot: Snapshot) -> dict[int, dict[str, Event]]:
    """By GPU, then by XID, the newest event of the last minutes."""
    found: dict[int, dict[str, Event]] = {}
    for event in sorted(snapshot.events, key=lambda event: event.time_s):
        gpu, xid = _number(event, "gpu"), _number(event, "xid")
        if event.kind == XID_EVENT and snapshot.time_s - event.time_s <= SHOWN_S and gpu.isdecimal():
            found.setdefault(int(gpu), {})[xid] = event
    return found


def _number(event: Event, name: str) -> str:
    value = event.details.get(name, "")
    return value if isinstance(value, str) else f"{value:.0f}"


def name_of(gpus: Sequence[Gpu]) -> str:
    """GPU 3, or simulated GPUs 0-3, 7."""
    word = "GPU" if len(gpus) == 1 else "GPUs"
    simulated = "simulated " if any(gpu.simulated for gpu in gpus) else ""
    return f"{simulated}{word} {fmt.numbers(gpu.index for gpu in gpus)}"


def indices_of(subject: str) -> frozenset[int]:
    """The GPUs that a subject names, as `name_of` or a finding writes them; none where it is about something else."""
    if not _ABOUT_GPUS.match(subject):
        return frozenset()
    runs = _RUN.findall(subject)
    return frozenset(index for first, last in runs for index in range(int(first), int(last or first) + 1))


def _age_s(members: Sequence[_Member], now_s: float) -> float | None:
    """Of what happened, the last time; of what holds, since the first of them has it."""
    ages = [max(now_s - one.time_s, 0.0) for _, one in members if one.time_s is not None]
    return (min if members[0][1].cause == XID else max)(ages, default=None)


def _why(members: Sequence[_Member], now_s: float) -> Iterator[str]:
    """Of several GPUs each by itself, with how long it has been so: the line has only the age of the first."""
    if len(members) == 1:
        yield from filter(None, (members[0][1].detail,))
        return
    told = [(gpu, text) for gpu, one in members if (text := ", ".join(filter(None, (one.detail, when(one, now_s)))))]
    for gpu, text in told[:_MOST_REASONS]:
        yield f"GPU {gpu.index}: {text}"
    if len(told) > _MOST_REASONS:
        yield f"and {len(told) - _MOST_REASONS} more"


def told_by_agent(snapshot: Snapshot) -> dict[tuple[str, int], Severity]:
    """By (cause, index), how bad the agent's findings call what they say of GPUs by themselves."""
    about = [finding for finding in snapshot.findings if finding.cause.startswith("gpu_")]
    return {(finding.cause, int(index)): finding.severity for finding in about for index in _INDEX.findall(finding.subject)}


def _is_told(cause: str, gpu: Gpu, told: Iterable[tuple[str, int]]) -> bool:
    return any(
        index == gpu.index and (by_agent == cause or (cause == XID and by_agent.startswith(XID))) for by_agent, index in told
    )
