"""Whether threads that wait on an address fight for a lock or have nothing to do: by who wakes them (programs/locks.bpf.c)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

GIL: Final = "gil"
LOCK: Final = "lock"
IDLE: Final = "idle"

# Of the waits of a fight, all but the first end by a hand-off. A pool whose workers also feed its queue has some, too.
_SHARE: Final = 0.5
_FEWEST_HANDOFFS: Final = 2.0
# An owner that takes its lock again at once leaves more than this share of the waits in vain, a queue's lock hardly any.
_IN_VAIN: Final = 0.1
# While threads wait for a lock, another holds it: so it is held for as long as they wait, or all the time when many do. Half of
# that is enough, since who takes a lock without waiting is not seen to hold it. The lock of a queue is passed on within
# microseconds, however many workers wait at it.
_HELD: Final = 0.3
# What was seen before counts half after this many seconds.
_HALF_LIFE_S: Final = 10.0
_ADDRESSES: Final = 8192

Address = tuple[int, int]
"""A process's tgid, and an address in it."""


class Seen(NamedTuple):
    """What happened at an address: waits, the hand-offs that ended them, seconds waited and held, over how many seconds; and waits
    for a mutex that said itself that it was fought for, by threads that had just been woken in vain."""

    waits: float = 0.0
    handoffs: float = 0.0
    wait_s: float = 0.0
    held_s: float = 0.0
    period_s: float = 0.0
    contended: float = 0.0


_NOTHING: Final = Seen()


class LockKinds:
    """Remembers of the addresses seen last how their waits ended."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Address, Seen] = OrderedDict()

    def note(self, address: Address, seen: Seen) -> None:
        """What happened at an address since the reading before."""
        before = self._seen.pop(address, _NOTHING)
        keep = 0.5 ** (seen.period_s / _HALF_LIFE_S)
        waits, handoffs, wait_s, held_s, period_s, contended = before
        self._seen[address] = Seen(
            waits * keep + seen.waits,
            handoffs * keep + seen.handoffs,
            wait_s * keep + seen.wait_s,
            held_s * keep + seen.held_s,
            period_s * keep + seen.period_s,
            contended * keep + seen.contended,
        )
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)

    def kind(self, address: Address) -> str:
        """LOCK or IDLE. An address at which nothing has ended yet is IDLE: so is a lock that is never given back, where the
        processes' state and their stacks tell more."""
        seen = self._seen.get(address, _NOTHING)
        # A wait for such a mutex ends in vain, or its thread has the lock then, and wakes the next one when it gives it back.
        if seen.contended > _IN_VAIN * seen.waits and seen.contended + seen.handoffs >= _SHARE * seen.waits:
            return LOCK
        handed = seen.handoffs >= max(_FEWEST_HANDOFFS, _SHARE * seen.waits)
        return LOCK if handed and seen.held_s >= _HELD * min(seen.wait_s, seen.period_s) else IDLE

    def forget(self, tgid: int) -> None:
        """A process ended; its addresses may come back in another's."""
        for address in [each for each in self._seen if each[0] == tgid]:
            del self._seen[address]
