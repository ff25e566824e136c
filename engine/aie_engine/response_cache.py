"""Answers to requests that can have only one: greedy requests, matched exactly, as many as a number of bytes holds.

What is kept is the tokens, not the text: a hit goes the way of every other answer, so that whole, streamed, cut and counted
it is the same. The answer of a model to the same prompt may still depend, in its last bits, on who shared the batch; the first
that was complete is the one that stays. Two equal requests at once both compute: neither waits for the other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from aie_engine.plan import Token
from aie_engine.request import FinishReason

ENTRY_BYTES: Final = 320
"""What an entry costs besides its key and its answer: two byte objects' heads, and its place in the dictionary."""


class CacheStats(NamedTuple):
    """What the cache has done since the start, and the bytes that it holds now."""

    queries: int
    hits: int
    held_bytes: int


class Stored(NamedTuple):
    """One complete answer, the end-of-sequence token included."""

    tokens: list[Token]
    finish_reason: FinishReason


_decoder: Final = msgspec.msgpack.Decoder(Stored)


def cache_key(revision: str, prompt_ids: Sequence[int], max_tokens: int, stops: Sequence[str], alternatives: int | None) -> bytes:
    """Everything that a greedy answer of one model depends on. Equal keys mean equal requests: nothing is hashed away."""
    return _packed((revision, prompt_ids, max_tokens, stops, alternatives))


class ResponseCache:
    """At most `max_bytes` of keys and answers; what was not asked for the longest goes first. For one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held_bytes = 0
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._queries = 0
        self._hits = 0

    @property
    def stats(self) -> CacheStats:
        """The counters."""
        return CacheStats(self._queries, self._hits, self._held_bytes)

    def get(self, key: bytes) -> Stored | None:
        """The answer stored under `key`, or None."""
        self._queries += 1
        packed = self._answers.get(key)
        if packed is None:
            return None
        self._hits += 1
        self._answers.move_to_end(key)
        return _decoder.decode(packed)

    def put(self, key: bytes, answer: Stored) -> None:
        """Keeps a complete answer. One that alone exceeds the limit is not kept, and drives nothing out."""
        packed = _packed(answer)
        size = _size(key, packed)
        if size > self._max_bytes:
            return
        self._forget(key)
        self._answers[key] = packed
        self._held_bytes += size
        while self._held_bytes > self._max_bytes:
            self._forget(next(iter(self._answers)))

    def clear(self) -> None:
        """Forgets all answers; the counters go on."""
        self._answers.clear()
        self._held_bytes = 0

    def _forget(self, key: bytes) -> None:
        packed = self._answers.pop(key, None)
        if packed is not None:
            self._held_bytes -= _size(key, packed)


def _packed(value: object) -> bytes:
    # msgspec's own bytes keep the whole buffer that they were written into, up to half as much again. A copy is as long as it says.
    return bytes(memoryview(msgspec.msgpack.encode(value)))


def _size(key: bytes, packed: bytes) -> int:
    return len(key) + len(packed) + ENTRY_BYTES
