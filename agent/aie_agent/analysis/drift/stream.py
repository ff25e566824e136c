"""What comes of one engine and model beside its reference: a watch a statistic, and how many values a second."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from aie_agent.analysis.drift.reference import Reference
from aie_agent.analysis.drift.saved import integer, mapping
from aie_agent.analysis.drift.watch import StatisticWatch

_BIN_S: Final = 60.0
_BINS: Final = 10


COUNTED: Final = "log_length"
"""Every answer has one: how many come tells how many requests are looked at."""


class Rate:
    """Values a second over the last ten minutes."""

    def __init__(self) -> None:
        self._bins: deque[tuple[float, int]] = deque(maxlen=_BINS)

    def add(self, count: int, now_s: float) -> None:
        """So many came."""
        if self._bins and now_s - self._bins[-1][0] < _BIN_S:
            start_s, before = self._bins[-1]
            self._bins[-1] = (start_s, before + count)
        else:
            self._bins.append((now_s, count))

    def per_second(self, now_s: float) -> float | None:
        """None in the first minute, and where nothing came for long."""
        recent = [(start_s, count) for start_s, count in self._bins if now_s - start_s <= _BIN_S * _BINS]
        if not recent or now_s - recent[0][0] < _BIN_S:
            return None
        return sum(count for _, count in recent) / (now_s - recent[0][0])


class EngineStream:
    """One engine and model, watched by a reference."""

    def __init__(self, reference: Reference, statistics: Sequence[str], now_s: float) -> None:
        columns = {column.name: column for column in reference.header.columns}
        self.reference = reference
        self.watches = {name: StatisticWatch(columns[name], reference.values[name]) for name in statistics if name in columns}
        self.rate = Rate()
        self.revision = ""
        self.seen_s = now_s
        self.lost = dict.fromkeys(self.watches, 0)

    def take(self, statistic: str, values: Sequence[float], lost: int, now_s: float) -> None:
        """Takes values in; those of a statistic that the reference does not have are passed over."""
        self.seen_s = now_s
        if statistic == COUNTED:
            self.rate.add(len(values) + lost, now_s)
        watch = self.watches.get(statistic)
        if watch is None:
            return
        self.lost[statistic] += lost
        for value in values:
            watch.take(value, now_s)

    @property
    def taken(self) -> int:
        """Requests compared so far, of the statistic that has most."""
        return max((watch.taken for watch in self.watches.values()), default=0)

    @property
    def is_compared(self) -> bool:
        """Whether any statistic is; what is not is still held to its range."""
        return any(watch.column.tells for watch in self.watches.values())

    @property
    def run_length_requests(self) -> float | None:
        """Requests between false alarms, at least. None where nothing is compared, which calibration says nothing of."""
        return self.reference.header.run_length_requests if self.is_compared else None

    def run_length_s(self, now_s: float) -> float | None:
        """The same in time, at the present rate. None where no rate is known, either."""
        rate, requests = self.rate.per_second(now_s), self.run_length_requests
        return requests / rate if rate and requests is not None else None

    def dump(self) -> dict[str, Any]:
        """For `restore`."""
        return {
            "reference": self.reference.header.sha256,
            "revision": self.revision,
            "watches": {name: watch.dump() for name, watch in self.watches.items()},
            "lost": dict(self.lost),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `dump` gave for the same reference. Raises ValueError; then this stream is not to be used."""
        revision = state.get("revision")
        if not isinstance(revision, str):
            raise ValueError("revision: no text")
        self.revision = revision
        watches, lost = mapping(state, "watches"), mapping(state, "lost")
        for name, watch in self.watches.items():
            watch.restore(mapping(watches, name))
            self.lost[name] = integer(lost, name)
