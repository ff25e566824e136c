"""What is other between the arguments of two starts of one program, told without what is secret.

Anything may be a secret: a value is shown only where its option is known, and what stands there is of the kind that it takes; or
where it is a plain number or one of a few words that cannot be one. Of all others it is told that they changed.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from aie_agent.secret_words import is_option, smells

_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,12}(\.[0-9]{1,9})?([kKmMgGtT]i?[bB]?|%|[smhd])?")
"""What is no secret by itself: sizes, counts, shares, times. A password of digits is known by its option."""

_WORDS: Final = frozenset(
    {"true", "false", "on", "off", "yes", "no", "none", "null", "auto", "default", "debug", "info", "warning", "error"}
    | {"cpu", "cuda", "half", "float", "float16", "float32", "bfloat16", "fp8", "fp16", "fp32", "bf16", "int8", "int4", "fp8_e4m3"}
    | {"fp8_e5m2", "awq", "gptq", "gguf", "bitsandbytes", "eager", "spawn", "fork", "ray", "mp", "fcfs", "priority", "serve"}
)

_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]{1,80}")
"""Names, folders and addresses of a host; neither a URL with a user nor text with blanks."""

_KNOWN: Final = frozenset(
    {
        "model",
        "model-path",
        "served-model-name",
        "tokenizer",
        "tokenizer-path",
        "revision",
        "dtype",
        "quantization",
        "kv-cache-dtype",
    }
    | {"device", "load-format", "host", "chat-template", "attention-backend", "distributed-executor-backend", "schedule-policy"}
    | {"guided-decoding-backend", "reasoning-parser", "tool-call-parser", "speculative-model", "draft-model", "canary-every"}
    | {"memory-probe", "log-level", "lora-path", "engine-name"}
)
"""Options of engines whose values are names, in the spelling of `_plain_name`."""

_HIDDEN: Final = "#"
"""Before the hash of a value that is not kept. The salt lies beside it, in the state on disk."""

_MOST: Final = 4
_MOST_CHARS: Final = 40


def new_salt() -> str:
    """For `without_secrets`: hashes of values that can be guessed must not be comparable between hosts."""
    return secrets.token_hex(8)


@lru_cache(maxsize=512)
def without_secrets(arguments: tuple[str, ...], salt: str) -> tuple[str, ...]:
    """The same, with a hash in place of each value that may not be shown: so it can be kept, and compared, and tells nothing. The
    program's words are cut to their names. What is hidden already stays as it is."""
    count = _program_words(arguments)
    words = [each.rpartition("/")[2] for each in arguments[:count]]
    kept, name = [_first_word(each) for each in words[:1]] + [_kept_word(words[0], each, salt) for each in words[1:]], ""
    for argument in arguments[count:]:
        if is_option(argument):
            name, equals, value = argument.partition("=")
            kept.append(f"{name}={_safe(name, value, salt)}" if equals else name)
            name = "" if equals and not smells(name) else name
        else:
            kept.append(_safe(name, argument, salt))
            name = name if smells(name) else ""
    return tuple(kept)


def _first_word(text: str) -> str:
    """A process may write what it likes into its first argument: what stands behind a blank is no name."""
    return text.split(" ", 1)[0]


def _kept_word(program_name: str, word: str, salt: str) -> str:
    """The second word names what runs if the first is an interpreter; else it may be anything."""
    return word if _INTERPRETER.fullmatch(program_name) else _safe("", word, salt)


def _safe(name: str, value: str, salt: str) -> str:
    if not value or value.startswith(_HIDDEN) or _is_shown(name, value):
        return value
    return _HIDDEN + hashlib.sha256(f"{salt} {value}".encode()).hexdigest()[:12]


def _is_shown(name: str, value: str) -> bool:
    if smells(name):
        return False
    if _NUMBER.fullmatch(value) or value.lower() in _WORDS:
        return True
    return _plain_name(name) in _KNOWN and _PLAIN.fullmatch(value) is not None


def _plain_name(name: str) -> str:
    return name.lstrip("-").replace("_", "-").lower()


_INTERPRETER: Final = re.compile(r"(python|pypy)[0-9.]*|bash|sh|node|java|ruby|perl")


def options(arguments: Sequence[str]) -> dict[str, str]:
    """The options among arguments, by name, with all their values ("" for none); what belongs to none, together under ""."""
    found: dict[str, str] = {}
    name = ""
    for argument in arguments:
        if is_option(argument):
            name, equals, value = argument.partition("=")
            found[name] = f"{found.get(name, '')} {value}".strip()
            name = "" if equals and not smells(name) else name
        elif name and (not found[name] or smells(name)):
            found[name] = f"{found[name]} {argument}".strip()
            name = name if smells(name) else ""
        else:
            found[""] = f"{found.get('', '')} {argument}".strip()
    return found


def program(arguments: Sequence[str]) -> tuple[str, ...]:
    """What runs: the program, and of an interpreter of any version the script or module, without their directories. Nothing for
    code that stands among the arguments, as that of workers does: it is another at each start."""
    if not arguments or "--multiprocessing-fork" in arguments:
        return ()
    names = [each.rpartition("/")[2] for each in arguments[: _program_words(arguments)]]
    if not _INTERPRETER.fullmatch(names[0]):
        return tuple(names)
    return (names[0].rstrip("0123456789."), *names[1:]) if len(names) > 1 else ()


def _program_words(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        return len(arguments)
    if arguments[1] == "-m" and len(arguments) > 2:
        return 3
    return 1 if arguments[1].startswith("-") or not _WORD.fullmatch(arguments[1]) else 2


_WORD: Final = re.compile(r"#?[A-Za-z0-9._/-]{1,200}")


def nearest(before: Sequence[tuple[str, ...]], now: tuple[str, ...]) -> tuple[str, ...]:
    """Of several starts the one that is least other."""
    return min(before, key=lambda each: len(set(each) ^ set(now)))


def different(before: Sequence[str], now: Sequence[str], salt: str = "") -> str:
    """The end of a sentence: "--kv-tokens 64, before 8192"; "" where nothing is other. The program itself does not count."""
    safe = [without_secrets(tuple(each), salt) for each in (before, now)]
    was, has = (options(each[_program_words(each) :]) for each in safe)
    texts = [_text(name, was, has) for name in sorted(was.keys() | has.keys()) if was.get(name) != has.get(name)]
    more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
    return f"{'; '.join(texts[:_MOST])}{more}"


def _text(name: str, was: Mapping[str, str], has: Mapping[str, str]) -> str:
    called = name or "what stands by itself"
    if name not in has:
        return f"no {called}"
    if _HIDDEN in has[name] or _HIDDEN in was.get(name, ""):
        return f"{called} {'changed' if name in was else 'is new'} (its value is not shown)"
    value = f"{called} {_cut(has[name])}".strip()
    return f"{value}, before {_cut(was[name])}" if was.get(name) else f"{value}, new" if name not in was else value


def _cut(value: str) -> str:
    return value if len(value) <= _MOST_CHARS else f"{value[: _MOST_CHARS - 3]}..."
