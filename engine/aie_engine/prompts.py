"""Encoding of prompts whose length nobody knows yet: one that is far too long costs little more than the longest that fits."""

from __future__ import annotations

from typing import Final

from aie_engine.scheduler import RequestTooLongError
from aie_engine.serving import TextCodec

_FIRST_CHARS_PER_TOKEN: Final = 2
_GROWTH: Final = 4
"""Digits, the cheapest way to ask for too much, fail at the first look; prose that fits (4 characters a token) has one or none."""

_SEAM_TOKENS: Final = 256
"""A cut changes the tokens about the word that it goes through: room for twice the longest token known, of 128 characters."""


def encode_prompt(codec: TextCodec, text: str, longest: int, *, allow_special: bool) -> list[int]:
    """Token ids of `text`, all of them. Raises RequestTooLongError where a beginning shows them to be more than `longest`.

    Encoding takes time and memory by the character (1 MiB of digits: seconds, and hundreds of megabytes). So beginnings of the
    text come first, each longer than the one before: where one has too many tokens, so has the whole. The caller still
    has to compare: a text a little too long is returned.
    """
    chars = longest * _FIRST_CHARS_PER_TOKEN
    while chars < len(text):
        if len(codec.encode(text[:chars], allow_special=allow_special)) > longest + _SEAM_TOKENS:
            raise RequestTooLongError(f"This model takes at most {longest} tokens; the prompt alone has more.")
        chars *= _GROWTH
    return codec.encode(text, allow_special=allow_special)
