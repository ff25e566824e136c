"""Engines that the agent knew before it was restarted: one that ended meanwhile is gone, and not merely unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from aie_agent.identity import Engines

PART: Final = "engines"
"""What it is called in the state on disk."""

SETTLED_S: Final = 30.0
"""For so long after the start engines are still being found: what is missing then is gone."""


class Recalled:
    """What the state on disk says of engines, until each is found again."""

    def __init__(self, state: object, now_s: float) -> None:
        """`state` is what `dump` gave, or anything else: then nothing is recalled."""
        self._begun_s = now_s
        self._last_s = dict(_valid(state, now_s))
        self._gone: set[str] = set()

    @property
    def gone(self) -> frozenset[str]:
        """Engines without a process since the agent began, that had one before."""
        return frozenset(self._gone)

    def update(self, engines: Engines, now_s: float) -> None:
        """To be called once a tick: hands over to `engines`, once, those that were not found again."""
        self._gone = {name for name in self._gone if engines.state(name) == "down"}
        if self._last_s and now_s - self._begun_s >= SETTLED_S:
            self._gone |= {name for name, last_s in self._last_s.items() if engines.recall(name, last_s)}
            self._last_s = {}

    def dump(self, engines: Engines, now_s: float) -> Mapping[str, float]:
        """When each engine last had a process. Those not looked for yet stand as they were."""
        seen = {name: engines.down_since_s(name) or now_s for name in engines.names() if engines.state(name) != "unknown"}
        return self._last_s | seen


def _valid(state: object, now_s: float) -> Mapping[str, float]:
    rows: Mapping[Any, Any] = state if isinstance(state, dict) else {}
    return {
        name: min(float(last_s), now_s)
        for name, last_s in rows.items()
        if isinstance(name, str) and isinstance(last_s, int | float) and last_s == last_s
    }
