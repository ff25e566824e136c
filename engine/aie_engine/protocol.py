"""What the OpenAI routes take: decoding, checks, and errors that name the parameter.

Fields that we do not know are passed over, as OpenAI's servers do. Options that we know and do not support are refused as
soon as they would change the answer: ignoring them would be a silent lie.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from aie_engine.http_errors import ApiError, bad_request

MAX_STOP_STRINGS: Final = 4
MAX_STOP_CHARS: Final = 1_000
COMPLETION_DEFAULT_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` on /v1/completions."""

# The most that msgpack can say, in which requests are keys of the response cache, lies just above.
_Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_ROLES: Final = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class TextPart(Struct):
    """A part of a message's content. Only `type` "text" is supported."""

    type: str
    text: str | None = None


class Message(Struct):
    """One message of a chat."""

    role: str
    content: str | list[TextPart] | None = None


class StreamOptions(Struct):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class Common(Struct, kw_only=True):
    """What both routes share. `None` is what a client sends that means "the default"."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_tokens: _Positive | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n: Any = None
    best_of: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    logit_bias: Any = None
    presence_penalty: Any = None
    frequency_penalty: Any = None
    repetition_penalty: Any = None
    response_format: Any = None
    modalities: Any = None
    audio: Any = None
    echo: Any = None
    suffix: Any = None
    top_k: Any = None
    min_p: Any = None
    min_tokens: Any = None
    ignore_eos: Any = None

    @property
    def streams(self) -> bool:
        """Whether the answer is streamed."""
        return bool(self.stream)

    @property
    def wants_usage(self) -> bool:
        """Whether a streamed answer ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def answer_tokens(self) -> int | None:
        """Most tokens of the answer; None when the client leaves that to us."""
        return self.max_tokens

    @property
    def alternatives(self) -> int | None:
        """How many of the most likely tokens each token's log-probability comes with; None where none is wanted."""
        raise NotImplementedError

    def check(self) -> None:
        """Raises ApiError (400) for options that do not go together on this route."""

    def stop_strings(self) -> tuple[str, ...]:
        """The stop strings, checked."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(Common, kw_only=True):
    """Body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: _Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None

    @property
    def answer_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    def check(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise bad_request("`top_logprobs` is only allowed when `logprobs` is true.", "top_logprobs")

    def chat(self) -> list[dict[str, str]]:
        """The messages as a chat template takes them: role and text."""
        return [_message(message, f"messages[{index}]") for index, message in enumerate(self.messages)]


class CompletionRequest(Common, kw_only=True):
    """Body of POST /v1/completions. A prompt is a text or token ids."""

    prompt: str | list[str | int | list[int]]
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    top_logprobs: Any = None

    @property
    def alternatives(self) -> int | None:
        return self.logprobs

    def check(self) -> None:
        if self.top_logprobs:
            raise bad_request(
                "`top_logprobs` belongs to chats; here `logprobs` is a number.", "top_logprobs", "unsupported_parameter"
            )

    def text_or_ids(self) -> str | list[int]:
        """The one prompt. Raises ApiError for several prompts and for a list of mixed things."""
        if isinstance(self.prompt, str):
            return self.prompt
        if self.prompt and all(isinstance(item, int) for item in self.prompt):
            return [item for item in self.prompt if isinstance(item, int)]
        if len(self.prompt) == 1:
            (only,) = self.prompt
            if isinstance(only, str | list):
                return only
        raise bad_request("One prompt is taken: a string, or an array of token ids.", "prompt")


# Option -> the values that leave the answer as it is. Everything else about it is refused.
_NEUTRAL: Final[Mapping[str, Sequence[object]]] = {
    "n": (1,),
    "best_of": (1,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "audio": (),
    "echo": (False,),
    "suffix": ("",),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
}

_R = TypeVar("_R", bound=Common)
_PATH: Final = re.compile(r"^(?P<what>.*?)(?: - at `\$\.?(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING: Final = re.compile(r"missing required field `(?P<field>[^`]+)`")


def decode(body: bytes, kind: type[_R]) -> _R:
    """Decodes and checks a request's body. Raises ApiError (400) with the name of what is wrong."""
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from error
    except RecursionError as error:
        raise bad_request("The body is nested too deeply.") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise bad_request(f"The body is not valid JSON: {error}") from error
    _refuse_unsupported(request)
    _check_stops(request.stop_strings())
    request.check()
    if request.stream_options is not None and not request.streams:
        raise bad_request("`stream_options` is only allowed when `stream` is true.", "stream_options")
    return request


def _invalid(text: str) -> ApiError:
    """Turns msgspec's message ("Expected `int` >= 1 - at `$.max_tokens`") into OpenAI's form."""
    match = _PATH.match(text)
    what, path = (match["what"], match["path"] or "") if match else (text, "")
    missing = _MISSING.search(what)
    if missing:
        path = f"{path}.{missing['field']}" if path else missing["field"]
        return bad_request(f"Missing required parameter: `{path}`.", path)
    return bad_request(f"Invalid value of `{path}`: {what}." if path else f"Invalid body: {what}.", path or None)


def _refuse_unsupported(request: Common) -> None:
    for name, neutral in _NEUTRAL.items():
        value = getattr(request, name)
        if value is not None and not any(_same(value, accepted) for accepted in neutral):
            raise bad_request(f"`{name}` is not supported by this engine; leave it out.", name, "unsupported_parameter")


def _same(value: object, accepted: object) -> bool:
    # JSON's false is not its 0, though Python finds them equal.
    return isinstance(value, bool) == isinstance(accepted, bool) and value == accepted


def _check_stops(stops: Sequence[str]) -> None:
    if len(stops) > MAX_STOP_STRINGS:
        raise bad_request(f"At most {MAX_STOP_STRINGS} stop strings, not {len(stops)}.", "stop")
    for stop in stops:
        if not 0 < len(stop) <= MAX_STOP_CHARS:
            raise bad_request(f"A stop string has 1 to {MAX_STOP_CHARS} characters, not {len(stop)}.", "stop")


def _message(message: Message, where: str) -> dict[str, str]:
    if message.role not in _ROLES:
        raise bad_request(f"`{message.role:.40}` is none of {', '.join(_ROLES)}.", f"{where}.role")
    if message.content is None:
        raise bad_request("A message needs content.", f"{where}.content")
    if isinstance(message.content, str):
        return {"role": _ROLES[message.role], "content": message.content}
    texts = []
    for index, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise bad_request("Only text is taken: {'type': 'text', 'text': ...}.", f"{where}.content[{index}]")
        texts.append(part.text)
    return {"role": _ROLES[message.role], "content": "".join(texts)}
