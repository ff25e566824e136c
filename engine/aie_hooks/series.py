"""What a program holds and calls: counters, gauges and histograms that collect in memory until the emitter takes their lines.

No call raises or blocks, whatever it is given and whatever it comes in the middle of (`aie_hooks.reentrant`): what is no finite
number of the right sign is counted as dropped. What is written
when (a counter's sum, a gauge's last value, a histogram's values one by one) is each class's business, and so is what happens to
it when a packet could not be sent: sums and levels are kept for the next flush, single observations are dropped and counted.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol

from aie_hooks.packing import MAX_PACKET_BYTES, Line
from aie_hooks.reentrant import Tally
from aie_hooks.ticker import Ticker
from aie_telemetry.statsd import Dialect

MAX_WAITING: Final = 4096
"""Observations that one histogram holds between flushes."""

# Above it a float no longer holds every integer, so that a sum of bytes or tokens would stop being exact.
_MAX_INCREMENT: Final = 2.0**53
_VALUES_PER_LINE: Final = 64
# Of "%.6g", of repr(float), and of a type with its separators: the longest each gets.
_SHORT_NUMBER_BYTES: Final = 13
_NUMBER_BYTES: Final = 24


class Owner(Protocol):
    """What a series needs of the emitter that made it."""

    ticker: Ticker

    def drop(self, reason: str, count: int) -> None:
        """`count` values were dropped."""

    def overflow(self, count: int) -> None:
        """`count` values were dropped because more wait than are sent."""


class Frame(NamedTuple):
    """What stands around the values of every line of one series, and in whose dialect."""

    head: bytes
    tail: bytes
    dialect: Dialect

    @property
    def room(self) -> int:
        """Bytes left for values and types in a line; negative when there is no room at all."""
        return MAX_PACKET_BYTES - len(self.head) - len(self.tail) - 1


class Series:
    """What the three kinds share. `frame` must have room for the longest line of the kind, or ValueError is raised."""

    __slots__ = ("_frame", "_owner", "_ticker")

    def __init__(self, frame: Frame, owner: Owner, bytes_needed: int) -> None:
        if frame.room < bytes_needed:
            raise ValueError(f"name and labels take more than the {MAX_PACKET_BYTES} bytes of a packet: {frame.head[:80]!r}...")
        self._frame = frame
        self._owner = owner
        self._ticker = owner.ticker

    def _ring(self) -> None:
        if self._ticker.asleep:
            self._ticker.ring()

    def take(self) -> Iterable[Line]:
        """The lines that say what came together since the last time; most of the time there is nothing to say."""
        raise NotImplementedError

    def lost(self, amount: float, reason: str) -> None:
        """A line of this series was not sent."""
        raise NotImplementedError

    def discard(self, reason: str) -> None:
        """There is nobody to send to; nothing may grow old here."""

    def refresh(self) -> None:
        """Somebody new listens, or may: say again what is not said with every change."""

    def forget(self) -> None:
        """For a forked child: what the parent collected is the parent's to send."""
        raise NotImplementedError


class Counter(Series):
    """A sum that only rises. Sent unsampled, and announced at 0, so that a first increment is seen as one."""

    __slots__ = ("_announced", "_taken", "_unsent")

    def __init__(self, frame: Frame, owner: Owner) -> None:
        super().__init__(frame, owner, _NUMBER_BYTES + 2)
        self._begin()

    def _begin(self) -> None:
        self._unsent = Tally()
        self._taken = 0.0  # for the flush, of which there is one at a time
        self._announced = False

    @property
    def total(self) -> float:
        """The sum since the process started; a moment behind while others add or send."""
        unsent = self._unsent.take()
        if unsent:
            self._unsent.add(unsent)
            self._ring()  # a flush that was at it just now has not seen it
        return self._taken + unsent

    def add(self, amount: float = 1.0) -> None:
        """Adds `amount`, from 0 to 2**53."""
        number = _number(amount)
        if not 0.0 <= number <= _MAX_INCREMENT:
            self._owner.drop("invalid", 1)
            return
        self._unsent.add(number)
        if self._ticker.asleep:
            self._ticker.ring()

    def take(self) -> Iterable[Line]:
        if self._announced and not self._unsent:
            return ()
        self._announced = True
        amount = self._unsent.take()
        self._taken += amount
        return (Line(b"%s:%s|c%s" % (self._frame.head, _exact(amount), self._frame.tail), self, 1, amount),)

    def lost(self, amount: float, reason: str) -> None:
        self._taken -= amount
        self._unsent.add(amount)

    def refresh(self) -> None:
        self._announced = False

    def forget(self) -> None:
        self._begin()


