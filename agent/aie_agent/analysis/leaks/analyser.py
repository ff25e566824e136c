"""The leak analysis as an analyser: it takes a sample of every engine and device now and then, and remembers for days.

A suspicion is settled by asking the engine to give back what it only retains, where both owners allow that: `ProbeRequests` of
the outputs asks, by what is found here, and the answer comes as an event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import engines_on
from aie_agent.analysis.gpu_causes.naming import subject as gpu_subject
from aie_agent.analysis.leaks import accounting, told
from aie_agent.analysis.leaks.accounting import Account
from aie_agent.analysis.leaks.lines import LINES, LineSpec, Sample
from aie_agent.analysis.leaks.past_lives import PastLives, restored_lives
from aie_agent.analysis.leaks.probes import Answer, answers
from aie_agent.analysis.leaks.reading import (
    CLASSES,
    MODULES,
    Identity,
    devices,
    free_bytes,
    held_by,
    identity,
    inside,
    requests,
    sample,
)
from aie_agent.analysis.leaks.sentences import size
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import RANK
from aie_agent.analysis.leaks.told import Retained, Rising
from aie_agent.analysis.leaks.watch import Found, Watch
from aie_agent.analysis.leaks.within import Inside, told_by
from aie_agent.samples import Point
from aie_telemetry.api import Evidence, Finding, Gpu
from aie_telemetry.catalogue import Kind

_VERSION: Final = 1
_FORGET_S: Final = 7 * 86_400.0
_MOST_ENGINES: Final = 64

_OTHERS: Final = LineSpec(
    "others", "another_process", lambda each: each.physical_bytes, "memory of processes of no engine", "aie_gpu_memory_used_bytes"
)


@dataclass(slots=True)
class _Engine:
    """What is remembered of one engine. `held` is what probes see it hold, by module and by size; `held_before` that of when
    nothing was wrong. `answer` is what it said last when it was asked to give back what it retains, `taken` which answers of those
    that the view still shows were taken; `retained` is what that settled."""

    account: Account
    identity: Identity = field(default_factory=Identity)
    watches: dict[str, Watch] = field(default_factory=dict)
    lives: dict[str, PastLives] = field(default_factory=dict)
    free: dict[str, float | None] = field(default_factory=dict)
    requests_per_s: float | None = None
    requests: tuple[float, float] | None = None
    held_before: dict[str, dict[str, float]] = field(default_factory=dict)
    held: dict[str, dict[str, float]] = field(default_factory=dict)
    answer: Answer | None = None
    taken: frozenset[tuple[str, str]] = frozenset()
    retained: Retained | None = None
    inside: Inside = field(default_factory=Inside)
    seen_s: float = 0.0
    is_down: bool = False

    def restart(self, now_s: float) -> None:
        """It is another engine of the same name."""
        self.account.restart()
        for device, watch in self.watches.items():
            self.lives[device].ended(watch, now_s)
            watch.restart()
        self.requests = self.requests_per_s = self.answer = self.retained = None
        self.held_before = {}
        self.inside = Inside()

    def take(self, answer: Answer) -> None:
        """What one of its processes answered. Of several that answer one request it counts what all gave back."""
        known = self.answer
        answer = answer if known is None or known.id != answer.id else known.joined(answer)
        self.answer = answer
        for device, watch in self.watches.items():
            ended = watch.probed(answer.time_s, lambda line, device=device: answer.given(line, device))  # type: ignore[misc]
            self.settle(ended, device)

    def settle(self, ended: Sequence[Found], device: str) -> None:
        """What an answer has settled, and floors have confirmed."""
        if ended and self.answer is not None:
            self.retained = told.retained(ended[0], self.answer, device)


class LeakAnalyser:
    """Follows the memory of engines, and of processes of no engine beside them on GPUs. `settings` are scaled already."""

    name: Final = "leaks"

    def __init__(self, settings: LeakSettings) -> None:
        self._settings = settings
        self._engines: dict[str, _Engine] = {}
        self._gpus: dict[str, Watch] = {}
        self._gpu_free: dict[str, float | None] = {}
        self._next_s = 0.0

    def observe(self, view: View, now_s: float) -> None:
        """Takes a sample of each engine and device, every `sample_s`."""
        if now_s < self._next_s:  # as `Watch.add` has it, but nothing is read in vain
            return
        self._next_s = now_s + self._settings.sample_s
        for engine in view.engines:
            if engine in self._engines or len(self._engines) < _MOST_ENGINES:
                self._look(view, engine, now_s)
        for gpu in view.gpus():
            self._look_at_others(gpu, now_s)
        self._engines = {name: each for name, each in self._engines.items() if now_s - each.seen_s < _FORGET_S}

    def _look(self, view: View, engine: str, now_s: float) -> None:
        known = self._engines.setdefault(engine, _Engine(Account(self._settings)))
        known.is_down = view.state(engine) == "down"
        if known.is_down:
            known.seen_s = known.seen_s or now_s
            return
        known.seen_s = now_s
        now = identity(view, engine, now_s)
        if known.identity.became(now):
            known.restart(now_s)
        known.identity = known.identity.joined(now)
        known.account.add(now_s, accounting.read(view.store, engine, now_s))
        found = {(each.id, each.processes[0]): each for each in answers(view.events, engine)}
        for key, each in found.items():
            if key not in known.taken and _was_asked_for(view, engine, each):
                known.take(each)
        known.taken = frozenset(found)
        names = devices(view.store, engine, now_s)
        gpus = [name for name in names if name != "cpu"]
        for device in names:
            watch = known.watches.setdefault(device, Watch(self._settings, LINES))
            lives = known.lives.setdefault(device, PastLives(self._settings))
            watch.restarts_told = known.identity.tells_restarts
            watch.add(sample(view.store, engine, device, now_s, only_gpu=gpus == [device]))
            known.settle(watch.confirmed(), device)
            lives.pass_by(watch, now_s)
            known.free[device] = free_bytes(view, engine, device, now_s)
        self._count_requests(known, requests(view.store, engine, now_s), now_s)
        known.held = {metric: held_by(view.store, metric, label, engine, now_s) for metric, label in _GROWTH}
        is_suspect = any(watch.found() for watch in known.watches.values())
        known.inside = inside(view.store, engine, now_s, known.inside if is_suspect else Inside())
        if not known.held_before or not is_suspect:
            known.held_before = known.held

    def _count_requests(self, known: _Engine, count: float | None, now_s: float) -> None:
        """Requests a second since it began, or since its counter did."""
        if count is None:
            return
        if known.requests is None or count < known.requests[1]:
            known.requests = (now_s, count)
        elif now_s > known.requests[0]:
            known.requests_per_s = (count - known.requests[1]) / (now_s - known.requests[0])

    def _look_at_others(self, gpu: Gpu, now_s: float) -> None:
        """Memory of processes of no engine, on GPUs that engines use; not where the driver does not tell it by process."""
        others = [each.memory_bytes for each in gpu.processes if each.engine is None]
        if not gpu.up or not engines_on(gpu) or any(each is None for each in others):
            return
        watch = self._gpus.setdefault(gpu_subject(gpu), Watch(self._settings, (_OTHERS,)))
        watch.add(Sample(now_s, float(sum(each for each in others if each is not None))))
        self._gpu_free[gpu_subject(gpu)] = gpu.memory_free_bytes

    def findings(self, now_s: float) -> Sequence[Finding]:
        """One finding for each engine and cause; and for each GPU on which others' memory grows."""
        found = []
        for engine, known in self._alive():
            of_memory = self._of_memory(engine, known)
            found += of_memory or self._of_lives(engine, known) or self._of_retained(engine, known, now_s)
            found += self._of_account(engine, known)
        for gpu, watch in self._gpus.items():
            rising = [Rising(gpu, each, self._gpu_free.get(gpu)) for each in watch.found()]
            found += [told.finding(gpu, [each], None, self._settings) for each in rising]
        return found

    def _alive(self) -> Iterator[tuple[str, _Engine]]:
        """Memory of an engine without a process is not held any more."""
        return ((name, known) for name, known in self._engines.items() if not known.is_down)

    def _of_memory(self, engine: str, known: _Engine) -> list[Finding]:
        rising = [self._rising(known, device, watch, each) for device, watch in known.watches.items() for each in watch.found()]
        return [told.finding(engine, each, known.requests_per_s, self._settings) for each in _by_cause(rising)]

    def _rising(self, known: _Engine, device: str, watch: Watch, found: Found) -> Rising:
        if device == "cpu":
            found, grew = told_by(found, watch, known.inside, self._settings)
        else:
            grew = _grew(known)
        return Rising(device, found, known.free.get(device), (*grew, *_lived(known, device)), known.answer)

    def _of_lives(self, engine: str, known: _Engine) -> list[Finding]:
        """What rose in each of its last lives, until this one tells by itself."""
        told_of = [(device, lives.alike[-1].found) for device, lives in known.lives.items() if lives.alike]
        rising = [Rising(device, each, known.free.get(device), _lived(known, device)) for device, each in told_of]
        return [told.over_lives(engine, each, self._settings) for each in _by_cause(rising)]

    def _of_retained(self, engine: str, known: _Engine, now_s: float) -> list[Finding]:
        """For a day after an answer has settled it."""
        retained = known.retained
        if retained is None or now_s - retained.at_s > self._settings.day_s:
            return []
        return [told.retention(engine, retained)]

    def _of_account(self, engine: str, known: _Engine) -> list[Finding]:
        account = known.account
        if account.is_short and account.short_since_s is not None:
            return [told.kv_short(engine, account.kv, account.short_since_s)]
        idle = account.idle
        return [] if idle is None else [told.kv_idle(engine, account.kv, idle, self._settings)]

    def points(self, now_s: float) -> Sequence[Point]:
        """`aie_leak_*` of every line that was seen for long enough."""
        points = []
        for engine, known in self._alive():
            for device, watch in known.watches.items():
                points += _points(engine, device, watch, known.free.get(device))
        return points

    def dump(self) -> Mapping[str, Any]:
        """Its state as plain values: some 3 KB a line and day."""
        return {
            "version": _VERSION,
            "time_scale": self._settings.time_scale,
            "engines": {name: _dump(each) for name, each in self._engines.items()},
            "gpus": {name: each.dump() for name, each in self._gpus.items()},
        }

    def restore(self, state: Mapping[str, Any], now_s: float) -> None:
        """Goes on from a state that `dump` gave before a restart of the agent; what lies between is a gap. Raises ValueError when
        it is none, or of another time scale: it then begins anew."""
        try:
            if state["version"] != _VERSION or state["time_scale"] != self._settings.time_scale:
                raise ValueError("state of another version or time scale")
            engines = {str(name): self._restored(each, now_s) for name, each in state["engines"].items()}
            gpus = {str(name): Watch.restored(each, self._settings, (_OTHERS,)) for name, each in state["gpus"].items()}
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"no state of the leak analysis: {error!r}") from error
        self._engines, self._gpus = engines, gpus

    def _restored(self, state: Mapping[str, Any], now_s: float) -> _Engine:
        known = _Engine(Account.restored(state["account"], self._settings))
        tgids, start_s, model = state["identity"]
        known.identity = Identity(
            frozenset(int(each) for each in tgids),
            None if start_s is None else float(start_s),
            None if model is None else str(model),
        )
        known.watches = {str(device): Watch.restored(each, self._settings) for device, each in state["watches"].items()}
        known.lives = {device: PastLives(self._settings) for device in known.watches}
        known.lives |= restored_lives(state.get("lives", {}), self._settings)
        answer, retained = state.get("answer"), state.get("retained")
        known.answer = None if answer is None else Answer.restored(answer)
        known.retained = None if retained is None else Retained.restored(retained)
        known.seen_s = now_s
        return known


