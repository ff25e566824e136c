"""From a request's tokens to the text its client sees. Runs where the client is served, never on the model loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aie_engine.http_errors import ApiError, deadline_passed, engine_failed
from aie_engine.loop import ModelLoop
from aie_engine.request import FinishReason, Outcome, Request, Update
from aie_engine.stop_strings import StopFilter

_STUCK_S: Final = 0.25
"""The scheduler ends overdue requests between steps. So long after the deadline we no longer count on a next step."""


class TextStream(Protocol):
    """Decodes one answer token by token: `TokenStream`."""

    def push(self, token_id: int) -> str:
        """Text that is complete with this token."""
        ...

    def finish(self) -> str:
        """What was held back."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """New text of an answer; the last piece has a finish reason. `tokens` counts the whole answer so far."""

    text: str
    tokens: int
    finish_reason: FinishReason | None


class AnswerText:
    """Tokens in, text out: decoded, and cut at the first stop string."""

    def __init__(self, stream: TextStream, eos_ids: frozenset[int], stops: Sequence[str]) -> None:
        self._stream = stream
        self._eos_ids = eos_ids
        self._stops = StopFilter(stops)
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met; nothing comes after it."""
        return self._stops.stopped

    def push(self, token_id: int) -> str:
        """The text that may be shown with this token. The end-of-sequence token counts, but is not shown."""
        self.tokens += 1
        return "" if token_id in self._eos_ids else self._stops.push(self._stream.push(token_id))

    def finish(self) -> str:
        """What was held back, once there are no more tokens."""
        return self._stops.push(self._stream.finish()) + self._stops.finish()


class Generation:
    """One submitted request, seen from its client's side."""

    def __init__(
        self, loop: ModelLoop, request: Request, updates: asyncio.Queue[Update], text: AnswerText, timeout_s: float
    ) -> None:
        """`timeout_s` is the time that the request's deadline leaves it in all; for the message when it has passed."""
        self._loop = loop
        self._request = request
        self._updates = updates
        self._text = text
        self._timeout_s = timeout_s

    async def next_piece(self) -> Piece:
        """Waits for tokens and takes all that are there, so that a client who reads slowly gets fewer, larger pieces.

        Raises ApiError when the request fails or its deadline passes.
        """
        update = await self._next_update()
        shown = []
        while True:
            if update.outcome not in (None, Outcome.OK):
                raise self._failure(update)
            if update.token is not None:
                shown.append(self._text.push(update.token.id))
            if self._text.stopped:
                self._loop.end(self._request, Outcome.OK, FinishReason.STOP)
                return Piece("".join(shown), self._text.tokens, FinishReason.STOP)
            if update.outcome is Outcome.OK:
                shown.append(self._text.finish())
                reason = FinishReason.STOP if self._text.stopped else update.finish_reason
                return Piece("".join(shown), self._text.tokens, reason)
            if self._updates.empty():
                return Piece("".join(shown), self._text.tokens, None)
            update = self._updates.get_nowait()

    async def _next_update(self) -> Update:
        try:
            async with asyncio.timeout_at(self._request.deadline + _STUCK_S):
                return await self._updates.get()
        except TimeoutError:
            self._loop.end(self._request, Outcome.TIMEOUT)
            return Update(outcome=Outcome.TIMEOUT)

    def _failure(self, update: Update) -> ApiError:
        if update.outcome is Outcome.TIMEOUT:
            return deadline_passed(self._timeout_s)
        return engine_failed(update.detail)