class Gauge(Series):
    """A level: of several values between two flushes the last one is sent."""

    __slots__ = ("_changed", "_value")

    def __init__(self, frame: Frame, owner: Owner) -> None:
        super().__init__(frame, owner, 2 * (_NUMBER_BYTES + 2) + len(frame.head) + len(frame.tail) + 2)
        self._value: float | None = None
        self._changed = False

    def set(self, value: float) -> None:
        """Sets the level, which may be negative."""
        number = _number(value)
        if not math.isfinite(number):
            self._owner.drop("invalid", 1)
            return
        # In this order: a flush in between sends the new value now, and once more next time.
        self._value = number
        self._changed = True
        if self._ticker.asleep:
            self._ticker.ring()

    def take(self) -> Iterable[Line]:
        if not self._changed:
            return ()
        self._changed = False
        value = self._value or 0.0
        head, tail, dialect = self._frame
        text = b"%s:%s|g%s" % (head, _exact(value), tail)
        if value < 0.0:
            # StatsD reads a sign as a change of the level, so the level is set to 0 first: in one line, or one packet at least.
            text = b"%s:0|g%s\n%s" % (head, tail, text) if dialect == "datadog" else b"%s:0|g:%s|g" % (head, _exact(value))
        return (Line(text, self, 1, 1.0),)

    def lost(self, amount: float, reason: str) -> None:
        self._changed = True

    def refresh(self) -> None:
        self._changed = self._value is not None

    def forget(self) -> None:
        self._value = None
        self._changed = False


class Histogram(Series):
    """A distribution. Values are sent one by one with the sample rate, which the receiver turns into a weight."""

    __slots__ = ("_least", "_per_line", "_random", "_rate", "_separator", "_suffix", "_values")

    def __init__(self, frame: Frame, owner: Owner, rate: float, random: Callable[[], float], least: float = 0.0) -> None:
        """`least` is the least number that is an observation of this metric; most measure what cannot be negative."""
        kind = b"|h" if rate == 1.0 else b"|h|@" + _exact(rate)
        # Telegraf's dialect repeats the type (a:1|h:2|h). DogStatsD's could pack values (a:1:2|h), but netdata takes the first
        # of them and drops the rest without a word, and Telegraf refuses them all: there each value has a line of its own.
        self._suffix = kind + frame.tail
        self._separator = self._suffix + b"\n" + frame.head + b":" if frame.dialect == "datadog" else kind + b":"
        value_bytes = _SHORT_NUMBER_BYTES + len(self._separator)
        super().__init__(frame, owner, _SHORT_NUMBER_BYTES + len(kind))
        self._per_line = max(1, min(_VALUES_PER_LINE, (frame.room - len(kind)) // value_bytes))
        self._rate = rate
        self._random = random
        self._least = least
        self._values: deque[float] = deque()

    def observe(self, value: float) -> None:
        """Records `value` in the metric's unit, at this handle's rate. Not negative, unless the metric's buckets begin below 0."""
        if self._random() < self._rate:
            self.record(value)

    def record(self, value: float, count: int = 1) -> None:
        """Records `count` equal observations without rolling dice: the caller has decided, at this handle's rate."""
        number = _number(value)
        if not self._least <= number < math.inf:
            self._owner.drop("invalid", count)
            return
        number += 0.0  # a negative zero would be sent with its sign, which StatsD refuses
        values = self._values
        if len(values) + count > MAX_WAITING:
            self._owner.overflow(count)
            return
        if count == 1:
            values.append(number)
        else:
            values.extend(repeat(number, count))
        if self._ticker.asleep:
            self._ticker.ring()

    def take(self) -> Iterable[Line]:
        return self._take() if self._values else ()

    def _take(self) -> Iterator[Line]:
        head = self._frame.head
        while batch := self._batch():
            text = self._separator.join([b"%.6g" % value for value in batch])
            yield Line(b"%s:%s%s" % (head, text, self._suffix), self, len(batch), len(batch))

    def _batch(self) -> list[float]:
        """The oldest values. Only a flush removes any, and there is one flush at a time."""
        values = self._values
        return [values.popleft() for _ in range(min(self._per_line, len(values)))]

    def lost(self, amount: float, reason: str) -> None:
        self._owner.drop(reason, int(amount))

    def discard(self, reason: str) -> None:
        count = 0
        while self._values:
            self._values.popleft()
            count += 1
        if count:
            self._owner.drop(reason, count)

    def forget(self) -> None:
        self._values = deque()


class SilentCounter(Counter):
    """For an emitter that is off."""

    __slots__ = ()

    def add(self, amount: float = 1.0) -> None:
        pass


class SilentGauge(Gauge):
    """For an emitter that is off."""

    __slots__ = ()

    def set(self, value: float) -> None:
        pass


class SilentHistogram(Histogram):
    """For an emitter that is off."""

    __slots__ = ()

    def observe(self, value: float) -> None:
        pass

    def record(self, value: float, count: int = 1) -> None:
        pass


def _number(value: Any) -> float:
    """`value` as a float, NaN for what is no number: the caller's mistake must not reach the engine."""
    if type(value) is float:
        return value
    try:
        return float(value)
    except Exception:  # noqa: BLE001 - whatever a foreign __float__ raises; it is counted as invalid
        return math.nan


def _exact(value: float) -> bytes:
    """The shortest text that reads back as the same float; of a negative zero, zero."""
    text = repr(value + 0.0)
    return (text[:-2] if text.endswith(".0") else text).encode()
