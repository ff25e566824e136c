"""What the engine knows of one request, from its arrival to its one outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from aie_engine.plan import SamplingParams, Token

if TYPE_CHECKING:
    from aie_engine.ledger import Ticket


class Outcome(StrEnum):
    """How a request ends; the catalogue's OUTCOMES."""

    OK = "ok"
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REJECTED = "rejected"


class FinishReason(StrEnum):
    """Why generation of a request that ended `ok` stopped, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"


class Update(NamedTuple):
    """News for a request's client: a token, the end, or both (the last token). `detail` explains an outcome that is not ok."""

    token: Token | None = None
    outcome: Outcome | None = None
    finish_reason: FinishReason | None = None
    detail: str = ""


@dataclass(slots=True, eq=False)
class Request:
    """One request, mutable, changed by the scheduler alone. Times are seconds on one monotonic clock.

    `deliver` takes the client's updates and is called on the thread that serves the client. `computed` is how many of the
    request's tokens the KV cache holds; `kv_start` the first slot of its extent while it runs.
    """

    prompt_ids: Sequence[int]
    max_tokens: int
    sampling: SamplingParams
    deadline: float
    ticket: Ticket
    deliver: Callable[[Update], None]
    computed: int = 0
    kv_start: int | None = None
    output_ids: list[int] = field(default_factory=list)
    blocked_since: float | None = None
    admitted_at: float | None = None
    last_token: Token | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    outcome: Outcome | None = None
    finish_reason: FinishReason | None = None

    @property
    def total_tokens(self) -> int:
        """Token slots that the request can need at most: what is reserved for it, so that it never has to be preempted."""
        return len(self.prompt_ids) + self.max_tokens

    @property
    def prompt_left(self) -> int:
        """Prompt tokens not yet computed."""
        return max(0, len(self.prompt_ids) - self.computed)
