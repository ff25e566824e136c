"""A model without weights: deterministic, instant, and strict about what the scheduler asks of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence

from aie_engine.plan import Chunk, Token, TokenDetail

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

    `hold` makes steps wait, until `release`; `failures` are raised by the next steps; `steps` are the chunks of all that ran.
    """

    def __init__(self, capacity: int, max_step_tokens: int) -> None:
        self._slots: list[int | None] = [None] * capacity
        self._max_step_tokens = max_step_tokens
        self._change = threading.Condition()
        self._hold_at: int | None = None
        self._waiting = False
        self.failures: list[Exception] = []
        self.steps: list[list[Chunk]] = []

    def execute(self, chunks: Sequence[Chunk]) -> list[Token | None]:
        """One step, as `Runner.execute`."""
        with self._change:
            self._waiting = True
            self._change.notify_all()
            self._change.wait_for(lambda: self._hold_at is None or len(self.steps) < self._hold_at)
            self._waiting = False
            self.steps.append(list(chunks))
        if self.failures:
            raise self.failures.pop(0)
        tokens = sum(len(chunk.token_ids) for chunk in chunks)
        if not 0 < tokens <= self._max_step_tokens:
            raise ValueError(f"step of {tokens} tokens")
        return [self._compute(chunk) for chunk in chunks]

    def hold(self, after_steps: int = 0) -> None:
        """Lets so many more steps run; the next one waits."""
        with self._change:
            self._hold_at = len(self.steps) + after_steps

    def release(self) -> None:
        """Lets steps run."""
        with self._change:
            self._hold_at = None
            self._change.notify_all()

    def wait_until_held(self, timeout_s: float = 60.0) -> None:
        """Returns once a step waits. Raises TimeoutError."""
        with self._change:
            if not self._change.wait_for(lambda: self._waiting and self._hold_at == len(self.steps), timeout_s):
                raise TimeoutError("no step was begun")

    def _compute(self, chunk: Chunk) -> Token | None:
        first = chunk.kv_start + chunk.position
        self._slots[first : first + len(chunk.token_ids)] = chunk.token_ids
        history = self._slots[chunk.kv_start : first + len(chunk.token_ids)]
        known = [token for token in history if token is not None]
        if len(known) != len(history):
            raise ValueError("a chunk builds on slots that were never computed")
        return token_after(known, chunk.sampling.detail) if chunk.sample else None


def token_after(history: Sequence[int], detail: int | None) -> Token:
    """The token after `history`, with as much of its distribution as is asked for: the probabilities of fixed ranks.

    The most likely token is the chosen one, then come the ids after it, modulo the vocabulary.
    """
    chosen = next_token(history)
    if detail is None:
        return Token(chosen)
    top = tuple(((chosen + rank) % VOCABULARY, logprob_of_rank(rank)) for rank in range(detail))
    return Token(chosen, TokenDetail(logprob_of_rank(0), 1.0, 2.0, top))


def logprob_of_rank(rank: int) -> float:
    """Halves from rank to rank: 1/2, 1/4, 1/8 and so on."""
    return -math.log(2) * (rank + 1)


class ByteStream:
    """Decodes tokens that are bytes, each to `width` times its character."""

    def __init__(self, width: int = 1) -> None:
        self._width = width

    def push(self, token_id: int) -> str:
        """The text of one token."""
        return chr(token_id) * self._width

    def finish(self) -> str:
        """Nothing is ever held back."""
        return ""


class ByteTokenizer:
    """One token a byte; id 256 ends the sequence. Answers may be made `width` times as long as their tokens."""

    eos_ids = frozenset({EOS})
    vocab_size = VOCABULARY

    def __init__(self, width: int = 1) -> None:
        self._width = width

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """The bytes of `text`."""
        return list(text.encode())

    def stream(self) -> ByteStream:
        """A decoder."""
        return ByteStream(self._width)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token's text has; none for the end of the sequence."""
        return (chr(token_id) * self._width).encode() if token_id != EOS else b""

    def token_name(self, token_id: int) -> str:
        """A name for the one token without text."""
        return "<eos>" if token_id == EOS else chr(token_id)


def text_of(token_ids: Sequence[int]) -> str:
    """What a client sees of an answer's tokens."""
    return "".join(chr(token_id) for token_id in token_ids if token_id != EOS)
