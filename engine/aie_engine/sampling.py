"""Choice of the next token: greedy, temperature, top-p.

The random number of a token is a hash of (seed, position): no generator state, so a request gives the same tokens alone
and in any batch, and a step can be computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from aie_engine.plan import SamplingParams, Token, TokenDetail
from aie_hooks.logits import token_stats

_MASK64 = (1 << 64) - 1
# The nucleus of a trained model nearly always lies among this many tokens; sorting all 49,152 takes ten times as long.
_LIKELY_TOKENS = 256
_WIDEN = 16
_MIN_TEMPERATURE = 1e-9


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


def sample(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[Token]:
    """Chooses one token for each row, and describes the distribution it came from where `params[i].detail` asks for that.

    `logits` is [rows, vocab] of any float dtype; `params[i]` and `positions[i]` (of the token being chosen) belong to row
    i. Temperature 0 takes the most likely token, the lowest id among equals.
    """
    chosen = _choose(logits, params, positions)
    wanted = [row for row, p in enumerate(params) if p.detail is not None]
    if not wanted:
        return [Token(token_id) for token_id in chosen.tolist()]
    all_wanted = len(wanted) == len(params)
    described = _describe(
        logits if all_wanted else logits[wanted],
        chosen if all_wanted else chosen[wanted],
        max(params[row].detail or 0 for row in wanted),
    )
    # Fetched as one tensor, so that the device is waited for once. A float64 holds every token id.
    numbers = torch.cat((chosen.double(), described.flatten())).tolist()
    width = described.shape[1]
    details = {}
    for place, row in enumerate(wanted):
        first = len(params) + place * width
        details[row] = _detail(numbers[first : first + width], params[row].detail or 0)
    return [Token(int(token_id), details.get(row)) for row, token_id in enumerate(numbers[: len(params)])]


def _describe(logits: Tensor, chosen: Tensor, n_top: int) -> Tensor:
    """The numbers of a `TokenDetail` for each row: [rows, 3 + 2 * n_top] float64, ids of the most likely before their log-p."""
    stats = token_stats(logits, chosen)
    if n_top == 0:
        return stats.double()
    top, top_ids = _most_likely(logits.float(), n_top)
    return torch.cat((stats.double(), top_ids.double(), (top - stats[:, 2:]).double()), dim=-1)


def _detail(numbers: Sequence[float], n_top: int) -> TokenDetail:
    logprob, entropy, logsumexp = numbers[:3]
    ids, values = numbers[3 : 3 + (len(numbers) - 3) // 2], numbers[3 + (len(numbers) - 3) // 2 :]
    return TokenDetail(logprob, entropy, logsumexp, tuple((int(i), value) for i, value in zip(ids, values, strict=True))[:n_top])


def _choose(logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> Tensor:
    """Token ids, [rows] int64, on the device of the logits."""
    chosen = logits.argmax(dim=-1)
    whole = [row for row, p in enumerate(params) if p.temperature > 0 and p.top_p >= 1]
    nucleus = [row for row, p in enumerate(params) if p.temperature > 0 and p.top_p < 1]
    for rows in (whole, nucleus):
        if not rows:
            continue
        probabilities = _probabilities(logits[rows], [params[row].temperature for row in rows])
        u = _column([uniform(params[row].seed, positions[row]) for row in rows], logits.device)
        if rows is whole:
            chosen[rows] = _draw(probabilities, u)
        else:
            chosen[rows] = _draw_top_p(probabilities, u, _column([params[row].top_p for row in rows], logits.device))
    return chosen


def _column(values: list[float], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)[:, None]


def _probabilities(logits: Tensor, temperatures: list[float]) -> Tensor:
    # Far below any difference that fp32 logits can have, so this is greedy already; it only keeps the division finite.
    divisors = [max(temperature, _MIN_TEMPERATURE) for temperature in temperatures]
    return torch.softmax(logits.float() / _column(divisors, logits.device).float(), dim=-1)


def _draw(probabilities: Tensor, u: Tensor) -> Tensor:
    """Inverse of the cumulative distribution at u: [rows, n] fp32 and [rows, 1] fp64 -> [rows]."""
    # fp32 is enough: on the CPU torch sums in fp64 and rounds only what it stores. Storing fp64 takes 15 times as long.
    cumulative = probabilities.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounded up to the total, the target would lie beyond the last token that has a probability.
    target = torch.minimum((u * total).float(), total.nextafter(torch.zeros_like(total)))
    index = torch.searchsorted(cumulative, target, right=True)
    # Only NaN gets past the end.
    return index.clamp_(max=probabilities.shape[-1] - 1)[:, 0]


def _draw_top_p(probabilities: Tensor, u: Tensor, top_p: Tensor, n_likely: int = _LIKELY_TOKENS) -> Tensor:
    """Draws from the smallest set of most likely tokens that reaches `top_p`; of equal tokens the lowest ids are taken.

    Looks at the `n_likely` most likely tokens, and again at more of them for the rows whose set may not lie within.
    """
    vocab = probabilities.shape[-1]
    target = top_p * probabilities.sum(dim=-1, keepdim=True, dtype=torch.float64)
    likely, ids = _most_likely(probabilities, n_likely)
    before = likely.cumsum(dim=-1, dtype=torch.float64) - likely
    tokens = ids.gather(-1, _draw(likely * (before < target), u)[:, None])[:, 0]
    # Complete when the target is reached among tokens strictly more likely than any that topk left out.
    reached = (likely * (likely > likely[:, -1:])).sum(dim=-1, dtype=torch.float64) >= target[:, 0]
    rest = (~reached).nonzero()[:, 0]
    if n_likely < vocab and len(rest):
        tokens[rest] = _draw_top_p(probabilities[rest], u[rest], top_p[rest], n_likely * _WIDEN)
    return tokens


def _most_likely(probabilities: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Probabilities, or logits, and ids of the most likely tokens, the most likely first, the lowest id first among equals."""
    if count >= probabilities.shape[-1]:
        return torch.sort(probabilities, dim=-1, descending=True, stable=True)
    values, ids = probabilities.topk(count, dim=-1, sorted=False)
    # topk alone promises no order among equals.
    ids, order = ids.sort(dim=-1)
    values, order = values.gather(-1, order).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
