"""Since when something holds of a GPU. NVML tells only what is now, and the store's rings forget after minutes: this remembers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

GAP_S: Final = 5.0
"""What is away for no longer than that was never gone: a throttle that comes and goes with each batch is one throttle."""


class _Spell(NamedTuple):
    since_s: float
    last_s: float


class Since:
    """Remembers for each GPU what holds, and no more: what is gone for longer than `GAP_S` is forgotten.

    It begins with the agent: what held before that is said to hold since then.
    """

    def __init__(self) -> None:
        self._spells: dict[int, dict[str, _Spell]] = {}

    def of(self, gpu: int, holds: Iterable[str], now_s: float) -> dict[str, float]:
        """Since when each of `holds` does, in the time of `now_s`, which never goes back."""
        known = self._spells.get(gpu, {})
        now = {name: _Spell(known[name].since_s if name in known else now_s, now_s) for name in holds}
        waiting = {name: spell for name, spell in known.items() if name not in now and now_s - spell.last_s <= GAP_S}
        self._spells[gpu] = {**waiting, **now}
        return {name: spell.since_s for name, spell in now.items()}