_GROWTH: Final = ((MODULES, "module"), (CLASSES, "size_class"))
_GROWTH_WORDS: Final = {MODULES: "asked for by {}", CLASSES: "in allocations of up to {} bytes"}


def _was_asked_for(view: View, engine: str, answer: Answer) -> bool:
    """Whether an answer is to the request that was made, and comes from a process of this engine, as far as those are known:
    anybody who may send to the agent can write one."""
    pids = view.pids(engine)
    return answer.id == view.asked(engine) and (not pids or all(pid in pids for pid in answer.pids))


def _lived(known: _Engine, device: str) -> tuple[Evidence, ...]:
    alike = known.lives[device].alike
    return (told.lived(alike, device),) if alike else ()


def _grew(known: _Engine) -> tuple[Evidence, ...]:
    """Of memory that was asked of CUDA's driver: the module and the size of allocations that grew most since nothing was wrong."""
    found = []
    for metric, _ in _GROWTH:
        before, now = known.held_before.get(metric, {}), known.held.get(metric, {})
        gains = {name: value - before.get(name, 0.0) for name, value in now.items()}
        most = max(gains, key=lambda name: gains[name], default="")
        if most and gains[most] > 0:
            text = f"of it {size(gains[most])} were {_GROWTH_WORDS[metric].format(most)}, by what probes see"
            found.append(Evidence(text=text, metric=metric))
    return tuple(found)


