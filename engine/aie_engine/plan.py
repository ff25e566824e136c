"""What one step of the engine is: the contract between the scheduler and the runner.

The scheduler knows requests and token counts but no tensors; the runner knows tensors but no requests. All that passes
between them is a list of `Chunk`s one way and a list of `Token`s the other way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen.

    `temperature` 0 is greedy (ties go to the lowest id). `top_p` in (0, 1] keeps the smallest set of most likely tokens whose
    probability reaches it. `seed` makes a request reproducible whatever else shares its batch: the random number for a
    token depends on the seed and the token's position alone.

    `detail` asks for a `TokenDetail` with each token, with so many of the most likely tokens in it; None asks for none, and costs
    nothing.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    detail: int | None = None


class TokenDetail(NamedTuple):
    """What the model's distribution looked like where a token was chosen, before temperature and top-p. In nats.

    `logprob` is the chosen token's. `logsumexp` is of the raw logits. `top` are the most likely tokens with their
    log-probabilities, the most likely first, the lowest id first among equals.
    """

    logprob: float
    entropy: float
    logsumexp: float
    top: tuple[tuple[int, float], ...] = ()


class Token(NamedTuple):
    """A sampled token; `detail` where its request asked for it."""

    id: int
    detail: TokenDetail | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive tokens of one sequence to compute in this step: a piece of its prompt, or the one token it decodes from.

    `kv_start` is the first token slot of the sequence's extent in the KV cache; the token at sequence position p lives in
    slot `kv_start + p`. `position` is the sequence position of `token_ids[0]`, which is also how many of its tokens the
    cache already holds. `sample` says whether the token after the last one is wanted.
    """

    kv_start: int
    position: int
    token_ids: Sequence[int]
    sample: bool
    sampling: SamplingParams
