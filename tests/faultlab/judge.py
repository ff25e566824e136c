"""From what was seen while a fault lasted to a row of the table. Pure: times are arguments."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.leaks.lines import IN_WORDS, LeakClass
from aie_telemetry.api import Finding, Severity

TOP_RIGHT_SHARE: Final = 0.95
FAST_MEDIAN_S: Final = 10.0

BUSY_CPUS: Final = 0.3
"""From so many CPUs on that others take, a small host has none to spare."""
AMBIENT: Final = frozenset({"cpu_starved", "cpu_steal"})
"""What is then true of the lab's engine, whatever the lab does."""

Key = tuple[str, str]
"""Cause and subject."""


class Look(NamedTuple):
    """The findings at one moment, in seconds after the fault began, in the agent's order: the worst first."""

    after_s: float
    findings: Sequence[Finding]


class Expected(NamedTuple):
    """What the fault's row says: the causes that name it (none: nothing may be found), and those that may stand beside; which
    classes of a leak its finding must name one of, and which severity it must have, where that is told."""

    causes: Sequence[str]
    beside: Sequence[str]
    classes: Sequence[LeakClass] = ()
    severity: Severity | None = None

    def names(self, finding: Finding) -> bool:
        """Whether a finding is right: a leak of another class sends whoever reads it to the wrong place."""
        is_of_class = not self.classes or any(f"({IN_WORDS[each]})" in finding.summary for each in self.classes)
        return finding.cause in self.causes and is_of_class and self.severity in (None, finding.severity)

    def called(self, finding: Finding) -> str:
        """Its cause, with what else is judged of it."""
        own = next((words for words in IN_WORDS.values() if f"({words})" in finding.summary), "")
        more = (*([own] if self.classes and own else ()), *([finding.severity] if self.severity else ()))
        return f"{finding.cause} ({', '.join(more)})" if more and finding.cause in self.causes else finding.cause


class Verdict(NamedTuple):
    """What the agent made of a fault. `named_as` is the first of the findings at the end, "" for none; `seconds` until one of the
    expected causes stood among them unexplained; `others` are causes that are neither expected nor may stand beside it, and
    `beside` those that may and did."""

    named_as: str
    named: bool
    top_right: bool
    seconds: float | None
    others: tuple[str, ...]
    beside: tuple[str, ...] = ()


class Result(NamedTuple):
    """One fault. `false_alarms` are causes found while nothing was wrong, before it; `skipped` says why it was not run.
    `others_cpus` is what everything that is not the lab's took of the host meanwhile, `ambient` what was found of that: it is true.
    `sentences` are what the agent said."""

    fault: str
    what: str
    expected: tuple[str, ...]
    fast: bool
    verdict: Verdict | None
    healthy_s: float = 0.0
    false_alarms: tuple[str, ...] = ()
    skipped: str = ""
    others_cpus: float = 0.0
    ambient: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


class Totals(NamedTuple):
    """All results together; `ran` leaves out those that were `skipped`, and `median_s` is of the fast faults that were named."""

    ran: int
    named: int
    top_right: int
    median_s: float | None
    false_alarms: int
    healthy_s: float
    skipped: int = 0

    @property
    def reached(self) -> bool:
        """Whether the targets are: every fault was run and named, nearly every top cause right, the fast ones fast, no false
        alarm."""
        all_named = 0 < self.ran == self.named and not self.skipped
        in_time = self.median_s is None or self.median_s < FAST_MEDIAN_S
        return all_named and self.top_right >= TOP_RIGHT_SHARE * self.ran and in_time and not self.false_alarms


def keys(findings: Iterable[Finding]) -> frozenset[Key]:
    """Who is named, and what for."""
    return frozenset((each.cause, each.subject) for each in findings)


def new(findings: Sequence[Finding], before: frozenset[Key]) -> list[Finding]:
    """Those that were not there before, and that nothing else explains."""
    return [each for each in findings if (each.cause, each.subject) not in before and not each.explained_by]


class Healthy(NamedTuple):
    """What was found while the lab had broken nothing: causes that are false alarms, and causes that others on the host are for."""

    false_alarms: tuple[str, ...]
    ambient: tuple[str, ...]


def healthy(looks: Sequence[Look], before: frozenset[Key], others_cpus: float) -> Healthy:
    """`before` is left of the fault before."""
    found = {each.cause for look in looks for each in new(look.findings, before)}
    ambient = found & AMBIENT if others_cpus >= BUSY_CPUS else frozenset()
    return Healthy(tuple(sorted(found - ambient)), tuple(sorted(ambient)))


def sentences(looks: Sequence[Look], before: frozenset[Key]) -> tuple[str, ...]:
    """What was said of each cause when it was last seen: its summary and its evidence."""
    last = {
        (each.cause, each.subject): each for look in looks for each in look.findings if (each.cause, each.subject) not in before
    }
    return tuple(_sentence(each) for each in last.values())


def _sentence(finding: Finding) -> str:
    by = f" (explained by {finding.explained_by})" if finding.explained_by else ""
    return f"{finding.cause}{by}: {finding.summary}: {'; '.join(each.text for each in finding.evidence)}"


def is_named(look: Look, expected: Expected, before: frozenset[Key]) -> bool:
    """Whether one of the expected causes is among the findings."""
    return any(expected.names(each) for each in new(look.findings, before))


def judge(looks: Sequence[Look], expected: Expected, before: frozenset[Key]) -> Verdict:
    """What the agent made of a fault, of which it was asked at these moments. `before` was found before it."""
    last = new(looks[-1].findings, before) if looks else []
    top = expected.called(last[0]) if last else ""
    at = next((look.after_s for look in looks if is_named(look, expected, before)), None)
    seen = {each.cause for look in looks for each in new(look.findings, before)}
    others = tuple(sorted(seen - set(expected.causes) - set(expected.beside)))
    beside = tuple(sorted(seen & set(expected.beside) - set(expected.causes)))
    if not expected.causes:
        return Verdict(top, not others, not others, None, others, beside)
    return Verdict(top, at is not None, bool(last) and expected.names(last[0]), at, others, beside)


def totals(results: Sequence[Result]) -> Totals:
    """The last line of the table."""
    verdicts = [(each, each.verdict) for each in results if each.verdict is not None]
    fast = [verdict.seconds for each, verdict in verdicts if each.fast and verdict.seconds is not None]
    return Totals(
        ran=len(verdicts),
        named=sum(verdict.named for _, verdict in verdicts),
        top_right=sum(verdict.top_right for _, verdict in verdicts),
        median_s=statistics.median(fast) if fast else None,
        false_alarms=sum(len(each.false_alarms) for each in results),
        healthy_s=sum(each.healthy_s for each in results),
        skipped=len(results) - len(verdicts),
    )
