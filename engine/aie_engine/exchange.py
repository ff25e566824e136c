"""One request that passed all checks, and its answer: computed or from the cache, whole or streamed."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET

from aie_engine.answers import Answer, Choice, Shape, Usage, usage
from aie_engine.generation import AnswerText, Generation, Piece
from aie_engine.http_errors import ApiError, bad_request, outcome_of, queue_full, unavailable
from aie_engine.ledger import Lengths, Ticket
from aie_engine.logprobs import Logprobs, ScoredToken
from aie_engine.loop import StoppedError
from aie_engine.plan import SamplingParams, Token
from aie_engine.protocol import Common
from aie_engine.request import FinishReason, Outcome, Request, Update
from aie_engine.response_cache import Stored, cache_key
from aie_engine.scheduler import QueueFullError, RequestTooLongError
from aie_engine.serving import Model, Serving
from aie_engine.sse import SseResponse, error_event, event

CACHE_HEADER: Final = "X-Aie-Cache"


@dataclass(frozen=True, slots=True)
class Route:
    """What tells the two routes apart. `prompt` runs on a thread of its own; `param` is where a prompt stands in the body.

    `operation` is OpenTelemetry's name for what the route does.
    """

    kind: type[Common]
    shape: Shape
    operation: str
    param: str
    default_tokens: Callable[[Serving], int]
    prompt: Callable[[Model, Any], Sequence[int]]


class Arrival(NamedTuple):
    """A request whose body is complete. Its time, `timeout_s` until `deadline`, began with its headers."""

    model: Model
    body: bytes
    timeout_s: float
    deadline: float


def too_long(error: RequestTooLongError, route: Route) -> ApiError:
    """400 for a request that can never fit."""
    return bad_request(str(error), route.param, "context_length_exceeded")


def no_place(serving: Serving, model: Model) -> ApiError:
    """429 for a request that there is no place for."""
    return queue_full(serving.config.max_requests, serving.retry_after_s(model))


class Exchange:
    """One request and its answer; `run` is to be called once."""

    def __init__(
        self,
        http: web.Request,
        serving: Serving,
        arrival: Arrival,
        route: Route,
        body: Common,
        ticket: Ticket,
        prompt_ids: Sequence[int],
    ) -> None:
        """Raises ApiError for a prompt without tokens."""
        self._http = http
        self._serving = serving
        self._model = model = arrival.model
        self._route = route
        self._body = body
        self._headers = serving.degraded.headers
        self._id = route.shape.id_prefix + uuid.uuid4().hex
        self._created = int(time.time())
        self._updates: asyncio.Queue[Update] = asyncio.Queue()
        self._request = Request(
            prompt_ids=prompt_ids,
            max_tokens=self._max_tokens(len(prompt_ids)),
            sampling=_sampling(body, described=ticket.logits is not None and ticket.logits.wanted),
            deadline=arrival.deadline,
            ticket=ticket,
            deliver=self._updates.put_nowait,
        )
        self._text = AnswerText(
            model.tokenizer.stream(), model.tokenizer.eos_ids, body.stop_strings(), scored=body.alternatives is not None
        )
        self._generation = Generation(model.loop, self._request, self._updates, self._text, arrival.timeout_s)
        self._key = self._cache_key()

    async def run(self) -> web.StreamResponse:
        """Answers the request. Raises ApiError; whatever is raised, the model loop is rid of the request."""
        stored = self._from_cache()
        if stored is None:
            self._submit()
        else:
            self._replay(stored)
        try:
            response = await (self._stream() if self._body.streams else self._whole())
            if stored is not None:
                self._replayed(stored)
            return response
        except BaseException as error:
            self._model.loop.end(self._request, outcome_of(error))
            raise
        finally:
            if self._text.tokens:
                self._serving.metrics.stages.detokenized(self._generation.detokenize_s)

    def _max_tokens(self, prompt_tokens: int) -> int:
        if prompt_tokens == 0:
            raise bad_request("The prompt is empty.", self._route.param)
        if self._body.answer_tokens is not None:
            return self._body.answer_tokens
        return max(1, min(self._route.default_tokens(self._serving), self._model.longest - prompt_tokens))

    def _cache_key(self) -> bytes | None:
        """None where the cache has no part in this request: it is off, or the answer is drawn at random."""
        request = self._request
        if self._serving.cache is None or request.sampling.temperature > 0:
            return None
        stops = self._body.stop_strings()
        return cache_key(self._model.revision, request.prompt_ids, request.max_tokens, stops, self._body.alternatives)

    def _from_cache(self) -> Stored | None:
        cache = self._serving.cache
        return None if cache is None or self._key is None else cache.get(self._key)

    def _replay(self, stored: Stored) -> None:
        """Puts a stored answer where the model loop would put a new one."""
        self._key = None
        self._headers[CACHE_HEADER] = "hit"
        for token in stored.tokens[:-1]:
            self._updates.put_nowait(Update(token))
        self._updates.put_nowait(Update(stored.tokens[-1], Outcome.OK, stored.finish_reason))
        self._serving.metrics.replayed(self._request.ticket, Lengths(len(self._request.prompt_ids), len(stored.tokens)))

    def _replayed(self, stored: Stored) -> None:
        """A stored answer is sent: streamed to its end, or whole with the HTTP server. No model loop ends such a request."""
        metrics = self._serving.metrics
        metrics.ended(self._request.ticket, Outcome.OK, time.monotonic(), stored.finish_reason)
        metrics.tell_hooks()

    def _store(self, reason: FinishReason) -> None:
        if self._serving.cache is not None and self._key is not None and not self._serving.degraded.causes:
            tokens = self._text.tokens
            if self._body.alternatives is None:  # what only the hooks asked for takes no room
                tokens = [Token(token.id) for token in tokens]
            self._serving.cache.put(self._key, Stored(tokens, reason))

    def _submit(self) -> None:
        try:
            self._model.loop.submit(self._request)
        except QueueFullError:
            raise no_place(self._serving, self._model) from None
        except RequestTooLongError as error:
            raise too_long(error, self._route) from None
        except StoppedError:
            raise unavailable("The engine is shutting down.", "shutting_down") from None

    async def _next_piece(self) -> Piece:
        piece = await self._generation.next_piece()
        if piece.finish_reason is not None:
            self._store(piece.finish_reason)
        return piece

    async def _whole(self) -> web.StreamResponse:
        texts = []
        scored: list[ScoredToken] = []
        while True:
            piece = await self._next_piece()
            texts.append(piece.text)
            scored += piece.scored
            if piece.finish_reason is not None:
                choice = self._route.shape.whole("".join(texts), piece.finish_reason, self._logprobs(scored))
                answer = self._wrap(self._route.shape.whole_object, [choice], self._usage(piece.tokens))
                return web.Response(body=msgspec.json.encode(answer), headers=self._headers, content_type="application/json")

    async def _stream(self) -> web.StreamResponse:
        sse = SseResponse(self._http, self._serving.config.write_timeout_s, self._headers)
        shape = self._route.shape
        try:
            reason = None
            while reason is None:
                piece = await self._next_piece()
                reason = piece.finish_reason
                choices = [] if sse.begun else list(shape.opening)
                if piece.text or piece.scored:
                    choices.append(shape.piece(piece.text, None, self._logprobs(piece.scored)))
                if reason is not None:
                    choices.append(shape.piece("", reason, None))
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

    def _logprobs(self, scored: Sequence[ScoredToken]) -> Logprobs | None:
        alternatives = self._body.alternatives
        return None if alternatives is None else self._route.shape.logprobs(scored, self._model.tokenizer, alternatives)

    def _wrap(self, kind: str, choices: list[Choice], tokens: Usage | msgspec.UnsetType | None) -> Answer:
        return Answer(id=self._id, object=kind, created=self._created, model=self._model.name, choices=choices, usage=tokens)

    def _usage(self, completion_tokens: int) -> Usage:
        return usage(len(self._request.prompt_ids), completion_tokens)


def _sampling(body: Common, *, described: bool) -> SamplingParams:
    """OpenAI's defaults; without a seed every request gets one of its own. `described`: hooks want each token's distribution."""
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=random.getrandbits(63) if body.seed is None else body.seed,
        detail=0 if described and body.alternatives is None else body.alternatives,
    )
