"""From what was seen while a fault lasted to a row of the table. Pure: times are arguments."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec

from aie_telemetry.api import Finding, Severity
from tests.faultlab.host_load import Load

TOP_RIGHT_SHARE: Final = 0.95
FAST_MEDIAN_S: Final = 10.0

ENGINE: Final = "engine"
"""The subject of what concerns the lab's engine, whose name is another one in each run."""
HOST: Final = "host"

BUSY_CPUS: Final = 0.3
"""From so many CPUs on that others take, a small host has none to spare."""
STOLEN_SHARE: Final = 0.04
"""From this share of the CPUs' time on it is true that the hypervisor gives them to others. The agent tells of a tenth, and goes on
until it is half of that; its seconds are not the lab's."""

SILENT: Final = "the agent does not answer"

Key = tuple[str, str]
"""Cause and subject."""

STARVED: Final[Key] = ("cpu_starved", ENGINE)
STEAL: Final[Key] = ("cpu_steal", HOST)
AMBIENT: Final = frozenset({STARVED, STEAL})
"""What others on the host are for, whatever the lab does."""


class Look(NamedTuple):
    """The findings at one moment, in seconds after the fault began, in the agent's order: the worst first; and what others took of
    the host's CPUs lately."""

    after_s: float
    findings: Sequence[Finding]
    load: Load = Load()


class Answer(msgspec.Struct, frozen=True):
    """What a fault must be called to be named: its cause, whom it is said of (a GPU is `gpu0`, as in the labels of metrics), and
    how bad it is. `says` is a regular expression that its summary or a sentence of its evidence has, for what else sends people to
    the right place (which process, whose memory) and has numbers in it that nobody knows before; "": nothing is asked. `never` is
    one that none of them has: what would send them to a wrong place."""

    cause: str
    subject: str = ENGINE
    severity: Severity = "warning"
    says: str = ""
    never: str = ""

    @property
    def key(self) -> Key:
        """Who is named, and what for."""
        return self.cause, self.subject

    def amiss(self, finding: Finding) -> tuple[str, ...]:
        """What of a finding is wrong, in words; nothing where it names the fault."""
        told = (finding.summary, *(each.text for each in finding.evidence))
        unlike = [
            f"{what}: {is_so}, not {should}"
            for what, is_so, should in (
                ("cause", finding.cause, self.cause),
                ("subject", finding.subject, self.subject),
                ("severity", finding.severity, self.severity),
            )
            if is_so != should
        ]
        unsaid = [f"it does not say /{self.says}/"] if not any(re.search(self.says, text) for text in told) else []
        untrue = [match[0] for text in told if self.never and (match := re.search(self.never, text))]
        return (*unlike, *unsaid, *(f"it says: {text}" for text in untrue))


class Expected(NamedTuple):
    """What the fault's row says: the answer that names it (None: nothing may be found), the causes that may stand beside it, said
    of the same subject, or of the host; and those that may be suspected of our engine, as information, and must be taken back by
    the end."""

    answer: Answer | None
    beside: Sequence[str] = ()
    suspected: Sequence[str] = ()

    def names(self, finding: Finding) -> bool:
        """Whether a finding is right in all that is judged of it."""
        return self.answer is not None and not self.answer.amiss(finding)

    def is_about(self, finding: Finding) -> bool:
        """Whether it is the answer's cause of the answer's subject, be it told right or not."""
        return self.answer is not None and _key(finding) == self.answer.key

    def allows(self, finding: Finding) -> bool:
        """Whether it is true as well, and may stand beside the answer."""
        return self.answer is not None and finding.cause in self.beside and finding.subject in (self.answer.subject, HOST)

    def may_suspect(self, finding: Finding) -> bool:
        """Whether it may be said for a while."""
        return finding.cause in self.suspected and finding.subject == ENGINE and finding.severity == "info"


class Said(msgspec.Struct, frozen=True):
    """What the agent said of somebody, without the words."""

    cause: str
    subject: str
    severity: Severity

    def __str__(self) -> str:
        of = "" if self.subject == ENGINE else f"{self.subject}, "
        return f"{self.cause} ({of}{self.severity})"


class Verdict(msgspec.Struct, frozen=True):
    """What the agent made of a fault. `named_as` is the first of the findings at the end, None for none; `top_right` whether that
    is the answer, and `amiss` what is wrong where it is not; `seconds` until the answer stood among the findings, unexplained.
    `others` are false alarms: what is neither the answer's cause of its subject nor may stand beside it, nor may be suspected and
    was taken back; `beside` is what may and did."""

    named_as: Said | None
    named: bool
    top_right: bool
    seconds: float | None = None
    others: tuple[Said, ...] = ()
    beside: tuple[Said, ...] = ()
    amiss: tuple[str, ...] = ()


class Result(msgspec.Struct, frozen=True):
    """One fault. `false_alarms` were found while nothing was wrong, before it; `skipped` says why it was not run. `others_cpus` is
    the most that everything that is not the lab's took of the host for five seconds, `ambient` what was found of that: it is true.
    `sentences` are what the agent said."""

    fault: str
    what: str
    expected: Answer | None
    fast: bool
    verdict: Verdict | None = None
    healthy_s: float = 0.0
    false_alarms: tuple[Said, ...] = ()
    skipped: str = ""
    others_cpus: float = 0.0
    ambient: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


