"""The two shapes of answer: a chat's and a text completion's, whole or in chunks. Pure: values in, structs out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from aie_engine.logprobs import ChatLogprobs, Logprobs, ScoredToken, TextLogprobs, TokenSpeller, chat_logprobs, text_logprobs
from aie_engine.request import FinishReason


class Usage(msgspec.Struct):
    """Token counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AnswerMessage(msgspec.Struct, omit_defaults=True):
    """A complete message, or in a stream what is new in it."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """The answer of a chat."""

    message: AnswerMessage
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None
    index: int = 0


class ChatDelta(msgspec.Struct):
    """A piece of the answer of a chat."""

    delta: AnswerMessage
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    index: int = 0


class TextChoice(msgspec.Struct):
    """The answer to a prompt, or a piece of it."""

    text: str
    finish_reason: str | None = None
    logprobs: TextLogprobs | None = None
    index: int = 0


Choice = ChatChoice | ChatDelta | TextChoice


class Answer(msgspec.Struct, kw_only=True):
    """A complete answer, or one chunk of it; `object` says which. `usage` is left out of chunks unless the client wants it."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class Shape:
    """How one route words its answers. `opening` is what a stream begins with, before there is any text.

    `logprobs` takes tokens, who can spell them, and how many alternatives are wanted; its answer is for `whole` and `piece`.
    """

    id_prefix: str
    whole_object: str
    chunk_object: str
    whole: Callable[[str, FinishReason | None, Any], Choice]
    piece: Callable[[str, FinishReason | None, Any], Choice]
    logprobs: Callable[[Sequence[ScoredToken], TokenSpeller, int], Logprobs]
    opening: tuple[Choice, ...]


def _chat_piece(text: str, reason: FinishReason | None, logprobs: ChatLogprobs | None) -> Choice:
    return ChatDelta(AnswerMessage(content=text) if text else AnswerMessage(), reason, logprobs)


CHAT = Shape(
    "chatcmpl-",
    "chat.completion",
    "chat.completion.chunk",
    whole=lambda text, reason, logprobs: ChatChoice(AnswerMessage("assistant", text), reason, logprobs),
    piece=_chat_piece,
    logprobs=chat_logprobs,
    opening=(ChatDelta(AnswerMessage("assistant", "")),),
)
TEXT = Shape(
    "cmpl-",
    "text_completion",
    "text_completion",
    whole=TextChoice,
    piece=TextChoice,
    logprobs=text_logprobs,
    opening=(),
)


def usage(prompt_tokens: int, completion_tokens: int) -> Usage:
    """OpenAI's token counts."""
    return Usage(prompt_tokens, completion_tokens, prompt_tokens + completion_tokens)
