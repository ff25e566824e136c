"""Encoding of prompts whose length nobody knows yet: one that is far too long costs little more than the longest that fits."""

from __future__ import annotations

from typing import Final

from aie_engine.scheduler import RequestTooLongError
from aie_engine.serving import TextCodec

_CHARS_PER_TOKEN: Final = 8
"""More than prose has in any language, so that a prompt which fits is almost always encoded once and whole."""

_SEAM_TOKENS: Final = 256
"""A cut changes the tokens of the word that it goes through (the longest known token has 128 characters), no others."""


def encode_prompt(codec: TextCodec, text: str, longest: int, *, allow_special: bool) -> list[int]:
    """Token ids of `text`, all of them. Raises RequestTooLongError where they are certainly more than `longest`.

    Encoding takes time and memory by the character (1 MiB of digits: seconds, and hundreds of megabytes). So beginnings of the
    text come first, each twice as long as the one before: where one has too many tokens, so has the whole. The caller still
    has to compare: a text a little too long is returned.
    """
    chars = longest * _CHARS_PER_TOKEN
    while chars < len(text):
        if len(codec.encode(text[:chars], allow_special=allow_special)) > longest + _SEAM_TOKENS:
            raise RequestTooLongError(f"This model takes at most {longest} tokens; the prompt alone has more.")
        chars *= 2
    return codec.encode(text, allow_special=allow_special)
