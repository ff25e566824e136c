"""Which tokens of which requests the next step computes. Knows no tensors and no clock: time is an argument, in seconds.

Continuous batching: every step decodes one token for each request that is past its prompt, and computes as many prompt
tokens beside them as the budget allows. A request is admitted once its whole prompt and its longest answer have a place in
the KV arena, so none is ever preempted. Not thread-safe: the model loop guards it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from aie_engine.kv_arena import KvArena
from aie_engine.plan import Chunk, Token
from aie_engine.prefill_budget import PrefillBudget, share
from aie_engine.request import FinishReason, Outcome, Request

_SERVICE_WEIGHT: Final = 0.1  # of one request in the mean time of service


class QueueFullError(Exception):
    """The waiting queue has no place left."""


class RequestTooLongError(Exception):
    """Prompt and answer together can never fit. The text is fit to be shown to the client."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the scheduler may do.

    At most `max_requests` are in the engine: so a burst fills free places to run as well as the queue, whichever thread is
    faster. `overtake_s`: a request that only memory keeps from running may be passed by smaller ones for so long, and by none
    thereafter, so that a large request waits at most for those that run already.
    """

    max_running: int
    max_waiting: int
    max_step_tokens: int
    context_tokens: int
    eos_ids: frozenset[int]
    overtake_s: float = 1.0

    @property
    def max_requests(self) -> int:
        """Requests that run and wait together, at most."""
        return self.max_running + self.max_waiting

    def __post_init__(self) -> None:
        if min(self.max_running, self.max_waiting, self.context_tokens) < 1:
            raise ValueError("max_running, max_waiting and context_tokens must be at least 1")
        if self.max_step_tokens <= self.max_running:
            raise ValueError("max_step_tokens must exceed max_running, or prompts would wait while all places decode")


@dataclass(frozen=True, slots=True)
class Plan:
    """The next step: `chunks[i]` belongs to `requests[i]`. Beside it, who was admitted and whose deadline passed."""

    chunks: list[Chunk]
    requests: list[Request]
    admitted: list[Request]
    expired: list[Request]

    @property
    def kind(self) -> str:
        """What a step that is not empty computes: "decode", "prefill" or "mixed". Decodes come first in it."""
        decodes = self.chunks[0].position >= len(self.requests[0].prompt_ids)
        prefills = self.chunks[-1].position < len(self.requests[-1].prompt_ids)
        return "mixed" if decodes and prefills else "decode" if decodes else "prefill"


@dataclass(slots=True)
class StepResult:
    """What a step brought: one new token for each request in `sampled`, and who ended with it.

    `gaps` groups the times since the requests' tokens before, as seconds -> how many; `first` are those whose first it was.
    The step computed `prompt_tokens` and `decode_tokens` for `requests` requests.
    """

    prompt_tokens: int = 0
    sampled: list[Request] = field(default_factory=list)
    first: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    gaps: dict[float, int] = field(default_factory=dict)
    decode_tokens: int = 0
    requests: int = 0


class Scheduler:
    """Holds every request between its submission and its end."""

    def __init__(self, limits: Limits, arena: KvArena) -> None:
        self._limits = limits
        self._arena = arena
        self._budget = PrefillBudget(limits.max_step_tokens)
        # Dicts, not deques: in order of arrival, and a request that leaves from the middle costs nothing.
        self._waiting: dict[Request, None] = {}
        self._running: dict[Request, None] = {}
        self._step: Plan | None = None
        self._service_s: float | None = None

    @property
    def has_requests(self) -> bool:
        """Whether any request has not ended."""
        return bool(self._waiting or self._running)

    @property
    def has_place(self) -> bool:
        """Whether one more could run, and nobody waits to."""
        return not self._waiting and len(self._running) < self._limits.max_running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Requests that own KV slots."""
        return len(self._running)

    @property
    def written(self) -> int:
        """Token slots of the KV arena that hold a computed token; the rest of what is reserved waits for tokens to come."""
        return sum(request.computed for request in self._running)

    def submit(self, request: Request) -> None:
        """Queues a request. Raises QueueFullError, and RequestTooLongError for one that could never be admitted."""
        check_length(len(request.prompt_ids), request.max_tokens, self.longest)
        if len(self._waiting) + len(self._running) >= self._limits.max_requests:
            raise QueueFullError(f"{self._limits.max_requests} requests run and wait, which is the limit")
        self._waiting[request] = None

    @property
    def longest(self) -> int:
        """Tokens that prompt and answer of one request may have together."""
        return min(self._arena.capacity, self._limits.context_tokens)

    def plan(self, now: float) -> Plan:
        """Ends what is overdue, admits what fits, and lays out the next step. Its chunks are empty when nothing is to do."""
        expired = [request for request in (*self._running, *self._waiting) if request.deadline <= now]
        for request in expired:
            self.end(request, Outcome.TIMEOUT, now)
        admitted = self._admit(now)
        decoding = [request for request in self._running if not request.prompt_left]
        prefilling = [request for request in self._running if request.prompt_left]
        shares = share([request.prompt_left for request in prefilling], self._budget.tokens(len(decoding), len(prefilling)))
        chosen = [(request, tokens) for request, tokens in zip(prefilling, shares, strict=True) if tokens]
        chunks = [_decode_chunk(request) for request in decoding]
        chunks += [_prefill_chunk(request, tokens) for request, tokens in chosen]
        self._step = Plan(chunks, [*decoding, *(request for request, _ in chosen)], admitted, expired)
        return self._step

    def step_done(self, sampled: Sequence[Token | None], duration_s: float, now: float) -> StepResult:
        """Takes in what the runner computed for the plan: `sampled[i]` is the token after chunk i, where one was wanted.

        Raises RuntimeError without a plan under way, ValueError when the answers do not match the plan.
        """
        plan = self._under_way()
        if len(sampled) != len(plan.chunks):
            raise ValueError(f"{len(sampled)} results for {len(plan.chunks)} chunks")
        result = StepResult(requests=len(plan.chunks))
        for request, chunk, token in zip(plan.requests, plan.chunks, sampled, strict=True):
            if chunk.position < len(request.prompt_ids):
                result.prompt_tokens += len(chunk.token_ids)
            else:
                result.decode_tokens += 1
            if request.outcome is None:  # else its client left while the step ran
                request.computed += len(chunk.token_ids)
                if token is not None:
                    self._take_token(request, token, now, result)
        self._budget.observe(result.decode_tokens, result.prompt_tokens, duration_s)
        self._step = None  # not before: whatever fails above, `step_failed` can still end the step's requests
        return result

    def step_failed(self, now: float) -> list[Request]:
        """Ends the requests of the step under way with an error, and returns them. Those outside it go on."""
        failed = [request for request in self._under_way().requests if request.outcome is None]
        self._step = None
        for request in failed:
            self.end(request, Outcome.ERROR, now)
        return failed

    def end(self, request: Request, outcome: Outcome, now: float, finish_reason: FinishReason | None = None) -> bool:
        """Ends a request wherever it is and frees what it held. False when it has ended before, or was never submitted.

        During a step its slots are free at once: nothing is admitted into them before the step is over.
        """
        if request in self._running:
            del self._running[request]
            self._leave(request, now)
        elif request in self._waiting:
            del self._waiting[request]
        else:
            return False
        request.outcome = outcome
        request.finish_reason = finish_reason
        request.ended_at = now
        return True

    def requests(self) -> tuple[Request, ...]:
        """Every request that has not ended."""
        return (*self._running, *self._waiting)

    def drain_s(self) -> float | None:
        """Seconds until those who wait now will probably have been admitted; None before any request was served.

        Little's law: places become free at the rate of `max_running` a mean time of service.
        """
        return None if self._service_s is None else len(self._waiting) * self._service_s / self._limits.max_running

    def _admit(self, now: float) -> list[Request]:
        admitted = []
        for request in tuple(self._waiting):
            if len(self._running) >= self._limits.max_running:
                break
            start = self._arena.reserve(request.total_tokens)
            if start is not None:
                del self._waiting[request]
                self._running[request] = None
                request.kv_start = start
                request.admitted_at = now
                admitted.append(request)
                continue
            if request.blocked_since is None:
                request.blocked_since = now
            if now - request.blocked_since >= self._limits.overtake_s:
                break
        return admitted

    def _leave(self, request: Request, now: float) -> None:
        if request.kv_start is None or request.admitted_at is None:
            raise RuntimeError("a request without KV slots cannot have run")
        self._arena.release(request.kv_start)
        request.kv_start = None
        service_s = now - request.admitted_at
        self._service_s = (
            service_s if self._service_s is None else self._service_s + _SERVICE_WEIGHT * (service_s - self._service_s)
        )

    def _under_way(self) -> Plan:
        if self._step is None:
            raise RuntimeError("no step is under way")
        return self._step

    def _take_token(self, request: Request, token: Token, now: float, result: StepResult) -> None:
        request.output_ids.append(token.id)
        request.last_token = token
        result.sampled.append(request)
        if request.last_token_at is None:
            request.first_token_at = now
            result.first.append(request)
        else:
            gap = now - request.last_token_at
            result.gaps[gap] = result.gaps.get(gap, 0) + 1
        request.last_token_at = now
        stopped = token.id in self._limits.eos_ids
        if stopped or len(request.output_ids) >= request.max_tokens:
            self.end(request, Outcome.OK, now, FinishReason.STOP if stopped else FinishReason.LENGTH)
            result.ended.append(request)


def check_length(prompt_tokens: int, max_tokens: int, longest: int) -> None:
    """Raises RequestTooLongError when prompt and answer together exceed `longest` tokens, and ValueError for an empty one."""
    if prompt_tokens < 1 or max_tokens < 1:
        raise ValueError(f"a request needs a prompt and room for an answer, not {prompt_tokens} and {max_tokens} tokens")
    if prompt_tokens + max_tokens > longest:
        raise RequestTooLongError(
            f"This model takes at most {longest} tokens; {prompt_tokens + max_tokens} were requested "
            f"({prompt_tokens} in the prompt, {max_tokens} for the answer)."
        )


def _decode_chunk(request: Request) -> Chunk:
    return _chunk(request, request.output_ids[-1:], sample=True)


def _prefill_chunk(request: Request, tokens: int) -> Chunk:
    token_ids = request.prompt_ids[request.computed : request.computed + tokens]
    return _chunk(request, token_ids, sample=tokens == request.prompt_left)


def _chunk(request: Request, token_ids: Sequence[int], *, sample: bool) -> Chunk:
    if request.kv_start is None:
        raise RuntimeError("a request without KV slots cannot run")
    return Chunk(request.kv_start, request.computed, token_ids, sample, request.sampling)
