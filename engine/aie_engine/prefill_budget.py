"""How many prompt tokens may share a step with decoding requests. Pure arithmetic on measured step times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MIXED_STEP_RATIO: Final = 1.6
"""A step that also computes prompt tokens may take this many times as long as what clients usually wait for a token.

With what a batch that grows and shrinks adds, the 99th percentile stays below twice the median (`bench/inter_token.py`).
"""

BURST: Final = 4
BURST_STEP_RATIO: Final = 4.0
"""The same while at least `BURST` prompts wait, and as many as requests decode: keeping a few clients' tokens steady then costs the
many more than it is worth. Under a steady load this is rare."""

_WEIGHT: Final = 0.25  # of a new measurement in the running estimates
_OUTLIER: Final = 4.0  # one measurement moves an estimate as if it were off by this factor at most: a stall is not a trend
_REFRESH_STEPS: Final = 16  # under steady prefill every so many steps decode only, or the yardstick would go stale
_FLOOR_TOKENS: Final = 8  # prompts always make progress, whatever was measured
_USUAL_TOKENS: Final = 200.0  # decoded tokens after which a change of the usual wait is mostly forgotten


class PrefillBudget:
    """Chooses the prompt tokens of the next step so that it takes at most `MIXED_STEP_RATIO` usual waits for a token.

    A step is modelled as the time to decode for so many requests plus prompt tokens times a cost per token; both are estimated
    from the steps before. The usual wait is the mean over decoded tokens, not over steps: it is what a client sees.
    """

    def __init__(self, ceiling_tokens: int) -> None:
        """`ceiling_tokens` is the most tokens that a step may hold."""
        self._ceiling = ceiling_tokens
        self._decode_s: dict[int, float] = {}  # by the number of requests that decode
        self._usual_s: float | None = None
        self._token_s: float | None = None
        self._mixed_steps = 0

    def tokens(self, decoding: int, prefilling: int = 1) -> int:
        """Prompt tokens for the next step, in which `decoding` requests decode while `prefilling` have prompts to compute.

        Nobody is held up where none decodes; and where a burst of prompts outnumbers those who do, the many go first.
        """
        room = self._ceiling - decoding
        if decoding == 0:
            return room
        if self._mixed_steps >= _REFRESH_STEPS:
            return 0
        if not self._usual_s or not self._token_s:
            return min(room, _FLOOR_TOKENS)
        ratio = BURST_STEP_RATIO if prefilling >= max(BURST, decoding) else MIXED_STEP_RATIO
        allowed = (ratio * self._usual_s - self._decoding_s(decoding)) / self._token_s
        return int(min(room, max(_FLOOR_TOKENS, allowed)))  # bounded first: the smallest costs make `allowed` infinite

    def observe(self, decoding: int, prompt_tokens: int, duration_s: float) -> None:
        """Learns from a step that took `duration_s` seconds."""
        self._mixed_steps = self._mixed_steps + 1 if decoding and prompt_tokens else 0
        if prompt_tokens == 0:
            if estimate := _moved(self._decode_s.get(decoding), duration_s):
                self._decode_s[decoding] = estimate
            self._usual_s = _moved(self._usual_s, duration_s, decoding / (decoding + _USUAL_TOKENS))
        elif decoding == 0:
            # Long prompts alone are cheaper per token than a few tokens beside a decode: good enough to begin with only.
            self._token_s = self._token_s or duration_s / prompt_tokens
        elif self._decode_s:
            self._token_s = _moved(self._token_s, max(duration_s - self._decoding_s(decoding), 0.0) / prompt_tokens)

    def _decoding_s(self, decoding: int) -> float:
        """Estimated time to decode for so many requests: as for the nearest number of them that was measured."""
        return self._decode_s[min(self._decode_s, key=lambda measured: abs(measured - decoding))]


def _moved(estimate: float | None, measured: float, weight: float = _WEIGHT) -> float | None:
    """None as long as nothing but 0 was measured: that says how coarse the measurement is, not that work is free."""
    if not estimate:
        return measured or None
    bounded = min(max(measured, estimate / _OUTLIER), estimate * _OUTLIER)
    return estimate + weight * (bounded - estimate)


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
