"""Requests and metrics for unit tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from aie_engine.ledger import Ticket
from aie_engine.metrics import EngineMetrics
from aie_engine.plan import SamplingParams
from aie_engine.request import Request, Update
from aie_engine.span_counts import SpanCounts
from aie_hooks.emitter import Emitter
from aie_hooks.requests import RequestHooks


def silent_hooks() -> RequestHooks:
    """Hooks that send nothing."""
    return RequestHooks(Emitter("test", "off"), model="m")


def new_metrics(spans: SpanCounts | None = None) -> EngineMetrics:
    """Instruments of an engine called e with a model called m."""
    return EngineMetrics("e", "m", silent_hooks(), start_wall_s=1_000.0, spans=spans)


_HOOKS = silent_hooks()


def new_request(
    prompt: Sequence[int] = (1, 2, 3),
    max_tokens: int = 4,
    *,
    deadline: float = float("inf"),
    ticket: Ticket | None = None,
    deliver: Callable[[Update], None] = lambda update: None,
) -> Request:
    """A request with a ticket of its own unless one is given."""
    return Request(prompt, max_tokens, SamplingParams(), deadline, ticket or Ticket(0.0, _HOOKS.enter()), deliver)
