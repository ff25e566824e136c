"""The two routes that generate: from a request's body to its answer, whole or streamed."""

from __future__ import annotations

import asyncio
import math
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET

from aie_engine.answers import CHAT, TEXT, Answer, Choice, Shape, Usage, usage
from aie_engine.errors import ChatTemplateError
from aie_engine.generation import AnswerText, Generation
from aie_engine.http_errors import (
    ApiError,
    bad_request,
    body_too_slow,
    deadline_passed,
    model_not_found,
    queue_full,
    unavailable,
)
from aie_engine.ledger import Ticket
from aie_engine.loop import StoppedError
from aie_engine.plan import SamplingParams
from aie_engine.prompts import encode_prompt
from aie_engine.protocol import COMPLETION_DEFAULT_TOKENS, ChatRequest, Common, CompletionRequest, decode
from aie_engine.request import Outcome, Request, Update
from aie_engine.scheduler import QueueFullError, RequestTooLongError
from aie_engine.serving import SERVING, Model, Serving
from aie_engine.sse import SlowReaderError, SseResponse, error_event, event
from aie_engine.uploads import OverloadError

TIMEOUT_HEADER: Final = "X-Request-Timeout-Seconds"


@dataclass(frozen=True, slots=True)
class _Route:
    """What tells the two routes apart. `prompt` runs on a thread of its own; `param` is where a prompt stands in the body."""

    kind: type[Common]
    shape: Shape
    param: str
    default_tokens: Callable[[Serving], int]
    prompt: Callable[[Model, Any], Sequence[int]]


def _chat_prompt(model: Model, body: ChatRequest) -> Sequence[int]:
    if model.chat_template is None:
        raise bad_request("This model has no chat template; use /v1/completions.", "messages")
    try:
        text = model.chat_template.render(body.chat())
    except ChatTemplateError as error:
        raise bad_request(str(error), "messages") from error
    return encode_prompt(model.tokenizer, text, model.longest, allow_special=True)


def _text_prompt(model: Model, body: CompletionRequest) -> Sequence[int]:
    prompt = body.text_or_ids()
    if isinstance(prompt, str):
        return encode_prompt(model.tokenizer, prompt, model.longest, allow_special=False)
    if not all(0 <= token_id < model.tokenizer.vocab_size for token_id in prompt):
        raise bad_request(f"Token ids are 0 to {model.tokenizer.vocab_size - 1}.", "prompt")
    return prompt


_CHAT: Final = _Route(ChatRequest, CHAT, "messages", lambda serving: serving.config.max_tokens_default, _chat_prompt)
_TEXT: Final = _Route(CompletionRequest, TEXT, "prompt", lambda _: COMPLETION_DEFAULT_TOKENS, _text_prompt)


async def chat_completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await _counted(http, _CHAT)


async def completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await _counted(http, _TEXT)


async def _counted(http: web.Request, route: _Route) -> web.StreamResponse:
    """Whatever becomes of the request, it is in the ledger with exactly one outcome.

    It enters once its body is complete: until then its client decides how long it takes, and whoever is slow must neither
    take a place from others nor make the engine's latencies look bad. What fails before enters and ends at once.
    """
    serving = http.app[SERVING]
    ticket = None
    try:
        arrival = await _arrive(http, serving)
        ticket = serving.metrics.enter(time.monotonic())
        return await _answer(http, serving, arrival, ticket, route)
    except BaseException as error:
        now = time.monotonic()
        serving.metrics.ended(ticket or serving.metrics.enter(now), _outcome_of(error), now)
        raise


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, ApiError):
        return error.outcome
    if isinstance(error, web.HTTPException):  # aiohttp's own refusal: the body is too large
        return Outcome.REJECTED
    left = isinstance(error, asyncio.CancelledError | ConnectionError | SlowReaderError)
    return Outcome.CANCELLED if left else Outcome.ERROR


class _Arrival(NamedTuple):
    """A request whose body is complete. Its time, `timeout_s` until `deadline`, began with its headers."""

    model: Model
    body: bytes
    timeout_s: float
    deadline: float


async def _arrive(http: web.Request, serving: Serving) -> _Arrival:
    began_at = time.monotonic()
    model = serving.model()
    timeout_s = _timeout_s(http, serving.config.deadline_s)
    _require_place(serving, model, newcomers=1)  # before the body is read: nobody should send what is refused anyway
    body = await _body(http, serving, began_at, timeout_s)
    return _Arrival(model, body, timeout_s, began_at + timeout_s)


async def _body(http: web.Request, serving: Serving, began_at: float, timeout_s: float) -> bytes:
    body_timeout_s = serving.config.body_timeout_s
    try:
        return await serving.uploads.read(http, began_at + min(body_timeout_s, timeout_s))
    except TimeoutError:
        raise (deadline_passed(timeout_s) if timeout_s <= body_timeout_s else body_too_slow(body_timeout_s)) from None
    except OverloadError:
        raise unavailable("Too many request bodies arrive at once; this one was not complete.", "overloaded") from None
    except web.RequestPayloadError as error:
        raise bad_request("The body does not arrive as its headers (Content-Encoding, Transfer-Encoding) announce.") from error


def _require_place(serving: Serving, model: Model, *, newcomers: int) -> None:
    """Raises ApiError (429) where the engine has no place for so many requests that the ledger does not count yet."""
    counts = serving.metrics.ledger.counts()
    if counts.waiting + counts.running + newcomers > serving.config.max_requests:
        raise _queue_full(serving, model)


