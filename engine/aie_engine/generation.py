"""From a request's tokens to the text its client sees. Runs where the client is served, never on the model loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from aie_engine.http_errors import ApiError, deadline_passed, engine_failed
from aie_engine.logprobs import ScoredToken, TokenTrail
from aie_engine.loop import ModelLoop
from aie_engine.plan import Token
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
    """New text of an answer; the last piece has a finish reason. `tokens` counts the whole answer so far.

    `scored` are the tokens that this text is made of, where they are wanted.
    """

    text: str
    tokens: int
    finish_reason: FinishReason | None
    scored: Sequence[ScoredToken] = ()


class AnswerText:
    """Tokens in, text out: decoded, and cut at the first stop string. `tokens` are all that came in."""

    def __init__(self, stream: TextStream, eos_ids: frozenset[int], stops: Sequence[str], *, scored: bool = False) -> None:
        """`scored` says whether `take_scored` will be called."""
        self._stream = stream
        self._eos_ids = eos_ids
        self._stops = StopFilter(stops)
        self._trail = TokenTrail() if scored else None
        self._decoded_chars = 0
        self._shown_chars = 0
        self.tokens: list[Token] = []

    @property
    def stopped(self) -> bool:
        """Whether a stop string has been met; nothing comes after it."""
        return self._stops.stopped

    def push(self, token: Token) -> str:
        """The text that may be shown with this token. The end-of-sequence token counts, but is not shown."""
        self.tokens.append(token)
        if token.id in self._eos_ids:
            return ""
        if self._trail is not None:
            self._trail.push(token, self._decoded_chars)
        decoded = self._stream.push(token.id)
        self._decoded_chars += len(decoded)
        return self._shown(self._stops.push(decoded))

    def finish(self) -> str:
        """What was held back, once there are no more tokens."""
        return self._shown(self._stops.push(self._stream.finish()) + self._stops.finish())

    def take_scored(self, *, complete: bool) -> Sequence[ScoredToken]:
        """The tokens of the text shown since the last call; all the others too once the answer is `complete` and not cut."""
        if self._trail is None:
            return ()
        if complete and not self.stopped:
            return self._trail.take_all()
        return self._trail.take_shown(self._shown_chars)

    def _shown(self, text: str) -> str:
        self._shown_chars += len(text)
        return text


class Generation:
    """One request, seen from its client's side. `detokenize_s` is the time that its tokens took to become text."""

    def __init__(
        self, loop: ModelLoop, request: Request, updates: asyncio.Queue[Update], text: AnswerText, timeout_s: float
    ) -> None:
        """`timeout_s` is the time that the request's deadline leaves it in all; for the message when it has passed."""
        self._loop = loop
        self._request = request
        self._updates = updates
        self._text = text
        self._timeout_s = timeout_s
        self.detokenize_s = 0.0

    async def next_piece(self) -> Piece:
        """Waits for tokens and takes all that are there, so that a client who reads slowly gets fewer, larger pieces.

        Raises ApiError when the request fails or its deadline passes.
        """
        update = await self._next_update()
        started = time.perf_counter()
        try:
            return self._piece(update)
        finally:
            self.detokenize_s += time.perf_counter() - started

    def _piece(self, update: Update) -> Piece:
        shown = []
        reason = None
        while True:
            if update.outcome not in (None, Outcome.OK):
                raise self._failure(update)
            if update.token is not None:
                shown.append(self._text.push(update.token))
            if self._text.stopped:
                self._loop.end(self._request, Outcome.OK, FinishReason.STOP)
                reason = FinishReason.STOP
                break
            if update.outcome is Outcome.OK:
                shown.append(self._text.finish())
                reason = FinishReason.STOP if self._text.stopped else update.finish_reason
                break
            if self._updates.empty():
                break
            update = self._updates.get_nowait()
        return Piece("".join(shown), len(self._text.tokens), reason, self._text.take_scored(complete=reason is not None))

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
