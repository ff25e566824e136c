"""Log-probabilities of an answer's tokens, in OpenAI's two forms. Pure: tokens in, structs out.

Which tokens: those that the shown text is made of, the end-of-sequence token not. A token that a stop string cuts through is
among them, what follows it is not. A token that is no whole UTF-8 character is spelled `bytes:\\xe2\\x82`, as OpenAI spells it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from aie_engine.plan import Token, TokenDetail

LEAST_LOGPROB: Final = -9999.0
"""OpenAI's figure for what is all but impossible: minus infinity is no JSON."""


class TokenSpeller(Protocol):
    """What tokens are made of: `Tokenizer`."""

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for control tokens."""
        ...

    def token_name(self, token_id: int) -> str:
        """How the vocabulary writes a token."""
        ...


class ScoredToken(NamedTuple):
    """A token of an answer, and how many characters of the answer come before it."""

    token: Token
    offset: int


class TokenTrail:
    """Holds an answer's tokens until the text that they stand for has been shown."""

    def __init__(self) -> None:
        self._waiting: deque[ScoredToken] = deque()

    def push(self, token: Token, offset: int) -> None:
        """The next token; its text begins `offset` characters after the answer's beginning."""
        self._waiting.append(ScoredToken(token, offset))

    def take_shown(self, chars: int) -> list[ScoredToken]:
        """Takes the tokens of which at least one character is among the first `chars`, and those without any before them."""
        taken = []
        while self._waiting and self._waiting[0].offset < chars:
            taken.append(self._waiting.popleft())
        return taken

    def take_all(self) -> list[ScoredToken]:
        """Takes all that are left: the answer is complete, and nothing of it was cut."""
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class Alternative(msgspec.Struct):
    """A token that might have come. `bytes` is None for control tokens."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(Alternative):
    """A token of a chat's answer, and the most likely ones in its place."""

    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct):
    """`logprobs` of a chat's choice."""

    content: list[ChatToken]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """`logprobs` of a text completion's choice. `text_offset` counts characters of the answer, the prompt not.

    `top_logprobs` also holds the chosen token, likely or not; None where only that was asked for.
    """

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


Logprobs = ChatLogprobs | TextLogprobs


def chat_logprobs(scored: Sequence[ScoredToken], speller: TokenSpeller, top: int) -> ChatLogprobs:
    """The form of /v1/chat/completions, with `top` alternatives a token. Raises ValueError for tokens without detail."""
    content = []
    for token, _ in scored:
        detail = _detail(token)
        chosen = _alternative(speller, token.id, detail.logprob)
        others = [_alternative(speller, token_id, logprob) for token_id, logprob in detail.top[:top]]
        content.append(ChatToken(chosen.token, chosen.logprob, chosen.bytes, others))
    return ChatLogprobs(content)


def text_logprobs(scored: Sequence[ScoredToken], speller: TokenSpeller, top: int) -> TextLogprobs:
    """The form of /v1/completions, with `top` alternatives a token. Raises ValueError for tokens without detail."""
    answer = TextLogprobs([], [], [] if top else None, [])
    for token, offset in scored:
        detail = _detail(token)
        spelled = spell(speller, token.id)
        answer.tokens.append(spelled)
        answer.token_logprobs.append(_finite(detail.logprob))
        answer.text_offset.append(offset)
        if answer.top_logprobs is not None:
            likely = {spell(speller, token_id): _finite(logprob) for token_id, logprob in detail.top[:top]}
            answer.top_logprobs.append(likely | {spelled: _finite(detail.logprob)})
    return answer


def spell(speller: TokenSpeller, token_id: int) -> str:
    """A token as text: what it stands for, `bytes:\\x..` where that is no UTF-8, its name where it stands for nothing."""
    raw = speller.token_bytes(token_id)
    if not raw:
        return speller.token_name(token_id)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _alternative(speller: TokenSpeller, token_id: int, logprob: float) -> Alternative:
    return Alternative(spell(speller, token_id), _finite(logprob), list(speller.token_bytes(token_id)) or None)


def _detail(token: Token) -> TokenDetail:
    if token.detail is None:
        raise ValueError(f"token {token.id} came without the detail that was asked for")
    return token.detail


def _finite(logprob: float) -> float:
    # In this order NaN stays NaN, which JSON shows as null: a broken model must not look like an unlikely token.
    return max(logprob, LEAST_LOGPROB)