async def _answer(http: web.Request, serving: Serving, arrival: _Arrival, ticket: Ticket, route: _Route) -> web.StreamResponse:
    model = arrival.model
    _require_place(serving, model, newcomers=0)  # many may have sent their bodies side by side
    body = decode(arrival.body, route.kind)
    if body.model != model.name:
        raise model_not_found(body.model, model.name)
    try:
        prompt_ids = await serving.prepare(lambda: route.prompt(model, body))
    except RequestTooLongError as error:
        raise _too_long(error, route) from None
    return await _Exchange(http, serving, arrival, route, body, ticket, prompt_ids).run()


def _timeout_s(http: web.Request, longest_s: float) -> float:
    """Seconds the request may take: what its header says, but never more than the operator allows."""
    text = http.headers.get(TIMEOUT_HEADER)
    if text is None:
        return longest_s
    try:
        asked_s = float(text)
    except ValueError:
        asked_s = math.nan
    if not asked_s > 0:  # NaN too
        raise bad_request(f"{TIMEOUT_HEADER} takes a positive number of seconds.", TIMEOUT_HEADER)
    return min(asked_s, longest_s)


def _queue_full(serving: Serving, model: Model) -> ApiError:
    return queue_full(serving.config.max_requests, serving.retry_after_s(model))


def _too_long(error: RequestTooLongError, route: _Route) -> ApiError:
    return bad_request(str(error), route.param, "context_length_exceeded")


class _Exchange:
    """One request that passed all checks, and its answer."""

    def __init__(
        self,
        http: web.Request,
        serving: Serving,
        arrival: _Arrival,
        route: _Route,
        body: Common,
        ticket: Ticket,
        prompt_ids: Sequence[int],
    ) -> None:
        self._http = http
        self._serving = serving
        self._model = model = arrival.model
        self._route = route
        self._body = body
        self._id = route.shape.id_prefix + uuid.uuid4().hex
        self._created = int(time.time())
        updates: asyncio.Queue[Update] = asyncio.Queue()
        self._request = Request(
            prompt_ids=prompt_ids,
            max_tokens=self._max_tokens(len(prompt_ids)),
            sampling=_sampling(body),
            deadline=arrival.deadline,
            ticket=ticket,
            deliver=updates.put_nowait,
        )
        text = AnswerText(model.tokenizer.stream(), model.tokenizer.eos_ids, body.stop_strings())
        self._generation = Generation(model.loop, self._request, updates, text, arrival.timeout_s)

    async def run(self) -> web.StreamResponse:
        """Submits the request and answers it. Raises ApiError; whatever is raised, the model loop is rid of the request."""
        self._submit()
        try:
            return await (self._stream() if self._body.streams else self._whole())
        except BaseException as error:
            self._model.loop.end(self._request, _outcome_of(error))
            raise

    def _max_tokens(self, prompt_tokens: int) -> int:
        if prompt_tokens == 0:
            raise bad_request("The prompt is empty.", self._route.param)
        if self._body.answer_tokens is not None:
            return self._body.answer_tokens
        return max(1, min(self._route.default_tokens(self._serving), self._model.longest - prompt_tokens))

    def _submit(self) -> None:
        try:
            self._model.loop.submit(self._request)
        except QueueFullError:
            raise _queue_full(self._serving, self._model) from None
        except RequestTooLongError as error:
            raise _too_long(error, self._route) from None
        except StoppedError:
            raise unavailable("The engine is shutting down.", "shutting_down") from None

    async def _whole(self) -> web.StreamResponse:
        texts = []
        while True:
            piece = await self._generation.next_piece()
            texts.append(piece.text)
            if piece.finish_reason is not None:
                choice = self._route.shape.whole("".join(texts), piece.finish_reason)
                answer = self._wrap(self._route.shape.whole_object, [choice], self._usage(piece.tokens))
                return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def _stream(self) -> web.StreamResponse:
        sse = SseResponse(self._http, self._serving.config.write_timeout_s)
        shape = self._route.shape
        try:
            reason = None
            while reason is None:
                piece = await self._generation.next_piece()
                reason = piece.finish_reason
                choices = [] if sse.begun else list(shape.opening)
                if piece.text:
                    choices.append(shape.piece(piece.text, None))
                if reason is not None:
                    choices.append(shape.piece("", reason))
                await self._send(sse, choices)
            if self._body.wants_usage:
                await sse.send(event(self._wrap(shape.chunk_object, [], self._usage(piece.tokens))))
        except ApiError as error:
            if not sse.begun:
                raise
            self._model.loop.end(self._request, error.outcome)
            await sse.send(error_event(error.body()))
        return await sse.end()

    async def _send(self, sse: SseResponse, choices: list[Choice]) -> None:
        """One chunk for each choice, in one write."""
        no_usage_yet = None if self._body.wants_usage else UNSET
        if choices:
            await sse.send(
                b"".join(event(self._wrap(self._route.shape.chunk_object, [choice], no_usage_yet)) for choice in choices)
            )

    def _wrap(self, kind: str, choices: list[Choice], tokens: Usage | msgspec.UnsetType | None) -> Answer:
        return Answer(id=self._id, object=kind, created=self._created, model=self._model.name, choices=choices, usage=tokens)

    def _usage(self, completion_tokens: int) -> Usage:
        return usage(len(self._request.prompt_ids), completion_tokens)


def _sampling(body: Common) -> SamplingParams:
    """OpenAI's defaults; without a seed every request gets one of its own."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=random.getrandbits(63) if body.seed is None else body.seed,
    )
