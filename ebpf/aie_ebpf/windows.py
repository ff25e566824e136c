"""Sets that are attached on demand, for a bounded time: few and long, since detaching alone steals about 0.1 s a probe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Final

from aie_ebpf.closer import Closer
from aie_ebpf.messages import OpenWindow, Target, WindowClosed
from aie_ebpf.probes import SETS, When
from aie_ebpf.uprobe_sets import Attached, UprobeSets

LONGEST_S: Final = 120.0
_SETS: Final = tuple(each.name for each in SETS if each.when is When.WINDOW)

Key = tuple[str, str]
"""An engine and a set."""


@dataclass(slots=True)
class _Window:
    opened_s: float
    closes_s: float
    attached: dict[int, Attached]
    hits: int = 0
    stolen_s: float = 0.0
    detached: list[Event] = field(default_factory=list)

    @property
    def is_closing(self) -> bool:
        return bool(self.detached)


class Windows:
    """The windows that are open. One of a set and an engine at a time."""

    def __init__(self, uprobes: UprobeSets, closer: Closer) -> None:
        self._uprobes = uprobes
        self._closer = closer
        self._open: dict[Key, _Window] = {}
        self._refused: list[WindowClosed] = []

    def open(self, asked: OpenWindow, targets: Sequence[Target], now_s: float) -> None:
        """Attaches a set to these processes. What cannot be done comes as a window that closed at once, with the reason."""
        key = asked.engine, asked.set
        reason = self._refusal(asked, targets)
        attached: dict[int, Attached] = {}
        if not reason:
            attached = {each.tgid: self._uprobes.attach(asked.set, each, self._uprobes.libraries(each.tgid)) for each in targets}
            if not any(each.probes for each in attached.values()):
                reason = next(each.coverage.reason for each in attached.values()) or "nothing of it can be attached"
        if reason:
            self._refused.append(_closed(key, 0.0, 0, 0.0, reason))
        else:
            self._open[key] = _Window(now_s, now_s + asked.seconds, attached)

    def charge(self, hits: Mapping[Key, int], took_s: Mapping[Key, float]) -> None:
        """How often programs ran since the last call, and what that took, by engine and set; also of what is not a window."""
        for key, window in self._open.items():
            window.hits += hits.get(key, 0)
            window.stolen_s += took_s.get(key, 0.0)

    def close(self, engine: str, name: str) -> None:
        """Closes one early, if it is open: it took too much."""
        window = self._open.get((engine, name))
        if window is not None:
            window.closes_s = 0.0

    def __bool__(self) -> bool:
        return bool(self._open)

    def forget(self, tgid: int) -> None:
        """A process ended; its probes go."""
        for window in self._open.values():
            attached = window.attached.pop(tgid, None)
            if attached is not None:
                self._closer.close(attached.probes)

    def tick(self, now_s: float) -> list[WindowClosed]:
        """Closes what is due, and tells of those whose probes are all detached: until then they cost."""
        closed, self._refused = self._refused, []
        for key, window in list(self._open.items()):
            if not window.is_closing and (now_s >= window.closes_s or not window.attached):
                window.detached = [self._closer.close(each.probes) for each in window.attached.values()] or [_done()]
            elif window.is_closing and all(event.is_set() for event in window.detached):
                del self._open[key]
                closed.append(_closed(key, now_s - window.opened_s, window.hits, window.stolen_s))
        return closed

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


def _done() -> Event:
    event = Event()
    event.set()
    return event
