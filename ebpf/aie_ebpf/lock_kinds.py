"""Whether threads that wait on an address fight for a lock or have nothing to do: by who wakes them (programs/locks.bpf.c)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

GIL: Final = "gil"
LOCK: Final = "lock"
IDLE: Final = "idle"

# Of the waits of a fight, all but the first end by a hand-off. A pool whose workers also feed its queue has some, too.
_SHARE: Final = 0.5
_FEWEST_HANDOFFS: Final = 2.0
# What was seen before counts half after this many readings (one a second).
_HALF_LIFE: Final = 10.0
_KEEP: Final = 0.5 ** (1 / _HALF_LIFE)
_ADDRESSES: Final = 8192

Address = tuple[int, int]
"""A process's tgid, and an address in it."""


class LockKinds:
    """Remembers of the addresses seen last how their waits ended."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Address, tuple[float, float]] = OrderedDict()

    def note(self, address: Address, waits: int, handoffs: int) -> None:
        """What happened at an address since the reading before."""
        before_waits, before_handoffs = self._seen.pop(address, (0.0, 0.0))
        self._seen[address] = (before_waits * _KEEP + waits, before_handoffs * _KEEP + handoffs)
        if len(self._seen) > _ADDRESSES:
            self._seen.popitem(last=False)

    def kind(self, address: Address) -> str:
        """LOCK or IDLE. An address at which nothing has ended yet is IDLE: so is a lock that is never given back, where the
        processes' state and their stacks tell more."""
        waits, handoffs = self._seen.get(address, (0.0, 0.0))
        return LOCK if handoffs >= max(_FEWEST_HANDOFFS, _SHARE * waits) else IDLE

    def forget(self, tgid: int) -> None:
        """A process ended; its addresses may come back in another's."""
        for address in [each for each in self._seen if each[0] == tgid]:
            del self._seen[address]
