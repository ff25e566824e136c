"""Accounting of the KV cache's token slots. Knows no tensors: a sequence owns one contiguous extent of slots."""

from __future__ import annotations

from bisect import bisect_left, insort


class ArenaCorruptError(RuntimeError):
    """The arena's books do not add up; whoever sees this has found a bug, and no extent may be trusted any more."""


class KvArena:
    """Hands out contiguous extents of `capacity` token slots.

    Invariant, checked after every change: `used + free == capacity`. The two sides are kept apart on purpose (`used` from
    what was handed out, `free` from the free list), so that a slot that gets lost or is given twice shows up at once.
    """

    def __init__(self, capacity: int) -> None:
        """Raises ValueError for a capacity below one token."""
        if capacity < 1:
            raise ValueError(f"KV capacity of {capacity} tokens")
        self.capacity = capacity
        self._taken: dict[int, int] = {}
        self._free = [(0, capacity)]  # (start, tokens), ascending, never adjacent

    @property
    def used(self) -> int:
        """Token slots handed out and not released."""
        return sum(self._taken.values())

    @property
    def free(self) -> int:
        """Token slots that nobody owns. They need not be contiguous."""
        return sum(tokens for _, tokens in self._free)

    @property
    def largest_free(self) -> int:
        """Tokens of the largest extent that could be reserved now."""
        return max((tokens for _, tokens in self._free), default=0)

    def reserve(self, tokens: int) -> int | None:
        """Takes an extent of `tokens` slots and returns its first slot, or None while no free extent is that large.

        Best fit: the smallest extent that holds it, the lowest one among equals, which keeps large extents whole for large
        requests. Raises ValueError for less than one token.
        """
        if tokens < 1:
            raise ValueError(f"cannot reserve {tokens} tokens")
        fitting = [(length, start) for start, length in self._free if length >= tokens]
        if not fitting:
            return None
        length, start = min(fitting)
        index = bisect_left(self._free, (start, length))
        self._free[index : index + 1] = [(start + tokens, length - tokens)] if length > tokens else []
        self._taken[start] = tokens
        self._check()
        return start

    def release(self, start: int) -> None:
        """Gives back the extent that begins at `start`. Raises KeyError when no extent that begins there is taken."""
        tokens = self._taken.pop(start)
        insort(self._free, (start, tokens))
        self._free = _coalesced(self._free)
        self._check()

    def _check(self) -> None:
        if self.used + self.free != self.capacity:
            raise ArenaCorruptError(f"{self.used} used + {self.free} free != {self.capacity} token slots")


def _coalesced(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Joins neighbours. Raises ArenaCorruptError where extents overlap."""
    joined: list[tuple[int, int]] = []
    for start, tokens in extents:
        end = joined[-1][0] + joined[-1][1] if joined else -1
        if start < end:
            raise ArenaCorruptError(f"slot {start} is free twice")
        if start == end:
            joined[-1] = (joined[-1][0], joined[-1][1] + tokens)
        else:
            joined.append((start, tokens))
    return joined
