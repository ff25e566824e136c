"""Whether threads that wait on an address fight for a lock or have nothing to do: by who wakes them (programs/locks.bpf.c)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

GIL: Final = "gil"
LOCK: Final = "lock"
IDLE: Final = "idle"

# Of the waits of a fight, all but the first end by a hand-off. A pool whose workers also feed its queue has some, too.
_SHARE: Final = 0.5
_FEWEST_HANDOFFS: Final = 1.5  # two, of which the first may count half by now
# An owner that takes its lock again at once leaves more than this share of the waits in vain (on a busy host, where it is
# interrupted in between, not many more: 5 % were seen), a queue's lock and a semaphore's hardly any.
_IN_VAIN: Final = 0.02
# While threads wait for a lock, another holds it: so it is held for as long as they wait, or all the time when many do. A third of
# that is enough. The lock of a queue is passed on within microseconds, however many workers wait at it.
_HELD: Final = 0.3
# Who takes a lock without waiting is not seen to hold it. Where threads sleep as long as they hold, two of them may meet so that
# each takes it ahead of those that wait, nearly always: 11 % of the hand-offs had a time then. The others' is taken to be the same,
# where this share has one. A pool's workers that feed its queue, and take from it at once, leave none: who was woken gets nothing.
_TIMED: Final = 0.05
# What was seen before counts half after this many seconds.
_HALF_LIFE_S: Final = 10.0
_ADDRESSES: Final = 8192

Address = tuple[int, int]
"""A process's tgid, and an address in it."""


class Seen(NamedTuple):
    """What happened at an address: waits; the hand-offs that ended them, and of how many it is known how long was held before;
    seconds waited, and held before these; over how many seconds; and waits for a mutex that said itself that it was fought for, by
    threads that had just been woken in vain."""

    waits: float = 0.0
    handoffs: float = 0.0
    timed: float = 0.0
    wait_s: float = 0.0
    held_s: float = 0.0
    period_s: float = 0.0
    contended: float = 0.0


_Sums = tuple[float, float, float, float, float, float, float]
"""As `Seen`, of all readings so far."""

_NOTHING: Final[_Sums] = Seen()


class LockKinds:
    """Remembers of the addresses seen last how their waits ended."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Address, _Sums] = OrderedDict()
        # Of the reading that is noted: how long it lasted, and how much what was seen before it counts.
        self._period_s, self._keep = 0.0, 1.0

    def note(self, address: Address, seen: _Sums) -> str:
        """What happened at an address since the reading before. Returns its kind, as `kind` does from now on."""
        waits, handoffs, timed, wait_s, held_s, period_s, contended = seen
        before = self._seen.pop(address, None)
        if before is not None:
            if period_s != self._period_s:
                self._period_s, self._keep = period_s, 0.5 ** (period_s / _HALF_LIFE_S)
            keep = self._keep
            waits += before[0] * keep
            handoffs += before[1] * keep
            timed += before[2] * keep
            wait_s += before[3] * keep
            held_s += before[4] * keep
            period_s += before[5] * keep
            contended += before[6] * keep
        self._seen[address] = sums = waits, handoffs, timed, wait_s, held_s, period_s, contended
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)
        return _kind(sums)

    def kind(self, address: Address) -> str:
        """LOCK or IDLE. An address at which nothing has ended yet is IDLE: so is a lock that is never given back, where the
        processes' state and their stacks tell more."""
        return _kind(self._seen.get(address, _NOTHING))

    def forget(self, tgid: int) -> None:
        """A process ended; its addresses may come back in another's."""
        for address in [each for each in self._seen if each[0] == tgid]:
            del self._seen[address]


def _kind(sums: _Sums) -> str:
    waits, handoffs, timed, wait_s, held_s, period_s, contended = sums
    # A wait for such a mutex ends in vain, or its thread has the lock then, and wakes the next one when it gives it back.
    if contended > _IN_VAIN * waits and contended + handoffs >= _SHARE * waits:
        return LOCK
    handed = handoffs >= _FEWEST_HANDOFFS and handoffs >= _SHARE * waits
    if timed >= _FEWEST_HANDOFFS and timed >= _TIMED * handoffs:
        held_s *= handoffs / timed
    return LOCK if handed and held_s >= _HELD * min(wait_s, period_s) else IDLE
