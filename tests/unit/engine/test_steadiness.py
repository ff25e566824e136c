"""How steady tokens come: the real scheduler on a simulated machine, so that nothing depends on the speed of this one."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import pytest

from aie_engine.kv_arena import KvArena
from aie_engine.ledger import Ticket
from aie_engine.plan import Chunk, SamplingParams, Token
from aie_engine.request import Request
from aie_engine.scheduler import Limits, Scheduler
from aie_hooks import Emitter, RequestHooks

#: (prompt tokens, answer tokens, how often): mostly short ones, and a few long prompts that hold up everybody.
MIX = ((16, 32, 70), (16, 96, 15), (80, 48, 10), (550, 32, 5))


class Seen(NamedTuple):
    """What clients saw: seconds between tokens, and from arrival to the first token."""

    gaps: list[float]
    first: list[float]


def step_s(chunks: Sequence[Chunk], noise: random.Random) -> float:
    """A small model on one core, as measured: 30 ms, 3.2 a decode, 1.5 a prompt token; 3 % noise."""
    decodes = sum(len(chunk.token_ids) == 1 for chunk in chunks)
    prompt_tokens = sum(len(chunk.token_ids) for chunk in chunks) - decodes
    return (0.030 + 0.0032 * decodes + 0.0015 * prompt_tokens) * noise.lognormvariate(0, 0.03)


def serve(per_second: float, seconds: float, seed: int) -> Seen:
    """Requests that arrive at random moments (Poisson), until all are answered."""
    rng, noise = random.Random(seed), random.Random(seed + 1)
    scheduler = Scheduler(Limits(16, 1000, 256, 8192, frozenset()), KvArena(12_288))
    ticket = Ticket(0.0, RequestHooks(Emitter("e", "off"), model="m").enter())
    arrivals, at = [], 0.0
    while (at := at + rng.expovariate(per_second)) < seconds:
        prompt, answer, _ = rng.choices(MIX, weights=[share for _, _, share in MIX])[0]
        arrivals.append((at, Request([1] * prompt, answer, SamplingParams(0.0), 1e9, ticket, lambda _: None)))
    arrived_at = {id(request): at for at, request in arrivals}
    now, coming, seen = 0.0, arrivals[::-1], Seen([], [])
    while coming or scheduler.has_requests:
        if not scheduler.has_requests:
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            scheduler.submit(coming.pop()[1])
        plan = scheduler.plan(now)
        duration_s = step_s(plan.chunks, noise)
        now += duration_s
        result = scheduler.step_done([Token(5) if chunk.sample else None for chunk in plan.chunks], duration_s, now)
        seen.first.extend(now - arrived_at[id(request)] for request in result.first)
        for gap_s, tokens in result.gaps.items():
            seen.gaps.extend([gap_s] * tokens)
    return seen


@pytest.mark.parametrize("per_second", [0.5, 1.0, 1.5, 2.0, 2.5])
def test_the_99th_percentile_stays_below_twice_the_median(per_second: float) -> None:
    seen = serve(per_second, seconds=300, seed=1)
    cuts = statistics.quantiles(seen.gaps, n=100)
    assert cuts[98] <= 2 * cuts[49]
    # Nor is it bought with first tokens: most requests have short prompts, which need not wait for long ones.
    assert statistics.median(seen.first) <= 8 * cuts[49]
