"""What changed on the host: engines that restart, with which arguments; models, versions and settings that are swapped; drivers;
the agent's own configuration; neighbours that start, on a GPU or on the CPUs.

Half of all incidents begin with a change. Each is noted when it is seen, and told with the findings that began soon after. What was
last seen survives a restart of the agent: so what changed meanwhile is noted when it is back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aie_agent.analysis.arguments import different, nearest, new_salt, program, without_secrets
from aie_agent.analysis.explain import HOST, Related
from aie_agent.analysis.findings import View
from aie_agent.neighbour import called, program_name
from aie_telemetry.api import Finding
from aie_telemetry.durations import in_words

BEFORE_S: Final = 900.0
"""A change so long before a finding is told with it."""

SETTLED_S: Final = 30.0
"""For so long after the first view engines are still being discovered: one that appears then was there before."""

_AFTER_S: Final = 5.0  # what is seen once a second may be seen just after what it caused
_MOST: Final = 200
_TOLD: Final = 5
_TOLD_NEIGHBOURS: Final = 2
_MOST_STARTS: Final = 16
"""Of one engine, kept: a program may run many times with other arguments, as workers by their rank."""
_INFO: Final = "aie_engine_info"
_LABELS: Final = ("model", "version", "revision", "dtype", "device", "kind")


class _Setting(NamedTuple):
    """A number that somebody sets: of which metric, what it is called, and in what unit people say it."""

    metric: str
    words: str
    unit: str
    per_unit: float = 1.0


_SETTINGS: Final = (
    _Setting("aie_engine_kv_capacity_tokens", "the KV cache", "tokens"),
    _Setting("aie_process_cgroup_memory_limit_bytes", "the memory limit of the control group", "MiB", float(1 << 20)),
)
_POWER_LIMIT: Final = _Setting("aie_gpu_power_limit_watts", "the power limit", "W")
_NEAR: Final = 0.01
"""Of a setting: what is closer was not set anew."""


class Change(NamedTuple):
    """Something changed, at about this time; `subject` is an engine, a GPU or the host. A neighbour is a busy process of no
    engine."""

    time_s: float
    subject: str
    text: str
    is_neighbour: bool = False


class _Kept(msgspec.Struct, forbid_unknown_fields=True):
    """What `dump` gives."""

    noted: list[list[float | str | bool]] = []
    info: dict[str, dict[str, str]] = {}
    levels: dict[str, float] = {}
    versions: dict[str, str] = {}
    arguments: dict[str, tuple[str, ...]] = {}
    starts: dict[str, list[tuple[str, ...]]] = {}
    salt: str = ""


class Changes:
    """Compares each view with the one before."""

    def __init__(self) -> None:
        self._noted: deque[Change] = deque(maxlen=_MOST)
        self._engines: dict[str, frozenset[int]] = {}
        self._starts: dict[str, list[tuple[str, ...]]] = {}  # without secrets, the newest last
        self._salt = new_salt()
        self._info: dict[str, Mapping[str, str]] = {}
        self._levels: dict[str, float] = {}
        self._cpus: dict[str, int] = {}
        self._busy_s: dict[tuple[int, str], float] = {}
        self._drivers: dict[str, str] = {}
        self._strangers: dict[str, frozenset[int]] = {}
        self._begun_s: float | None = None

    def observe(self, view: View, now_s: float) -> None:
        """Notes what is other than at the last call. Of what was never seen before nothing is noted, and until `SETTLED_S` after
        the first call an engine that appears is none that was started."""
        begun_s = now_s if self._begun_s is None else self._begun_s
        found = [
            *self._of_processes(view, is_settled=now_s - begun_s >= SETTLED_S),
            *self._of_info(view, now_s),
            *self._of_settings(view, now_s),
            *self._of_gpus(view),
            *self._of_versions(view),
        ]
        self._noted.extend(Change(now_s, subject, text) for subject, text in found)
        self._noted.extend(self._of_neighbours(view, now_s, is_first=self._begun_s is None))
        self._begun_s = begun_s

    def before(self, finding: Finding, related: Related) -> tuple[str, ...]:
        """What changed before a finding began: sentences, those of its own subject first, of each kind the latest first, and few of
        neighbours."""
        begin_s, end_s = finding.since_s - BEFORE_S, finding.since_s + _AFTER_S
        latest_first = sorted(enumerate(self._noted), key=lambda noted: (noted[1].time_s, noted[0]), reverse=True)
        told = [
            change
            for _, change in latest_first
            if begin_s <= change.time_s <= end_s and (change.subject == HOST or related(change.subject, finding.subject))
        ]
        neighbours = [change for change in told if change.is_neighbour][:_TOLD_NEIGHBOURS]
        kept = sorted((each for each in told if not each.is_neighbour or each in neighbours), key=_rank)
        return tuple(f"{_ago(finding.since_s - change.time_s)}: {change.text}" for change in kept[:_TOLD])

    def dump(self) -> Mapping[str, Any]:
        """For the state on disk: what was noted, and what was last seen of what can change while the agent is away."""
        return {
            "noted": [list(change) for change in self._noted],
            "info": self._info,
            "levels": self._levels,
            "versions": self._drivers,
            "starts": self._starts,
            "salt": self._salt,
        }

    def restore(self, state: Any) -> None:
        """Raises ValueError for what `dump` never gave. A list is what the oldest versions kept: only what was noted. Sentences of
        versions without a salt may hold what somebody's program was started with, secrets too: they are dropped."""
        parts = {"noted": state} if isinstance(state, list) else state
        try:
            kept = msgspec.convert(parts, _Kept)
        except msgspec.ValidationError as error:
            raise ValueError(f"not a list of changes: {error}") from error
        noted = [_change(row) for row in kept.noted]  # all of them, or none
        self._noted.extend(noted if kept.salt else ())
        self._info, self._levels, self._drivers = dict(kept.info), dict(kept.levels), dict(kept.versions)
        self._salt = kept.salt or self._salt
        starts = {**{engine: [each] for engine, each in kept.arguments.items()}, **kept.starts}
        self._starts = {engine: [without_secrets(each, self._salt) for each in rows] for engine, rows in starts.items()}

    def _of_processes(self, view: View, *, is_settled: bool) -> Iterable[tuple[str, str]]:
        for engine in view.engines:
            processes = view.processes(engine)
            now = frozenset(each.tgid for each in processes)
            before = self._engines.get(engine)
            if now:
                self._engines[engine] = now
                if before is None and is_settled:
                    yield engine, f"engine {engine} appeared"
                elif before is not None and before.isdisjoint(now):
                    yield engine, f"engine {engine} was restarted (process {min(before)} before, {min(now)} now)"
                yield from self._of_arguments(engine, [each.arguments for each in processes])

    def _of_arguments(self, engine: str, processes: Sequence[tuple[str, ...]]) -> Iterable[tuple[str, str]]:
        """Whether of a program that runs none was started as one was before. One of several that ends is no change, and neither is
        one more. Programs are told apart: of each the last starts are kept, whatever runs meanwhile."""
        known = self._starts.get(engine, [])
        now = [without_secrets(each, self._salt) for each in processes if program(each)]
        for name in dict.fromkeys(program(each) for each in now):
            before = [each for each in known if program(each) == name]
            alike = [each for each in now if program(each) == name]
            if before and not set(before) & set(alike):
                known = [each for each in known if each not in before]
                if text := different(nearest(before, alike[0]), alike[0], self._salt):
                    yield engine, f"engine {engine} was started with other arguments: {text}"
            known = [*known, *(each for each in dict.fromkeys(alike) if each not in known)]
        self._starts[engine] = known[-_MOST_STARTS:]

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

    def _of_settings(self, view: View, now_s: float) -> Iterable[tuple[str, str]]:
        for engine in view.engines:
            for setting in _SETTINGS:
                now = view.store.current(setting.metric, now_s, engine=engine)
                if now is not None and (text := self._set_anew(f"{setting.metric} {engine}", now, setting)):
                    yield engine, f"{setting.words} of engine {engine} changed from {text}"
            allowed = frozenset().union(*(each.cpus_allowed or () for each in view.processes(engine)))
            before = self._cpus.get(engine, len(allowed))
            if allowed:
                self._cpus[engine] = len(allowed)
                if before != len(allowed):
                    yield engine, f"engine {engine} may run on {len(allowed)} CPUs, {before} before"

    def _of_gpus(self, view: View) -> Iterable[tuple[str, str]]:
        for gpu in view.gpus():
            subject = f"gpu{gpu.index}"
            strangers = frozenset(each.tgid for each in gpu.processes if each.engine is None)
            names = {each.tgid: each.command for each in gpu.processes}
            for tgid in sorted(strangers - self._strangers.get(subject, strangers)):
                yield subject, f"another process began to use GPU {gpu.index}: {program_name(names[tgid])} ({tgid})"
            self._strangers[subject] = strangers
            watts = gpu.power_limit_watts
            if watts is not None and (text := self._set_anew(f"power limit {subject}", watts, _POWER_LIMIT)):
                yield subject, f"{_POWER_LIMIT.words} of GPU {gpu.index} changed from {text}"

    def _set_anew(self, key: str, now: float, setting: _Setting) -> str:
        """From what to what a number was set since it was last seen; nothing where it was not."""
        before = self._levels.get(key, now)
        if key not in self._levels or abs(now - before) > _NEAR * max(abs(before), abs(now)):
            self._levels[key] = now
        if self._levels[key] == before:
            return ""
        return f"{before / setting.per_unit:.0f} to {now / setting.per_unit:.0f} {setting.unit}"

    def _of_versions(self, view: View) -> Iterable[tuple[str, str]]:
        for subject, version in view.drivers().items():
            before = self._drivers.get(subject, version)
            self._drivers[subject] = version
            if before != version:
                yield HOST, f"{subject} changed from {before} to {version}"

    def _of_neighbours(self, view: View, now_s: float, *, is_first: bool) -> Iterable[Change]:
        """Those that began to be busy, each at the time at which it did: a look at them comes only every few seconds. One that is
        now more, now less busy began once."""
        self._busy_s = {key: busy_s for key, busy_s in self._busy_s.items() if now_s - busy_s <= BEFORE_S}
        for each in view.neighbours():
            if (each.tgid, each.command) not in self._busy_s and not is_first:
                yield Change(each.since_s, HOST, f"{called(each)} began to use {each.cpu_cores:.1f} CPUs", True)
            self._busy_s[each.tgid, each.command] = now_s


def _rank(change: Change) -> int:
    """What belongs to a finding's subject before what happened on the host, and neighbours last."""
    return 2 if change.is_neighbour else int(change.subject == HOST)


def _change(row: Sequence[float | str | bool]) -> Change:
    """Raises ValueError for a row that is none."""
    if len(row) not in (3, 4) or isinstance(row[0], str) or not (isinstance(row[1], str) and isinstance(row[2], str)):
        raise ValueError("not a list of changes: a row is none")
    return Change(float(row[0]), row[1], row[2], len(row) == 4 and row[3] is True)


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "at the same time"
    return f"{in_words(seconds)} before"
