"""The response cache by itself: exact keys, whole answers, and a bound in bytes that memory really keeps."""

from __future__ import annotations

import tracemalloc
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_engine import response_cache
from aie_engine.plan import Token, TokenDetail
from aie_engine.request import FinishReason
from aie_engine.response_cache import ENTRY_BYTES, ResponseCache, Stored, cache_key

ANSWER = Stored([Token(1), Token(2)], FinishReason.LENGTH)
REQUEST = ("rev", (1, 2, 3), 8, ("a", "b"), None)


@pytest.mark.parametrize(
    "other",
    [
        ("rev2", (1, 2, 3), 8, ("a", "b"), None),
        ("rev", (1, 2), 8, ("a", "b"), None),
        ("rev", (1, 2, 4), 8, ("a", "b"), None),
        ("rev", (1, 2, 3), 9, ("a", "b"), None),
        ("rev", (1, 2, 3), 8, ("ab",), None),
        ("rev", (1, 2, 3), 8, ("b", "a"), None),
        ("rev", (1, 2, 3), 8, ("a", "b"), 0),
        ("rev", (1, 2, 3), 8, ("a", "b"), 5),
    ],
)
def test_whatever_an_answer_depends_on_is_in_its_key(other: tuple[str, tuple[int, ...], int, tuple[str, ...], int | None]) -> None:
    cache = ResponseCache(10_000)
    cache.put(cache_key(*REQUEST), ANSWER)
    assert cache.get(cache_key(*other)) is None
    assert cache.get(cache_key("rev", [1, 2, 3], 8, ["a", "b"], None)) == ANSWER  # lists or tuples: the same request
    assert cache.stats[:2] == (2, 1)


_details = st.builds(
    TokenDetail,
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.floats(allow_nan=False),
    st.lists(st.tuples(st.integers(0, 2**31), st.floats(allow_nan=False)), max_size=3).map(tuple),
)
_tokens = st.builds(Token, st.integers(0, 2**31), st.none() | _details)


@given(st.lists(_tokens, min_size=1, max_size=5), st.sampled_from(FinishReason))
def test_an_answer_comes_back_as_it_was(tokens: list[Token], reason: FinishReason) -> None:
    cache = ResponseCache(100_000)
    cache.put(b"key", Stored(tokens, reason))
    back = cache.get(b"key")
    assert back == Stored(tokens, reason)
    assert back is not None
    assert isinstance(back.tokens[0], Token)
    assert type(back.finish_reason) is FinishReason


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans(), st.integers(1, 400)), max_size=60))
def test_the_one_longest_unasked_for_goes_first(calls: list[tuple[int, bool, int]]) -> None:
    """Against a model that keeps whole answers in order of their last use."""
    limit = 3 * ENTRY_BYTES + 600
    cache = ResponseCache(limit)
    model: OrderedDict[bytes, tuple[Stored, int]] = OrderedDict()
    for name, is_put, length in calls:
        key = b"%d" % name
        if is_put:
            answer = Stored([Token(1)] * length, FinishReason.STOP)
            alone = ResponseCache(1 << 30)
            alone.put(key, answer)
            size = alone.stats.held_bytes
            assert size >= ENTRY_BYTES + length
            cache.put(key, answer)
            if size <= limit:
                model.pop(key, None)
                model[key] = (answer, size)
                while sum(held for _, held in model.values()) > limit:
                    model.popitem(last=False)
        else:
            known = model.get(key)
            assert cache.get(key) == (known and known[0])
            if known:
                model.move_to_end(key)
        assert cache.stats.held_bytes == sum(held for _, held in model.values()) <= limit


def test_an_answer_larger_than_the_cache_drives_nothing_out() -> None:
    cache = ResponseCache(1_000)
    cache.put(b"small", ANSWER)
    cache.put(b"large", Stored([Token(1)] * 2_000, FinishReason.LENGTH))
    assert cache.get(b"large") is None
    assert cache.get(b"small") == ANSWER


@pytest.mark.parametrize("tokens", [1, 100, 5_000])
def test_the_bound_is_one_of_memory(tokens: int) -> None:
    """Python's own count of the memory that the cache holds, small answers and large ones."""
    limit = 2_000_000
    cache = ResponseCache(limit)

    def put(index: int) -> None:
        detail = TokenDetail(-0.5, 1.0, 2.0, ((index, -0.5),))
        key = cache_key("rev", list(range(index, index + tokens)), 8, (), 1)
        cache.put(key, Stored([Token(1, detail)] * tokens, FinishReason.LENGTH))

    tracemalloc.start()
    try:
        put(0)
        entries = limit // cache.stats.held_bytes
        for index in range(1, 2 * entries):
            put(index)
        # Threads of other tests allocate meanwhile: only what the cache and this test did.
        ours = [tracemalloc.Filter(True, file) for file in (__file__, response_cache.__file__)]
        held = sum(each.size for each in tracemalloc.take_snapshot().filter_traces(ours).statistics("filename"))
    finally:
        tracemalloc.stop()
    assert 0.8 * limit < cache.stats.held_bytes <= limit
    assert 0.4 * limit < held <= limit
