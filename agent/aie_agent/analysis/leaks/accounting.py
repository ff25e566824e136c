"""Whether a KV cache's book-keeping loses blocks: free and used must add up to its capacity, and nothing may stay used at idle.

The first is exact and has no false alarm, as long as an engine's page is of one moment; three looks in a row must show it. The
second is the leak rules on what is used while no request is in flight: blocks that a bounded prefix cache keeps level off. What
stays constant is not reported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from aie_agent.analysis.leaks.leak import Line
from aie_agent.analysis.leaks.reading import load as in_flight
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import Standing
from aie_agent.store import Store

_LOOKS: Final = 3
_KV: Final = ("aie_engine_kv_capacity_tokens", "aie_engine_kv_used_tokens", "aie_engine_kv_free_tokens")
LOST_SHARE_PER_HOUR: Final = 0.001
"""Of the capacity, lost at idle: slower losses take weeks to matter."""
_TOLERANCE_TOKENS: Final = 0.5


class Kv(NamedTuple):
    """A KV cache at a moment, in tokens; None where it is not told."""

    capacity: float | None
    used: float | None
    free: float | None
    load: float | None


def read(store: Store, engine: str, now_s: float) -> Kv:
    """The KV cache of an engine now. Where a prefix cache keeps blocks on purpose, what is used at idle says nothing, and its load
    is left out."""
    capacity, used, free = (store.current(name, now_s, engine=engine) for name in _KV)
    keeps = store.current("aie_engine_prefix_cache_queries_total", now_s, engine=engine) is not None
    return Kv(capacity, used, free, None if keeps else in_flight(store, engine, now_s))


def is_short(kv: Kv) -> bool:
    """Whether free and used do not add up to the capacity."""
    if kv.capacity is None or kv.used is None or kv.free is None:
        return False
    return abs(kv.free + kv.used - kv.capacity) > _TOLERANCE_TOKENS


class Account:
    """The book-keeping of one engine's KV cache."""

    def __init__(self, settings: LeakSettings) -> None:
        self._settings = settings
        self.short_looks = 0
        self.short_since_s: float | None = None
        self.kv = Kv(None, None, None, None)
        self._idle: Line | None = None

    def add(self, time_s: float, kv: Kv) -> None:
        """Takes a look."""
        self.kv = kv
        if is_short(kv):
            self.short_since_s = time_s if self.short_since_s is None else self.short_since_s
            self.short_looks += 1
        else:
            self.short_looks, self.short_since_s = 0, None
        if kv.used is not None and kv.load == 0 and kv.capacity:
            if self._idle is None:
                self._idle = Line(self._of(kv.capacity), time_s)
            self._idle.add(time_s, kv.used)

    def _of(self, capacity: float) -> LeakSettings:
        """The settings for tokens: a limit that goes with the capacity, and no sudden leaks."""
        limit = LOST_SHARE_PER_HOUR * capacity / 3600 * self._settings.time_scale
        return replace(self._settings, limit_bytes_per_s=limit, sudden_bytes=capacity)

    def restart(self) -> None:
        """The engine began anew, with an empty cache."""
        self.short_looks, self.short_since_s, self._idle = 0, None, None

    @property
    def is_short(self) -> bool:
        """Whether it has not added up for long enough to be no matter of two readings."""
        return self.short_looks >= _LOOKS

    @property
    def idle(self) -> Standing | None:
        """How what is used at idle rises (tokens a second); None while it does not."""
        return self._idle.standing if self._idle is not None and self._idle.level != "none" else None

    def dump(self) -> dict[str, Any]:
        """Its state as plain values."""
        return {"capacity": self.kv.capacity, "idle": None if self._idle is None else self._idle.dump()}

    @classmethod
    def restored(cls, state: Mapping[str, Any], settings: LeakSettings) -> Account:
        """What `dump` gave. Raises ValueError, TypeError or KeyError for anything else."""
        account = cls(settings)
        if state["idle"] is not None and state["capacity"]:
            account._idle = Line.restored(state["idle"], account._of(float(state["capacity"])))
        return account
