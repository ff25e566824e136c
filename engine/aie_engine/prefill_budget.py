"""How many prompt tokens may share a step with decoding requests. Pure arithmetic on measured step times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MIXED_STEP_RATIO: Final = 1.8
"""A step that also computes prompt tokens may take this many times as long as one that only decodes."""

_WEIGHT: Final = 0.25  # of a new measurement in the running estimates
_OUTLIER: Final = 4.0  # one measurement moves an estimate as if it were off by this factor at most: a stall is not a trend
_REFRESH_STEPS: Final = 16  # under steady prefill every so many steps decode only, or the yardstick would go stale
_FLOOR_TOKENS: Final = 8  # prompts always make progress, whatever was measured


class PrefillBudget:
    """Chooses the prompt tokens of the next step so that it costs about `MIXED_STEP_RATIO` decode steps.

    A step is modelled as decode time plus prompt tokens times a cost per token; both are estimated from the steps before.
    """

    def __init__(self, ceiling_tokens: int) -> None:
        """`ceiling_tokens` is the most tokens that a step may hold."""
        self._ceiling = ceiling_tokens
        self._decode_s: float | None = None
        self._token_s: float | None = None
        self._mixed_steps = 0

    def tokens(self, decoding: int) -> int:
        """Prompt tokens for the next step, in which `decoding` requests decode. Nobody is held up where none does."""
        room = self._ceiling - decoding
        if decoding == 0:
            return room
        if self._mixed_steps >= _REFRESH_STEPS:
            return 0
        if not self._decode_s or not self._token_s:
            return min(room, _FLOOR_TOKENS)
        allowed = (MIXED_STEP_RATIO - 1.0) * self._decode_s / self._token_s
        return int(min(room, max(_FLOOR_TOKENS, allowed)))  # bounded first: the smallest costs make `allowed` infinite

    def observe(self, decoding: int, prompt_tokens: int, duration_s: float) -> None:
        """Learns from a step that took `duration_s` seconds."""
        self._mixed_steps = self._mixed_steps + 1 if decoding and prompt_tokens else 0
        if prompt_tokens == 0:
            self._decode_s = _moved(self._decode_s, duration_s)
        elif decoding == 0:
            # Long prompts alone are cheaper per token than a few tokens beside a decode: good enough to begin with only.
            self._token_s = self._token_s or duration_s / prompt_tokens
        elif self._decode_s is not None:
            self._token_s = _moved(self._token_s, max(duration_s - self._decode_s, 0.0) / prompt_tokens)


def _moved(estimate: float | None, measured: float) -> float | None:
    """None as long as nothing but 0 was measured: that says how coarse the measurement is, not that work is free."""
    if not estimate:
        return measured or None
    bounded = min(max(measured, estimate / _OUTLIER), estimate * _OUTLIER)
    return estimate + _WEIGHT * (bounded - estimate)


def share(prompts_left: Sequence[int], budget: int) -> list[int]:
    """Divides `budget` prompt tokens among requests with `prompts_left` tokens to compute, the oldest request first.

    Half goes to the oldest, so that none starves; the other half to the shortest, so that a short prompt does not wait for
    a long one. Never more than a request has left, never more than the budget.
    """
    shares = [0] * len(prompts_left)
    if not prompts_left:
        return shares
    shares[0] = min(prompts_left[0], (budget + 1) // 2)
    left = budget - shares[0]
    by_length = sorted(range(len(prompts_left)), key=lambda index: prompts_left[index])
    for index in by_length:
        more = min(prompts_left[index] - shares[index], left)
        shares[index] += more
        left -= more
    return shares