_COMPARED: Final = frozenset(spec.name for spec in LINES if not spec.tells)


def _by_cause(rising: Sequence[Rising]) -> list[list[Rising]]:
    """What makes one finding each, of all devices: the worst first."""
    ordered = sorted(
        rising, key=lambda each: (_is_fragmented(each), -RANK[each.found.standing.level], -each.found.standing.slope.value)
    )
    return [list(group) for _, group in groupby(ordered, key=_is_fragmented)]


def _is_fragmented(rising: Rising) -> bool:
    return rising.found.leak_class == "fragmentation"


def _points(engine: str, device: str, watch: Watch, free: float | None) -> list[Point]:
    tags = (("device", device), ("engine", engine))
    points, slopes = [], []
    for name, line in watch.lines.items():
        if not line.judged or name in _COMPARED:
            continue
        of_line = (*tags, ("line", name))
        points.append(Point("aie_leak_state", Kind.GAUGE, of_line, float(RANK[line.level])))
        if line.level != "none":
            slopes.append(line.standing.slope.value)
            points.append(Point("aie_leak_rate_bytes_per_second", Kind.GAUGE, of_line, line.standing.slope.value))
    if slopes and free is not None:
        points.append(Point("aie_leak_time_to_full_seconds", Kind.GAUGE, tags, free / max(slopes)))
    return points


def _dump(known: _Engine) -> dict[str, Any]:
    tgids, start_s, model = known.identity
    return {
        "identity": [sorted(tgids), start_s, model],
        "account": known.account.dump(),
        "watches": {device: watch.dump() for device, watch in known.watches.items()},
        "lives": {device: lives.dump() for device, lives in known.lives.items()},
        "answer": None if known.answer is None else known.answer.dump(),
        "retained": None if known.retained is None else list(known.retained),
    }
