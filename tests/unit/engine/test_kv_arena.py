"""The KV arena: extents never overlap, nothing gets lost, and what fits is found."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_engine.kv_arena import ArenaCorruptError, KvArena


@given(
    capacity=st.integers(1, 200),
    operations=st.lists(st.tuples(st.booleans(), st.integers(1, 60), st.integers(0, 10)), max_size=80),
)
def test_extents_are_disjoint_and_conserved(capacity: int, operations: list[tuple[bool, int, int]]) -> None:
    arena = KvArena(capacity)
    taken: dict[int, int] = {}
    for reserve, tokens, choice in operations:
        if reserve:
            gap = largest_gap(taken, capacity)
            start = arena.reserve(tokens)
            # None exactly when no gap between the extents, as an oracle of its own sees them, is large enough.
            assert (start is None) == (gap < tokens)
            if start is not None:
                taken[start] = tokens
        elif taken:
            start = sorted(taken)[choice % len(taken)]
            arena.release(start)
            del taken[start]
        slots = [slot for start, tokens in taken.items() for slot in range(start, start + tokens)]
        assert len(slots) == len(set(slots))
        assert all(0 <= slot < capacity for slot in slots)
        assert arena.used == len(slots)
        assert arena.used + arena.free == capacity
        assert arena.largest_free == largest_gap(taken, capacity)
    for start in taken:
        arena.release(start)
    assert arena.reserve(capacity) == 0  # the whole again: extents were joined


def largest_gap(taken: dict[int, int], capacity: int) -> int:
    """Longest run of slots that no extent covers, counted slot by slot."""
    covered = {slot for start, tokens in taken.items() for slot in range(start, start + tokens)}
    longest = run = 0
    for slot in range(capacity):
        run = 0 if slot in covered else run + 1
        longest = max(longest, run)
    return longest


def test_the_tightest_extent_is_taken() -> None:
    arena = KvArena(100)
    first, second, third, _ = (arena.reserve(tokens) for tokens in (30, 10, 20, 40))
    assert (first, second, third) == (0, 30, 40)
    arena.release(0)
    arena.release(40)
    assert arena.reserve(15) == 40  # 20 free there, 30 at the front


def test_releasing_what_is_not_taken_is_an_error() -> None:
    arena = KvArena(10)
    start = arena.reserve(4)
    assert start is not None
    arena.release(start)
    with pytest.raises(KeyError):
        arena.release(start)
    assert arena.free == 10


@pytest.mark.parametrize("tokens", [0, -1])
def test_nothing_cannot_be_reserved(tokens: int) -> None:
    with pytest.raises(ValueError, match="reserve"):
        KvArena(10).reserve(tokens)
    with pytest.raises(ValueError, match="capacity"):
        KvArena(tokens)


def test_lost_slots_are_noticed() -> None:
    arena = KvArena(10)
    start = arena.reserve(4)
    assert start is not None
    arena._taken[start] = 3  # as a bug would
    with pytest.raises(ArenaCorruptError, match="free != 10"):
        arena.release(start)
