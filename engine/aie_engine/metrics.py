"""What the engine says of itself: the catalogue's `aie_engine_*` on its page, and the same moments to the hooks."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from aie_engine.complaints import Complaints
from aie_engine.exemplars import Exemplars
from aie_engine.hook_news import HookNews
from aie_engine.ledger import Counts, Ledger, Lengths, Stage, Ticket
from aie_engine.plan import Token
from aie_engine.request import Outcome
from aie_engine.response_cache import CacheStats, ResponseCache
from aie_engine.scheduler import StepResult
from aie_engine.stages import StageTimes
from aie_hooks.allocator import AllocatorStats
from aie_hooks.canary import ALONE_NOISE_NATS, DEFAULT_NAME, Canary
from aie_hooks.logits import LogitsHooks
from aie_hooks.oom import PoolState
from aie_hooks.requests import RequestHooks
from aie_telemetry.instruments import Registry

if TYPE_CHECKING:
    from aie_engine.span_counts import SpanCounts

_log = logging.getLogger(__name__)

_COLLECTOR_GENERATIONS = ("0", "1", "2")


class KvUsage(NamedTuple):
    """Token slots of the KV cache at one moment; `capacity == used + free`.

    `written` of those used hold a computed token; `largest_free` of those free lie side by side.
    """

    capacity: int
    used: int
    free: int
    written: int
    largest_free: int


class Footprint(NamedTuple):
    """Bytes that the engine's tensors hold from start to end: weights, the whole KV cache, and what lies between steps."""

    weights_bytes: int
    kv_bytes: int
    workspace_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """Everything held, used or not."""
        return self.weights_bytes + self.kv_bytes + self.workspace_bytes

    def allocated_bytes(self, kv: KvUsage) -> int:
        """What is in use: of the KV cache only the slots that requests own."""
        return self.weights_bytes + self.workspace_bytes + self.kv_bytes * kv.used // kv.capacity

    def largest_free_bytes(self, kv: KvUsage) -> int:
        """The largest extent of the KV cache that a request could still get."""
        return self.kv_bytes * kv.largest_free // kv.capacity


@dataclass(frozen=True, slots=True)
class Loaded:
    """What is known once the model is loaded. `kv` reads the arena under the model loop's lock."""

    version: str
    revision: str
    device: str
    dtype: str
    footprint: Footprint
    kv: Callable[[], KvUsage]


