"""Sets that are attached on demand, for a bounded time: few and long, since detaching alone steals up to 0.1 s a probe."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from aie_ebpf.attaching import Attached
from aie_ebpf.closer import Closer
from aie_ebpf.messages import Coverage, OpenWindow, Target, WindowClosed
from aie_ebpf.probes import SETS, When
from aie_ebpf.uprobe_sets import LOCK_STACKS, UprobeSets

LONGEST_S: Final = 120.0
_SETS: Final = tuple(each.name for each in SETS if each.when is When.WINDOW)

Key = tuple[str, str]
"""An engine and a set."""


@dataclass(slots=True)
class _Window:
    """`closes_s` is None as long as it is being attached."""

    opened_s: float
    closes_s: float | None = None
    attached: dict[int, Attached] = field(default_factory=dict)
    coverage: dict[int, Coverage] = field(default_factory=dict)
    hits: int = 0
    stolen_s: float = 0.0
    detached: list[Event] = field(default_factory=list)
    reason: str = ""

    @property
    def is_closing(self) -> bool:
        return bool(self.detached)

    def is_due(self, now_s: float) -> bool:
        return self.closes_s is not None and (now_s >= self.closes_s or not self.attached)


class Windows:
    """The windows that are open. One of a set and an engine at a time."""

    def __init__(self, uprobes: UprobeSets, closer: Closer, clock: Callable[[], float]) -> None:
        self._uprobes = uprobes
        self._closer = closer
        self._clock = clock
        self._open: dict[Key, _Window] = {}
        self._refused: list[WindowClosed] = []

    def open(self, asked: OpenWindow, targets: Sequence[Target], held: str | None = None) -> Iterator[None]:
        """Attaches a set to these processes, a step at a time. What cannot be done comes as a window that closed at once, with the
        reason. `held` is why the set leaves this engine alone at present."""
        key = asked.engine, asked.set
        reason = self._refusal(asked, targets) or held
        if reason:
            self._refused.append(_closed(key, 0.0, 0, 0.0, reason))
            return
        window = self._open[key] = _Window(self._clock())
        for each in targets:
            attached = window.attached[each.tgid] = Attached()
            steps = self._steps(asked, each, attached)
            window.coverage[each.tgid] = yield from steps
            if window.is_closing:  # it took too much already
                return
        if any(each.probes or each.shared for each in window.attached.values()):
            window.opened_s = self._clock()
            window.closes_s = window.opened_s + asked.seconds
        else:
            del self._open[key]
            reason = window.coverage[targets[0].tgid].reason or "nothing of it can be attached"
            self._refused.append(_closed(key, 0.0, 0, 0.0, reason))

    def charge(self, hits: Mapping[Key, int], took_s: Mapping[Key, float]) -> None:
        """How often programs ran since the last call, and what that took, by engine and set; also of what is not a window."""
        for key, window in self._open.items():
            window.hits += hits.get(key, 0)
            window.stolen_s += took_s.get(key, 0.0)

    def close(self, engine: str, name: str, reason: str) -> None:
        """Closes one early, now, if it is open: it took too much, as `reason` says."""
        window = self._open.get((engine, name))
        if window is not None and not window.is_closing:
            window.reason = reason
            self._detach(window)

    def coverage(self) -> dict[tuple[int, str], Coverage]:
        """What those see that are open now, by process and set."""
        return {
            (tgid, name): told
            for (_, name), window in self._open.items()
            if window.closes_s is not None and not window.is_closing
            for tgid, told in window.coverage.items()
            if tgid in window.attached
        }

    def engines(self) -> set[str]:
        """Those that have one, open or closing."""
        return {engine for engine, _ in self._open}

    def __bool__(self) -> bool:
        return bool(self._open)

    def forget(self, tgid: int) -> None:
        """A process ended; its probes go."""
        for window in self._open.values():
            attached = window.attached.pop(tgid, None)
            if attached is not None:
                self._closer.close(attached.release())

    def tick(self, now_s: float) -> list[WindowClosed]:
        """Closes what is due, and tells of those whose probes are all detached: until then they cost."""
        closed, self._refused = self._refused, []
        for key, window in list(self._open.items()):
            if not window.is_closing and window.is_due(now_s):
                self._detach(window)
            elif window.is_closing and all(event.is_set() for event in window.detached):
                del self._open[key]
                closed.append(_closed(key, now_s - window.opened_s, window.hits, window.stolen_s, window.reason))
        return closed

    def _steps(self, asked: OpenWindow, target: Target, attached: Attached) -> Generator[None, None, Coverage]:
        if asked.set == LOCK_STACKS:
            return self._uprobes.attach_stacks(target, asked.locks, attached)
        return self._uprobes.attach(asked.set, target, self._uprobes.libraries(target.tgid), attached)

    def _detach(self, window: _Window) -> None:
        # Of no probes at all, too, it is an event: one that is set.
        window.detached = [self._closer.close(each.release(), haste=True) for each in (*window.attached.values(), Attached())]

    def _refusal(self, asked: OpenWindow, targets: Sequence[Target]) -> str:
        if asked.set not in _SETS:
            return f"{asked.set!r} is no set for a window: {', '.join(_SETS)}"
        if not 0 < asked.seconds <= LONGEST_S:
            return f"a window is open for at most {LONGEST_S:g} s"
        if not targets:
            return "no process of this engine is watched"
        if (asked.engine, asked.set) in self._open:
            return "it is open already"
        return ""


def _closed(key: Key, open_s: float, hits: int, stolen_s: float, reason: str = "") -> WindowClosed:
    return WindowClosed(set=key[1], engine=key[0], open_s=open_s, hits=hits, stolen_s=stolen_s, reason=reason)
