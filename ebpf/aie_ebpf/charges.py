"""What the sets that are attached take from each engine: charged to the ledger often, reported once a period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from aie_ebpf.budget import Key, Ledger, Mix, mix_seen, usual_mix
from aie_ebpf.messages import Cost


class Charges:
    """Sums of hits and seconds since the last report, and the ledger behind them."""

    def __init__(self, ledger: Ledger, mixes: Mapping[str, Mix], now_s: float) -> None:
        """`mixes` has the kinds of hits of sets whose functions were looked at; it may grow later."""
        self._ledger = ledger
        self._mixes = mixes
        self._hits: dict[Key, int] = defaultdict(int)
        self._seconds: dict[Key, float] = defaultdict(float)
        # Until when each engine is charged; one that is new, from when any was charged last.
        self._until_s: dict[str, float] = {}
        self._last_s = now_s

    def add(self, hits: Mapping[Key, Mapping[str, int]], engines: Collection[str], now_s: float) -> dict[Key, float]:
        """Hits of these engines, by kind, since each was charged last; what they took, in seconds. A set that ran once is charged
        from then on, with nothing, too: silence is part of the average."""
        took: dict[Key, float] = {}
        for key in self._seconds.keys() | hits.keys():
            engine, name = key
            if engine in engines:
                by_kind, period_s = hits.get(key, {}), now_s - self._until_s.get(engine, self._last_s)
                count, mix = sum(by_kind.values()), mix_seen(by_kind, self._mixes.get(name) or usual_mix(name))
                took[key] = seconds = self._ledger.spend(key, count, period_s, now_s, mix)
                self._hits[key] += count
                self._seconds[key] += seconds
        self._until_s |= dict.fromkeys(engines, now_s)
        self._last_s = now_s
        return took

    def report(self) -> tuple[Cost, ...]:
        """All since the last report."""
        rows = tuple(
            Cost(engine=key[0], set=key[1], hits=self._hits[key], seconds=seconds, ratio=self._ledger.ratio(*key))
            for key, seconds in self._seconds.items()
        )
        for key in self._seconds:
            self._hits[key] = 0
            self._seconds[key] = 0.0
        return rows

    def forget(self, engines: Iterable[str], now_s: float) -> None:
        """Engines that have no process left."""
        for engine in engines:
            self._ledger.forget(engine, now_s)
            self._until_s.pop(engine, None)
            for key in [key for key in self._seconds if key[0] == engine]:
                del self._hits[key], self._seconds[key]
