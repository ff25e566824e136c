"""Choice of the next token: greedy, temperature, top-p.

The random number of a token is a hash of (seed, position): no generator state, so a request gives the same tokens alone
and in any batch, and a step can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aie_engine.plan import SamplingParams

_MASK64 = (1 << 64) - 1
# The nucleus of a trained model nearly always lies among this many tokens; sorting all 49,152 takes 30 times as long.
_LIKELY_TOKENS = 256


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, from the seed and the token's position alone.

    SplitMix64's finaliser, applied once to the seed and again to its sum with the position's Weyl step, so that
    neighbouring seeds give unrelated sequences (Steele, Lea, Flood: "Fast splittable pseudorandom number generators").
    """
    state = _mix(seed & _MASK64) + (position + 1) * 0x9E3779B97F4A7C15
    return (_mix(state & _MASK64) >> 11) * 2.0**-53


def _mix(value: int) -> int:
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK64
    return value ^ (value >> 31)


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    """Chooses one token id for each row.

    `logits` is [rows, vocab] of any float dtype; `params[i]` and `positions[i]` (of the token being chosen) belong to row
    i. Temperature 0 takes the most likely token, the lowest id among equals.
    """
    chosen: list[int] = logits.argmax(dim=-1).tolist()
    whole = [row for row, p in enumerate(params) if p.temperature > 0 and p.top_p >= 1]
    nucleus = [row for row, p in enumerate(params) if p.temperature > 0 and p.top_p < 1]
    for rows in (whole, nucleus):
        if not rows:
            continue
        probabilities = _probabilities(logits[rows], [params[row].temperature for row in rows])
        u = _column([uniform(params[row].seed, positions[row]) for row in rows], logits.device)
        if rows is whole:
            tokens = _draw(probabilities, u)
        else:
            tokens = _draw_top_p(probabilities, u, _column([params[row].top_p for row in rows], logits.device))
        for row, token in zip(rows, tokens.tolist(), strict=True):
            chosen[row] = token
    return chosen


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


def _probabilities(logits: Tensor, temperatures: list[float]) -> Tensor:
    scores = logits.float()
    # The largest score becomes 0 first, so that a temperature near 0 cannot overflow.
    scores = scores - scores.amax(dim=-1, keepdim=True)
    return torch.softmax(scores / _column(temperatures, logits.device).float(), dim=-1)


def _draw(probabilities: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution at u: [rows, n] and [rows, 1] -> [rows]."""
    # fp64: 49,152 fp32 additions would bias the tail by about 1e-3.
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    index = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return index.clamp_(max=probabilities.shape[-1] - 1)[:, 0]


def _draw_top_p(probabilities: Tensor, u: Tensor, top_p: Tensor) -> Tensor:
    """Draws from the smallest set of most likely tokens that reaches `top_p`; of equal tokens the lowest ids are taken."""
    n_likely = min(_LIKELY_TOKENS, probabilities.shape[-1])
    target = top_p * probabilities.sum(dim=-1, keepdim=True, dtype=torch.float64)
    likely, ids = _sorted_by_probability(*probabilities.topk(n_likely, dim=-1, sorted=False))
    # Complete when the target is reached among tokens strictly more likely than any that topk left out.
    reached = (likely * (likely > likely[:, -1:])).sum(dim=-1, keepdim=True, dtype=torch.float64) >= target
    if not bool(reached.all()):
        likely, ids = torch.sort(probabilities, dim=-1, descending=True, stable=True)
    before = likely.cumsum(dim=-1, dtype=torch.float64) - likely
    kept = likely * (before < target)
    return ids.gather(-1, _draw(kept, u)[:, None])[:, 0]


def _sorted_by_probability(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Most likely first, lowest id first among equals, which topk alone does not promise."""
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