class Totals(NamedTuple):
    """All results together; `ran` leaves out those that were `skipped`, and `median_s` is of the fast faults that were named.
    `false_alarms` came while nothing was wrong, `others` beside a fault."""

    ran: int
    named: int
    top_right: int
    median_s: float | None
    false_alarms: int
    healthy_s: float
    skipped: int = 0
    others: int = 0

    @property
    def reached(self) -> bool:
        """Whether the targets are: every fault was run and named, nearly every top cause right, the fast ones fast, no false alarm,
        neither before a fault nor beside it."""
        all_named = 0 < self.ran == self.named and not self.skipped
        in_time = self.median_s is None or self.median_s < FAST_MEDIAN_S
        is_quiet = not self.false_alarms and not self.others
        return all_named and self.top_right >= TOP_RIGHT_SHARE * self.ran and in_time and is_quiet


def _key(finding: Finding) -> Key:
    return finding.cause, finding.subject


def keys(findings: Iterable[Finding]) -> frozenset[Key]:
    """Who is named, and what for."""
    return frozenset(map(_key, findings))


def new(look: Look, before: frozenset[Key], answer: Answer | None = None) -> list[Finding]:
    """What is said that was not said before, that nothing else explains, and that others on the host are not for. The answer is
    news for all that: also where what they are for explains it, since the agent cannot tell which of two that are true it was."""
    true = ambient(look.load)

    def stands(finding: Finding) -> bool:
        by = _explainer(finding)
        if answer is not None and _key(finding) == answer.key:
            return by is None or by in true
        return by is None and _key(finding) not in true

    return [each for each in look.findings if _key(each) not in before and stands(each)]


def _explainer(finding: Finding) -> Key | None:
    return (finding.explained_by, finding.explained_by_subject) if finding.explained_by else None


def ambient(load: Load) -> frozenset[Key]:
    """What is true while others take so much, and is therefore neither a false alarm nor an answer."""
    is_so = {STARVED: load.others_cpus >= BUSY_CPUS, STEAL: load.stolen_share >= STOLEN_SHARE}
    return frozenset(key for key in AMBIENT if is_so[key])


def excused(looks: Iterable[Look], before: frozenset[Key] = frozenset()) -> frozenset[Key]:
    """What was found, not before, that others on the host were for."""
    found = [(each, ambient(look.load)) for look in looks for each in look.findings if _key(each) in AMBIENT - before]
    return frozenset(_key(each) for each, true in found if {_key(each), _explainer(each)} & true)


class Healthy(NamedTuple):
    """What was found while the lab had broken nothing: false alarms, and causes that others on the host are for."""

    false_alarms: tuple[Said, ...]
    ambient: frozenset[Key]


def healthy(looks: Sequence[Look], before: frozenset[Key]) -> Healthy:
    """`before` is left of the fault before."""
    return Healthy(_said(each for look in looks for each in new(look, before)), excused(looks))


def _said(findings: Iterable[Finding]) -> tuple[Said, ...]:
    """Each cause of each subject once, as bad as it was said to be last."""
    last = {_key(each): Said(each.cause, each.subject, each.severity) for each in findings}
    return tuple(last[key] for key in sorted(last))


def sentences(looks: Sequence[Look], before: frozenset[Key]) -> tuple[str, ...]:
    """What was said of each cause when it was last seen: its summary and its evidence."""
    last = {_key(each): each for look in looks for each in look.findings if _key(each) not in before}
    return tuple(_sentence(each) for each in last.values())


def _sentence(finding: Finding) -> str:
    by = f" (explained by {finding.explained_by})" if finding.explained_by else ""
    return f"{finding.cause}{by}: {finding.summary}: {'; '.join(each.text for each in finding.evidence)}"


def is_named(look: Look, expected: Expected, before: frozenset[Key]) -> bool:
    """Whether the answer is among the findings."""
    return any(expected.names(each) for each in new(look, before, expected.answer))


def judge(looks: Sequence[Look], expected: Expected, before: frozenset[Key]) -> Verdict:
    """What the agent made of a fault, of which it was asked at these moments. `before` was found before it."""
    answer = expected.answer
    last = new(looks[-1], before, answer) if looks else []
    at = next((look.after_s for look in looks if is_named(look, expected, before)), None)
    seen = [each for look in looks for each in new(look, before, answer) if not expected.is_about(each)]
    true = [each for each in seen if expected.allows(each) or (expected.may_suspect(each) and _key(each) not in keys(last))]
    others = _said(each for each in seen if each not in true)
    is_right = not others if answer is None else bool(last) and expected.names(last[0])
    return Verdict(
        named_as=Said(last[0].cause, last[0].subject, last[0].severity) if last else None,
        named=not others if answer is None else at is not None,
        top_right=is_right,
        seconds=at,
        others=others,
        beside=_said(true),
        amiss=answer.amiss(last[0]) if answer is not None and last else (),
    )


def unanswered(verdict: Verdict) -> Verdict:
    """Of a fault under which the agent fell silent: whatever it said before, it names nothing."""
    return msgspec.structs.replace(verdict, named_as=None, named=False, top_right=False, seconds=None, amiss=(SILENT,))


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
        others=sum(len(verdict.others) for _, verdict in verdicts),
    )
