"""The two routes that generate: from a request's body to its answer, whole or streamed."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Final

from aiohttp import web

from aie_engine.answers import CHAT, TEXT
from aie_engine.errors import ChatTemplateError
from aie_engine.exchange import Arrival, Exchange, Route, no_place, too_long
from aie_engine.http_errors import (
    QUEUE_FULL,
    ApiError,
    bad_request,
    body_too_slow,
    deadline_passed,
    model_not_found,
    outcome_of,
    unavailable,
)
from aie_engine.ledger import Ticket
from aie_engine.prompts import encode_prompt
from aie_engine.protocol import COMPLETION_DEFAULT_TOKENS, ChatRequest, Common, CompletionRequest, decode
from aie_engine.scheduler import RequestTooLongError
from aie_engine.serving import SERVING, Model, Serving
from aie_engine.uploads import OverloadError

TIMEOUT_HEADER: Final = "X-Request-Timeout-Seconds"


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
    if len(prompt) > model.longest:  # first: to look at each of a million ids takes a while
        raise RequestTooLongError(f"This model takes at most {model.longest} tokens; the prompt alone has {len(prompt)}.")
    if not all(0 <= token_id < model.tokenizer.vocab_size for token_id in prompt):
        raise bad_request(f"Token ids are 0 to {model.tokenizer.vocab_size - 1}.", "prompt")
    return prompt


_CHAT: Final = Route(ChatRequest, CHAT, "chat", "messages", lambda serving: serving.config.max_tokens_default, _chat_prompt)
_TEXT: Final = Route(CompletionRequest, TEXT, "text_completion", "prompt", lambda _: COMPLETION_DEFAULT_TOKENS, _text_prompt)


async def chat_completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/chat/completions."""
    return await _counted(http, _CHAT)


async def completions(http: web.Request) -> web.StreamResponse:
    """POST /v1/completions."""
    return await _counted(http, _TEXT)


async def _counted(http: web.Request, route: Route) -> web.StreamResponse:
    """Whatever becomes of the request, it is in the ledger with exactly one outcome.

    It enters once its body is complete: until then its client decides how long it takes, and whoever is slow must neither
    take a place from others nor make the engine's latencies look bad. What fails before enters and ends at once.
    """
    serving = http.app[SERVING]
    metrics = serving.metrics
    ticket = None
    try:
        arrival = await _arrive(http, serving)
        ticket = metrics.enter(time.monotonic(), http.headers, route.operation)
        return await _answer(http, serving, arrival, ticket, route)
    except BaseException as error:
        now = time.monotonic()
        ticket = ticket or metrics.enter(now, http.headers, route.operation)
        if isinstance(error, ApiError) and error.code == QUEUE_FULL:
            metrics.refused_full()
        metrics.ended(ticket, outcome_of(error), now, None, error.code if isinstance(error, ApiError) else None)
        metrics.tell_hooks()
        raise


async def _arrive(http: web.Request, serving: Serving) -> Arrival:
    began_at = time.monotonic()
    model = serving.model()
    timeout_s = _timeout_s(http, serving.config.deadline_s)
    _require_place(serving, model, newcomers=1)  # before the body is read: nobody should send what is refused anyway
    body = await _body(http, serving, began_at, timeout_s)
    return Arrival(model, body, timeout_s, began_at + timeout_s)


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
        raise no_place(serving, model)


async def _answer(http: web.Request, serving: Serving, arrival: Arrival, ticket: Ticket, route: Route) -> web.StreamResponse:
    model = arrival.model
    _require_place(serving, model, newcomers=0)  # many may have sent their bodies side by side
    body = decode(arrival.body, route.kind)
    if body.model != model.name:
        raise model_not_found(body.model, model.name)
    prompt_ids = await _prompt_ids(serving, arrival, ticket, route, body)
    return await Exchange(http, serving, arrival, route, body, ticket, prompt_ids).run()


async def _prompt_ids(serving: Serving, arrival: Arrival, ticket: Ticket, route: Route, body: Common) -> Sequence[int]:
    """The prompt, encoded on a thread of its own. Raises ApiError for one that is too long or cannot be had in time."""
    try:
        async with asyncio.timeout_at(arrival.deadline):
            prompt_ids = await serving.prepare(lambda: route.prompt(arrival.model, body))
    except RequestTooLongError as error:
        raise too_long(error, route) from None
    except TimeoutError:
        raise deadline_passed(arrival.timeout_s) from None
    serving.metrics.tokenized(ticket, time.monotonic(), len(prompt_ids))
    return prompt_ids


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
