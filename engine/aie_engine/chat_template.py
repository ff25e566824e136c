"""Chat templates, rendered as Hugging Face renders them (transformers: utils/chat_template_utils.py).

A template comes with the model: the sandbox keeps it away from Python, and its loops over numbers and its output are bounded,
but otherwise its use of time and memory is trusted as far as the model is. The messages are not trusted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from aie_engine.errors import ChatTemplateError

MAX_TEMPLATE_CHARS = 1 << 20
MAX_OUTPUT_CHARS = 8 << 20
MAX_RANGE_TURNS = 1_000_000
"""Turns of all loops over numbers in one rendering: under a second. The sandbox bounds each range, not ranges in ranges."""


class ChatTemplate:
    """One compiled template. `render` is thread-safe."""

    def __init__(self, source: str, variables: Mapping[str, str] | None = None) -> None:
        """`variables` are what templates expect beside the messages, such as `bos_token` and `eos_token`.

        Raises ChatTemplateError when the template does not compile.
        """
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ChatTemplateError(f"chat template of {len(source)} characters, at most {MAX_TEMPLATE_CHARS}")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError, MemoryError) as error:  # brackets a thousand deep; "x" * 10**12
            raise ChatTemplateError(f"chat template does not compile: {_reason(error)}") from error
        self._variables = dict(variables or {})

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Renders messages of `role` and `content`; with `add_generation_prompt` the text ends where the answer begins.

        Raises ChatTemplateError when the template refuses the messages or writes more than MAX_OUTPUT_CHARS.
        """
        pieces: list[str] = []
        length = 0
        try:
            for piece in self._template.generate(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                tools=None,
                documents=None,
                range=_BoundedRange(),
                **self._variables,
            ):
                length += len(piece)
                if length > MAX_OUTPUT_CHARS:
                    raise ChatTemplateError(f"chat template writes more than {MAX_OUTPUT_CHARS} characters")
                pieces.append(piece)
        # A template is a program: with odd messages it fails in any of Python's ways (content of None + "\n").
        except _FAILURES as error:
            raise ChatTemplateError(f"chat template: {_reason(error)}") from error
        return "".join(pieces)

    def check(self) -> None:
        """Raises ChatTemplateError, with the first one's reason, for a template that refuses every plain conversation."""
        refusals = []
        for messages in _PLAIN_CONVERSATIONS:
            try:
                self.render(messages)
            except ChatTemplateError as error:
                refusals.append(error)
            else:
                return
        raise refusals[0]


_FAILURES: tuple[type[Exception], ...] = (
    *(jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError),
    *(RuntimeError, MemoryError),  # recursion without an end is a RuntimeError
)

# What any chat model must take. Some know no system message, others want one.
_USER = {"role": "user", "content": "Hello"}
_PLAIN_CONVERSATIONS = (
    (_USER,),
    ({"role": "system", "content": "Be brief."}, _USER),
    (_USER, {"role": "assistant", "content": "Hello."}, _USER),
)


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


class _BoundedRange:
    """Python's `range`, as long as all ranges of one rendering together are not too long."""

    def __init__(self) -> None:
        self._left = MAX_RANGE_TURNS

    def __call__(self, *limits: int) -> range:
        numbers = range(*limits)
        if len(numbers) > self._left:
            raise OverflowError(f"ranges of more than {MAX_RANGE_TURNS} numbers")
        self._left -= len(numbers)
        return numbers


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own tojson escapes HTML characters, which a model was never trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
