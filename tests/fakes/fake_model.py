"""A model without weights: deterministic, instant, and strict about what the scheduler asks of it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from aie_engine.plan import Chunk

EOS = 256
VOCABULARY = 257
_LETTERS = b"abcdefghijklmnopqrstuvwxyz"


def next_token(history: Sequence[int]) -> int:
    """The token after `history`: end of sequence after "!", else a letter that depends on every token before."""
    if history[-1] == ord("!"):
        return EOS
    return _LETTERS[hash(tuple(history)) % len(_LETTERS)]


def continuation(prompt: Sequence[int], max_tokens: int) -> list[int]:
    """What the model answers to a prompt that has it to itself."""
    history = list(prompt)
    answer: list[int] = []
    while len(answer) < max_tokens and (not answer or answer[-1] != EOS):
        answer.append(next_token(history))
        history.append(answer[-1])
    return answer


class FakeRunner:
    """Keeps the tokens themselves in its "KV cache" and answers from there: a slot given twice or skipped changes answers.

    `gate` holds steps up while it is clear, `entered` is set while one waits or runs; `failures` are raised by the next steps.
    """

    def __init__(self, capacity: int, max_step_tokens: int) -> None:
        self._slots: list[int | None] = [None] * capacity
        self._max_step_tokens = max_step_tokens
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failures: list[Exception] = []
        self.steps: list[list[Chunk]] = []

    def execute(self, chunks: Sequence[Chunk]) -> list[int | None]:
        """One step, as `Runner.execute`."""
        self.entered.set()
        self.gate.wait()
        self.entered.clear()
        self.steps.append(list(chunks))
        if self.failures:
            raise self.failures.pop(0)
        tokens = sum(len(chunk.token_ids) for chunk in chunks)
        if not 0 < tokens <= self._max_step_tokens:
            raise ValueError(f"step of {tokens} tokens")
        return [self._compute(chunk) for chunk in chunks]

    def _compute(self, chunk: Chunk) -> int | None:
        first = chunk.kv_start + chunk.position
        self._slots[first : first + len(chunk.token_ids)] = chunk.token_ids
        history = self._slots[chunk.kv_start : first + len(chunk.token_ids)]
        known = [token for token in history if token is not None]
        if len(known) != len(history):
            raise ValueError("a chunk builds on slots that were never computed")
        return next_token(known) if chunk.sample else None


class ByteStream:
    """Decodes tokens that are bytes."""

    def push(self, token_id: int) -> str:
        """The character of one token."""
        return chr(token_id)

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""


class ByteTokenizer:
    """One token a byte; id 256 ends the sequence."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCABULARY

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def stream(self) -> ByteStream:
        """A decoder."""
        return ByteStream()


def text_of(token_ids: Sequence[int]) -> str:
    """What a client sees of an answer's tokens."""
    return "".join(chr(token_id) for token_id in token_ids if token_id != EOS)
