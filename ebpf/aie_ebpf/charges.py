"""What the sets that are attached take from each engine: charged to the ledger often, reported once a period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from aie_ebpf.budget import Key, Ledger, Mix
from aie_ebpf.messages import Cost


class Charges:
    """Sums of hits and seconds since the last report, and the ledger behind them."""

    def __init__(self, ledger: Ledger, mixes: Mapping[str, Mix]) -> None:
        """`mixes` has the kinds of hits of sets whose functions were looked at; it may grow later."""
        self._ledger = ledger
        self._mixes = mixes
        self._hits: dict[Key, int] = defaultdict(int)
        self._seconds: dict[Key, float] = defaultdict(float)

    def add(self, hits: Mapping[Key, int], period_s: float, now_s: float) -> dict[Key, float]:
        """Hits of the last `period_s`; what they took, in seconds. A set that ran once is charged from then on, with nothing, too:
        silence is part of the average."""
        whole = {key: hits.get(key, 0) for key in self._seconds.keys() | hits.keys()}
        mixes = {key: self._mixes[key[1]] for key in whole if key[1] in self._mixes}
        took = {(row.engine, row.set): row.seconds for row in self._ledger.charge(whole, period_s, now_s, mixes)}
        for key, seconds in took.items():
            self._hits[key] += whole[key]
            self._seconds[key] += seconds
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
            for key in [key for key in self._seconds if key[0] == engine]:
                del self._hits[key], self._seconds[key]
