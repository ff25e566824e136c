"""What changed on the host: engines that restart, models and versions that are swapped, drivers, neighbours that start.

Half of all incidents begin with a change. Each is noted when it is seen, and told with the findings that began soon after.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.explain import HOST, Related
from aie_agent.analysis.findings import View
from aie_telemetry.api import Finding
from aie_telemetry.durations import in_words

BEFORE_S: Final = 900.0
"""A change so long before a finding is told with it."""

SETTLED_S: Final = 30.0
"""For so long after the first view engines are still being discovered: one that appears then was there before."""

_AFTER_S: Final = 5.0  # what is seen once a second may be seen just after what it caused
_MOST: Final = 200
_TOLD: Final = 5
_INFO: Final = "aie_engine_info"
_LABELS: Final = ("model", "version", "revision", "dtype", "device", "kind")


class Change(NamedTuple):
    """Something changed, at about this time; `subject` is an engine, a GPU or the host."""

    time_s: float
    subject: str
    text: str


class Changes:
    """Compares each view with the one before."""

    def __init__(self) -> None:
        self._noted: deque[Change] = deque(maxlen=_MOST)
        self._engines: dict[str, frozenset[int]] = {}
        self._info: dict[str, Mapping[str, str]] = {}
        self._drivers: dict[str, str] = {}
        self._strangers: dict[str, frozenset[int]] = {}
        self._begun_s: float | None = None

    def observe(self, view: View, now_s: float) -> None:
        """Notes what is other than at the last call; at the first there is nothing to compare with, and until `SETTLED_S` after
        it an engine that appears is none that was started."""
        begun_s = now_s if self._begun_s is None else self._begun_s
        found = [
            *self._of_processes(view, is_settled=now_s - begun_s >= SETTLED_S),
            *self._of_info(view, now_s),
            *self._of_gpus(view),
        ]
        if self._begun_s is not None:
            self._noted.extend(Change(now_s, subject, text) for subject, text in found)
        self._begun_s = begun_s

    def before(self, finding: Finding, related: Related) -> tuple[str, ...]:
        """What changed before a finding began, the latest first: sentences."""
        begin_s, end_s = finding.since_s - BEFORE_S, finding.since_s + _AFTER_S
        told = [
            change
            for change in reversed(self._noted)
            if begin_s <= change.time_s <= end_s and (change.subject == HOST or related(change.subject, finding.subject))
        ]
        return tuple(f"{_ago(finding.since_s - change.time_s)}: {change.text}" for change in told[:_TOLD])

    def dump(self) -> Sequence[Sequence[float | str]]:
        """For the state on disk."""
        return [list(change) for change in self._noted]

    def restore(self, rows: Sequence[Sequence[float | str]]) -> None:
        """Raises ValueError for what `dump` never gave."""
        try:
            self._noted.extend(Change(float(time_s), str(subject), str(text)) for time_s, subject, text in rows)
        except TypeError as error:
            raise ValueError(f"not a list of changes: {error}") from error

    def _of_processes(self, view: View, *, is_settled: bool) -> Iterable[tuple[str, str]]:
        for engine in view.engines:
            now = frozenset(each.tgid for each in view.processes(engine))
            before = self._engines.get(engine)
            if now:
                self._engines[engine] = now
                if before is None:
                    if is_settled:
                        yield engine, f"engine {engine} appeared"
                elif before.isdisjoint(now):
                    yield engine, f"engine {engine} was restarted (process {min(before)} before, {min(now)} now)"

    def _of_info(self, view: View, now_s: float) -> Iterable[tuple[str, str]]:
        for engine in view.engines:
            series = [each for each in view.store.scalars(_INFO, engine=engine) if each.valid_until_s >= now_s]
            if not series:
                continue
            now = {name: value for name, value in series[0].tags if name in _LABELS}
            before = self._info.get(engine, now)
            self._info[engine] = now
            for name in _LABELS:
                if before.get(name) != now.get(name):
                    yield (
                        engine,
                        f"{name} of engine {engine} changed from {before.get(name) or 'none'} to {now.get(name) or 'none'}",
                    )

    def _of_gpus(self, view: View) -> Iterable[tuple[str, str]]:
        for gpu in view.gpus():
            subject = f"gpu{gpu.index}"
            strangers = frozenset(each.tgid for each in gpu.processes if each.engine is None)
            names = {each.tgid: each.command for each in gpu.processes}
            for tgid in sorted(strangers - self._strangers.get(subject, strangers)):
                yield subject, f"another process began to use GPU {gpu.index}: {names[tgid]} ({tgid})"
            self._strangers[subject] = strangers
        for subject, driver in view.drivers().items():
            before = self._drivers.get(subject, driver)
            self._drivers[subject] = driver
            if before != driver:
                yield HOST, f"{subject} changed from {before} to {driver}"


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "at the same time"
    return f"{in_words(seconds)} before"
