"""What of a command line may not be shown: values of options whose names smell of a secret, and what looks like a key by itself."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MASK: Final = "***"

_SECRET: Final = re.compile(r"key|token(?!s|iz)|secret|pass|pwd|auth|cred|cookie|bearer|header|(^|-)pw?$|(^|-)pin$", re.IGNORECASE)
"""In the name of an option: even a number is nobody's business then. `--kv-tokens` and `--tokenizer` have none of them."""

_OPTION: Final = re.compile(r"--[A-Za-z][A-Za-z0-9_.-]{0,60}|-[A-Za-z]|-(tp|dp|pp|ep|ngl|ctk|ctv|np|cb|fa|sm|ts|mg)")

_GIVEN: Final = re.compile(
    r"(?P<name>[A-Za-z_][\w.-]*)"
    r"""(?:(?P<colon>:\ +)(?P<rest>[^"']+)|(?P<sign>["']?\s*[=:]\s*)(?P<value>"[^"]*"?|'[^']*'?|[^\s&"']+))"""
)
"""A name and its value within one argument: `--x=v`, `X=v`, `"x": "v"`, `?x=v&y=w`; in `x: v w`, all the rest."""

_USER: Final = re.compile(r"(?<=://)(?:[^/\s?#]*|[^\s@:/]*:\S*)@")
_SHAPES: Final = re.compile(
    r"\b(sk-[A-Za-z0-9_-]{12,}|hf_[A-Za-z0-9]{16,}|gh[opsur]_[A-Za-z0-9]{16,}|eyJ[A-Za-z0-9_.-]{16,})|(?<=[Bb]earer )\S+"
)
"""Keys of services, by how they begin; and what stands behind "Bearer"."""


def smells(name: str) -> bool:
    """Whether what an option or a variable of this name holds may be a secret."""
    return _SECRET.search(name.lstrip("-").replace("_", "-")) is not None


def is_option(argument: str) -> bool:
    """Whether it names an option: `--password:x` does not, and is a value; nor does `-sk-...`, a key behind its option."""
    return _OPTION.fullmatch(argument.partition("=")[0]) is not None


def masked(arguments: Sequence[str]) -> list[str]:
    """The same, with `***` in place of what is behind options that smell (all of it, up to the next option), of such values within
    an argument, of the user of a URL, and of what looks like a key. A command in one argument (`bash -c`, a title that a process
    gave itself) is gone through word by word."""
    shown: list[str] = []
    is_behind = False
    for argument in arguments:
        if is_behind and not is_option(argument):
            shown.append(MASK)
            continue
        words = argument.split(" ")
        if len(words) > 1:
            shown.append(_within(" ".join(_words(words))))
            is_behind = False
        else:
            shown.append(_within(argument))
            is_behind = _opens(argument)
    return shown


def _opens(word: str) -> bool:
    """Whether the words behind it are its values, and smell. One letter may be anything, most often a port."""
    return is_option(word) and "=" not in word and len(word) > 2 and smells(word)


def _words(words: Sequence[str]) -> list[str]:
    shown: list[str] = []
    is_behind = False
    for word in words:
        if is_behind and not is_option(word):
            shown.append(MASK if word else word)
        else:
            shown.append(word)
            is_behind = _opens(word)
    return shown


def _within(argument: str) -> str:
    """Of one argument."""
    hidden = _GIVEN.sub(_given, _USER.sub(f"{MASK}@", argument))
    return _SHAPES.sub(MASK, hidden)


def _given(match: re.Match[str]) -> str:
    name, sign, value = match["name"], match["sign"] or match["colon"], match["value"] or match["rest"]
    if not smells(name):
        return match[0] if not _GIVEN.search(value) else f"{name}{sign}{_GIVEN.sub(_given, value)}"
    quote = value[0] if value[0] in "\"'" else ""
    return f"{name}{sign}{quote}{MASK}{quote}"
