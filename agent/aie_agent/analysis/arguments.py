"""What is other between the arguments of two starts of one program, told without what is secret."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

_SECRET: Final = frozenset({"key", "keys", "token", "secret", "secrets", "password", "passwd", "auth", "credential", "credentials"})
"""Words in the name of an option whose value is nobody's business. `--kv-tokens` has none of them."""
_MOST: Final = 4
_MOST_CHARS: Final = 40


def options(arguments: Sequence[str]) -> dict[str, str]:
    """The options among arguments, by name, with their values ("" for none); what belongs to none, together under ""."""
    found: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if argument.startswith("-") and not _is_number(argument):
            name, _, value = argument.partition("=")
            found[name] = value
        elif name and not found[name]:
            found[name], name = argument, ""
        else:
            found[""] = f"{found.get('', '')} {argument}".strip()
    return found


def _is_number(text: str) -> bool:
    return text[1:2].isdigit()


def program(arguments: Sequence[str]) -> tuple[str, ...]:
    """What runs: the program, and of an interpreter the script, both without their directories."""
    return tuple(each.rpartition("/")[2] for each in arguments[: _program_words(arguments)])


def _program_words(arguments: Sequence[str]) -> int:
    return 2 if len(arguments) > 1 and not arguments[1].startswith("-") else 1


def different(before: Sequence[str], now: Sequence[str]) -> str:
    """The end of a sentence: "--kv-tokens 64, before 8192"; "" where nothing is other. The program itself does not count."""
    was, has = options(before[_program_words(before) :]), options(now[_program_words(now) :])
    texts = [_text(name, was, has) for name in sorted(was.keys() | has.keys()) if was.get(name) != has.get(name)]
    more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return f"{'; '.join(texts[:_MOST])}{more}"


def _text(name: str, was: Mapping[str, str], has: Mapping[str, str]) -> str:
    called = name or "what stands by itself"
    if _SECRET & set(re.split(r"[-_]", name.lower())):
        return f"{called} (its value is not shown)"
    if name not in has:
        return f"no {called}"
    value = f"{called} {_cut(has[name])}".strip()
    return f"{value}, before {_cut(was[name])}" if was.get(name) else f"{value}, new" if name not in was else value


def _cut(value: str) -> str:
    return value if len(value) <= _MOST_CHARS else f"{value[: _MOST_CHARS - 3]}..."