class EngineMetrics:
    """The engine's instruments. Times are seconds of the engine's monotonic clock unless a name says `wall`.

    Request counts come from a `Ledger`, and a page shows one view of it: received equals outcomes plus running plus waiting
    on every page, whatever happens meanwhile. Hooks that raise are logged and change nothing here. What the model loop tells is on
    the page at once, and told to the hooks by `tell_hooks`, outside the loop's lock. The hooks' clock must be the engine's.
    """

    def __init__(
        self,
        engine: str,
        model: str,
        hooks: RequestHooks,
        *,
        start_wall_s: float,
        logits: LogitsHooks | None = None,
        canary: Canary | None = None,
        exemplars: Exemplars | None = None,
        spans: SpanCounts | None = None,
    ) -> None:
        self.ledger = Ledger()
        self._hooks = hooks
        self._logits = logits
        self._canary = canary
        self._exemplars = exemplars or Exemplars()
        self._spans = spans
        self.last_token_at: float | None = None
        self._labels = (engine, model)
        self._registry = Registry()
        self._loaded: Loaded | None = None
        self._cache: ResponseCache | None = None
        self._render_lock = threading.Lock()
        self._prompt_tokens = self._registry.value("aie_engine_prompt_tokens_total", *self._labels)
        self._generation_tokens = self._registry.value("aie_engine_generation_tokens_total", *self._labels)
        self._ttft = self._registry.distribution("aie_engine_time_to_first_token_seconds", *self._labels)
        self._inter_token = self._registry.distribution("aie_engine_inter_token_seconds", *self._labels)
        self._queue = self._registry.distribution("aie_engine_queue_seconds", *self._labels)
        self._refused_full = self._registry.value("aie_engine_requests_refused_full_total", *self._labels)
        self._duration = self._registry.distribution("aie_engine_request_duration_seconds", *self._labels)
        self._step = self._registry.distribution("aie_engine_step_seconds", *self._labels)
        self._batch_size = self._registry.distribution("aie_engine_step_batch_size", *self._labels)
        self._step_tokens = self._registry.distribution("aie_engine_step_tokens", *self._labels)
        self._complaints = Complaints(_log)
        self._news = HookNews(self._complaints)
        self.stages = StageTimes(self._registry, engine, model)
        lag = self._registry.distribution("aie_engine_event_loop_lag_seconds", *self._labels)
        self.event_loop_lag = lag.observe
        pauses = [self._registry.distribution("aie_engine_gc_pause_seconds", *self._labels, g) for g in _COLLECTOR_GENERATIONS]
        self.gc_pause = tuple(pause.observe for pause in pauses)
        self._set("aie_engine_start_time_seconds", start_wall_s)

    def loaded(self, loaded: Loaded) -> None:
        """From now on the page also describes the model, its KV cache and its memory; before, these are absent."""
        description = (loaded.version, loaded.revision, loaded.device, loaded.dtype)
        self._set("aie_engine_info", 1, "aie", *description)
        self._loaded = loaded

    def enter(self, now: float, headers: Mapping[str, str] | None = None, operation: str | None = None) -> Ticket:
        """A request reached the engine, with these HTTP headers; `operation` is OpenTelemetry's name for what it asks."""
        hook = self._complaints.call(self._hooks.enter, headers, operation=operation, at_s=now)
        logits = None if self._logits is None else self._complaints.call(self._logits.enter)
        ticket = Ticket(now, hook, logits)
        self.ledger.enter(ticket)
        return ticket

    def tokenized(self, ticket: Ticket, now: float, prompt_tokens: int) -> None:
        """A request's prompt is so many tokens now."""
        self.stages.tokenized(now - ticket.arrived_at)
        if ticket.hook is not None:
            self._complaints.call(ticket.hook.tokenized, prompt_tokens, at_s=now)

    def queued(self, ticket: Ticket, now: float) -> None:
        """The model loop took a request into its queue."""
        ticket.queued_at = now
        if ticket.hook is not None:
            self._news.add(ticket.hook.queued, now)

    def replayed(self, ticket: Ticket, lengths: Lengths) -> None:
        """A request is answered from the response cache: it never runs, and ends when its answer is sent."""
        ticket.replayed = lengths
        if ticket.hook is not None:
            self._complaints.call(ticket.hook.cached, lengths.answer_tokens)

    def watch_cache(self, cache: ResponseCache) -> None:
        """From now on the page also tells of the response cache; without this it is absent."""
        self._cache = cache

    def admitted(self, ticket: Ticket, now: float) -> None:
        """A request left the queue for the batch."""
        if self.ledger.admit(ticket, now):
            self._left_queue(ticket, now)
            if ticket.hook is not None:
                self._news.add(ticket.hook.admitted, now)

    def ended(
        self,
        ticket: Ticket,
        outcome: Outcome,
        now: float,
        finish_reason: str | None = None,
        error_type: str | None = None,
    ) -> None:
        """A request ended; a second call for the same one changes nothing.

        For its span: why generation stopped, and the kind of error where the outcome does not say enough.
        """
        stage = self.ledger.end(ticket, outcome)
        if stage is None:
            return
        if stage is Stage.RUNNING or ticket.replayed is not None:
            self._duration.observe(now - ticket.arrived_at)
        else:
            self._left_queue(ticket, now)
        if ticket.replayed is not None:
            self.stages.answered(*ticket.replayed)
        if ticket.hook is not None:
            self._news.add(ticket.hook.end, outcome.value, finish_reason=finish_reason, error_type=error_type, at_s=now)
        if ticket.logits is not None:
            # What was cut off says nothing of the model: only who ended it.
            self._news.add(ticket.logits.end if outcome is Outcome.OK else ticket.logits.discard)

    def refused_full(self) -> None:
        """A request is refused for want of a place; besides, it has its outcome as any other."""
        self._refused_full.add(1)

    def step(self, result: StepResult, duration_s: float, now: float, wall_s: float) -> None:
        """A step of the model loop ended at `now`. Equal gaps are recorded together: one call a group, not one a token."""
        self._computed(duration_s, result.requests, result.prompt_tokens + result.decode_tokens)
        self._prompt_tokens.add(result.prompt_tokens)
        for request in result.first:
            self._ttft.observe(now - request.ticket.arrived_at)
            self.stages.first_token(request, now)
        for gap_s, tokens in result.gaps.items():
            self._inter_token.observe(gap_s, tokens)
        if result.sampled:
            self._generation_tokens.add(len(result.sampled))
            self.last_token_at = now
            self._set("aie_engine_last_token_timestamp_seconds", wall_s)
            self._news.add(self._tell_tokens, [(request.ticket, request.last_token) for request in result.sampled], now)

    def step_failed(self, duration_s: float, requests: int, tokens: int) -> None:
        """A step of the model loop, for so many requests and tokens, raised after so many seconds."""
        self._computed(duration_s, requests, tokens)

    def canary(self, outcome: str, logprob: float | None) -> None:
        """The canary was due: "ok" with its log-probability, which may be no number, or "failed" or "skipped". No request is
        counted and no time observed: it is nobody's."""
        if logprob is not None and not math.isfinite(logprob):
            outcome = "nonfinite"
        elif logprob is not None:
            self._set("aie_engine_canary_logprob_nats", logprob, DEFAULT_NAME)
        self._set("aie_engine_canary_noise_nats", ALONE_NOISE_NATS, DEFAULT_NAME)
        self._registry.value("aie_engine_canary_runs_total", *self._labels, DEFAULT_NAME, outcome).add(1)
        if self._canary is None:
            return
        if logprob is not None:
            self._complaints.call(self._canary.report, logprob)
        else:
            self._complaints.call(self._canary.failed if outcome == "failed" else self._canary.skipped)

    def tell_hooks(self) -> None:
        """Tells the hooks what happened since the last time. To be called by whoever called `queued`, `admitted`, `ended` or
        `step`, as soon as nobody waits for it any more; the page knows already. Never raises, and waits for no other thread."""
        self._news.tell()

    @property
    def hooks_told(self) -> bool:
        """Whether the hooks know all that the page knows."""
        return self._news.told

    def _computed(self, duration_s: float, requests: int, tokens: int) -> None:
        self._step.observe(duration_s)
        self._batch_size.observe(requests)
        self._step_tokens.observe(tokens)

    def _left_queue(self, ticket: Ticket, now: float) -> None:
        if ticket.queued_at is not None:
            self._queue.observe(now - ticket.queued_at)

    def _tell_tokens(self, sampled: Sequence[tuple[Ticket, Token | None]], now: float) -> None:
        """A token of each of these requests came out: in one pass, because there is one at every step."""
        hooks = []
        for ticket, token in sampled:
            if ticket.hook is not None:
                hooks.append(ticket.hook)
            if ticket.logits is not None and ticket.logits.wanted and token is not None and token.detail is not None:
                detail = token.detail
                self._complaints.call(ticket.logits.add, detail.logprob, detail.entropy, detail.logsumexp)
        self._hooks.step(hooks, now)

    def page(self, *, openmetrics: bool = False) -> str:
        """The page in Prometheus' text format, or as OpenMetrics, with the trace behind some observations of each latency."""
        with self._render_lock:
            # The registry's values of these families are set here and nowhere else, so a page cannot mix two views.
            self._set_counts(self.ledger.counts())
            if self._loaded is not None:
                self._set_memory(self._loaded, self._loaded.kv())
            if self._cache is not None:
                self._set_cache(self._cache.stats)
            if self._spans is not None:
                for result, number in self._spans.by_result().items():
                    self._set("aie_engine_spans_total", number, result)
            for name, exemplar in self._exemplars.take():
                self._registry.distribution(name, *self._labels).exemplify(exemplar)
            return self._registry.render(openmetrics=openmetrics)

    def allocator_stats(self) -> AllocatorStats:
        """The allocator's numbers for the hooks. Raises RuntimeError before the model is loaded: there are none."""
        loaded = self._loaded
        if loaded is None:
            raise RuntimeError("the model is not loaded")
        kv, footprint = loaded.kv(), loaded.footprint
        return AllocatorStats(
            loaded.device,
            footprint.allocated_bytes(kv),
            footprint.reserved_bytes,
            largest_free_bytes=footprint.largest_free_bytes(kv),
        )

    def pool_state(self) -> PoolState:
        """The KV cache and the allocator's numbers, for the record of memory that ran out. Raises as `allocator_stats`."""
        stats = self.allocator_stats()
        loaded = self._loaded
        kv_bytes = None if loaded is None else loaded.footprint.kv_bytes
        return PoolState(
            free_bytes=stats.reserved_bytes - stats.allocated_bytes,
            total_bytes=kv_bytes,
            largest_free_bytes=stats.largest_free_bytes,
            allocated_bytes=stats.allocated_bytes,
            reserved_bytes=stats.reserved_bytes,
        )

    def _set_counts(self, counts: Counts) -> None:
        self._set("aie_engine_requests_received_total", counts.received)
        self._set("aie_engine_requests_waiting", counts.waiting)
        self._set("aie_engine_requests_running", counts.running)
        for outcome, ended in counts.ended.items():
            self._set("aie_engine_requests_total", ended, outcome.value)

    def _set_cache(self, stats: CacheStats) -> None:
        self._set("aie_engine_response_cache_queries_total", stats.queries)
        self._set("aie_engine_response_cache_hits_total", stats.hits)
        self._set("aie_engine_response_cache_bytes", stats.held_bytes)

    def _set_memory(self, loaded: Loaded, kv: KvUsage) -> None:
        self._set("aie_engine_kv_capacity_tokens", kv.capacity)
        self._set("aie_engine_kv_used_tokens", kv.used)
        self._set("aie_engine_kv_free_tokens", kv.free)
        self._set("aie_engine_kv_usage_ratio", kv.used / kv.capacity)
        self._set("aie_engine_kv_written_tokens", kv.written)
        if kv.used:
            self._set("aie_engine_kv_efficiency_ratio", kv.written / kv.used)
        else:
            self._registry.remove("aie_engine_kv_efficiency_ratio", *self._labels)
        memory = (self._labels[0], loaded.device)
        allocated = float(loaded.footprint.allocated_bytes(kv))
        self._registry.value("aie_engine_allocator_allocated_bytes", *memory).set(allocated)
        self._registry.value("aie_engine_allocator_reserved_bytes", *memory).set(float(loaded.footprint.reserved_bytes))
        largest_free = float(loaded.footprint.largest_free_bytes(kv))
        self._registry.value("aie_engine_allocator_largest_free_bytes", *memory).set(largest_free)

    def _set(self, name: str, value: float, *more_labels: str) -> None:
        self._registry.value(name, *self._labels, *more_labels).set(float(value))
