"""A canary: one fixed prompt, asked again and again, of which the log-probability of one fixed token is told. It depends on the
model alone and on nobody's traffic, so that it shows a change of the model that no other number shows so soon.

    canary = Canary(emitter, model="m")
    ...
    canary.report(logprob)       # every minute or so: of the same token, after the same prompt

What you compute is up to you: with any OpenAI-compatible engine a request of temperature 0 with `logprobs`, of which the expected
token's is taken, whichever was chosen. Choose a prompt and a token once, and then never change them under one `name`: a change of
the prompt looks like one of the model. A token that the model finds unlikely (-3 to -6) moves more than one that it is sure of.
Keep the canary out of any cache of answers, which would give the same number for ever.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aie_hooks.emitter import Emitter

DEFAULT_NAME: Final = "default"

SHARED_NOISE_NATS: Final = 0.25
"""In a batch with others, computed in bfloat16: two of its steps at logits of 16 to 32."""

ALONE_NOISE_NATS: Final = 0.02
"""Alone in a step: nothing moves it, and this is for a library or a driver that sums in another order."""

OUTCOMES: Final = ("ok", "nonfinite", "failed", "skipped")
"""How a run of a canary ends."""


class Canary:
    """For one engine, model and prompt; make one at start. No call raises. To be called by one thread at a time."""

    def __init__(self, emitter: Emitter, *, model: str, name: str = DEFAULT_NAME, noise_nats: float = SHARED_NOISE_NATS) -> None:
        """`name` tells several prompts apart; the agent learns the level of each by itself. `noise_nats` is how far what else is in
        its batch may move the log-probability: what is less apart counts as the same. Say `ALONE_NOISE_NATS` where the canary is
        computed in a step of its own, alike each time. Raises ValueError as handles do, and for noise that is not above 0 and at
        most 1."""
        if not 0.0 < noise_nats <= 1.0:
            raise ValueError(f"noise_nats is to be above 0 and at most 1, not {noise_nats!r}")
        self._noise = emitter.gauge("aie_engine_canary_noise_nats", model=model, canary=name)
        self._noise.set(noise_nats)
        self._logprob = emitter.gauge("aie_engine_canary_logprob_nats", model=model, canary=name)
        self._runs = {
            outcome: emitter.counter("aie_engine_canary_runs_total", model=model, canary=name, outcome=outcome)
            for outcome in OUTCOMES
        }

    def report(self, logprob: float) -> None:
        """The canary was asked: the natural logarithm of the expected token's probability. One that is no finite number is told as
        such."""
        try:
            finite = math.isfinite(logprob)
        except (TypeError, OverflowError):  # no number at all
            finite = False
        if finite:
            self._logprob.set(logprob)
        self._runs["ok" if finite else "nonfinite"].add()

    def failed(self) -> None:
        """The canary was asked, and the engine failed to answer."""
        self._runs["failed"].add()

    def skipped(self) -> None:
        """It was time for the canary, and the engine had no place for it."""
        self._runs["skipped"].add()
