"""The prefill budget: bounds mixed steps by what clients usually wait for a token, on any machine, and divides fairly."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from aie_engine.prefill_budget import BURST, MIXED_STEP_RATIO, PrefillBudget, share


def run(budget: PrefillBudget, step_s: Callable[[int, int], float], decoding: int, steps: int) -> list[tuple[int, float]]:
    """Feeds steps of a simulated machine under endless prefill; returns (prompt tokens, seconds) of each."""
    taken = []
    for _ in range(steps):
        tokens = budget.tokens(decoding)
        duration_s = step_s(decoding, tokens)
        budget.observe(decoding, tokens, duration_s)
        taken.append((tokens, duration_s))
    return taken


@given(
    decode_ms=st.floats(1, 200),
    row_ms=st.floats(0, 5),
    token_ms=st.floats(0.001, 2),
    decoding=st.integers(1, 16),
)
def test_mixed_steps_settle_at_the_ratio(decode_ms: float, row_ms: float, token_ms: float, decoding: int) -> None:
    def step_s(rows: int, tokens: int) -> float:
        return (decode_ms + row_ms * rows + token_ms * tokens) / 1000

    budget = PrefillBudget(ceiling_tokens=4096)
    steps = run(budget, step_s, decoding, 200)[100:]
    limit_s = step_s(decoding, 0) * MIXED_STEP_RATIO * 1.02
    floor_s = step_s(decoding, 8) * 1.02
    assert all(duration_s <= max(limit_s, floor_s) for _, duration_s in steps)
    # And no less prefill than the ratio allows: nobody's first token waits for nothing.
    most = min(4096 - decoding, (MIXED_STEP_RATIO - 1) * step_s(decoding, 0) * 1000 / token_ms)
    mixed = [tokens for tokens, _ in steps if tokens]
    assert min(mixed) >= min(most * 0.9, most - 2)


def test_a_burst_of_prompts_goes_before_the_few_who_decode() -> None:
    budget = PrefillBudget(512)
    run(budget, lambda rows, tokens: 0.040 + 0.001 * tokens, 4, 60)
    steady = budget.tokens(4, prefilling=3)
    assert steady == 24
    assert budget.tokens(4, prefilling=BURST) == 120  # (4.0 - 1) * 40 ms
    assert budget.tokens(4, prefilling=30) == 120
    # Of many who decode, no burst that is smaller takes the time.
    assert budget.tokens(40, prefilling=39) == steady


def test_a_step_without_decodes_is_filled() -> None:
    assert PrefillBudget(256).tokens(0) == 256


def test_one_stall_does_not_change_the_budget_much() -> None:
    def step_s(rows: int, tokens: int) -> float:
        return 0.040 + 0.001 * tokens

    budget = PrefillBudget(512)
    run(budget, step_s, 4, 100)
    budget.observe(4, 0, step_s(4, 0))
    before = budget.tokens(4)
    assert before == 24
    budget.observe(4, before, 5.0)  # something else took the machine for five seconds
    assert budget.tokens(4) >= before * 0.5
    assert abs(max(tokens for tokens, _ in run(budget, step_s, 4, 60)[40:]) - before) <= 1


def test_the_budget_follows_a_machine_that_slows_down() -> None:
    budget = PrefillBudget(512)
    run(budget, lambda rows, tokens: 0.010 + 0.0001 * tokens, 4, 100)
    slow = run(budget, lambda rows, tokens: 0.030 + 0.002 * tokens, 4, 200)[-1]
    assert slow[1] <= 0.030 * MIXED_STEP_RATIO * 1.05


@given(
    ceiling=st.integers(17, 4096),
    steps=st.lists(
        st.tuples(st.sampled_from([0, 1, 16]), st.sampled_from([0, 1, 300]), st.sampled_from([0.0, 5e-324, 1e-9, 0.01, 1e9])),
        max_size=40,
    ),
)
def test_no_measurement_breaks_the_budget(ceiling: int, steps: list[tuple[int, int, float]]) -> None:
    budget = PrefillBudget(ceiling)
    for decoding, prompt_tokens, duration_s in steps:
        budget.observe(decoding, prompt_tokens, duration_s)
        assert 0 <= budget.tokens(decoding) <= ceiling - decoding


def test_a_clock_too_coarse_to_see_a_prompt_does_not_make_it_free() -> None:
    budget = PrefillBudget(512)
    budget.observe(4, 0, 0.010)
    budget.observe(4, 8, 0.010)
    assert budget.tokens(4) == 8
    budget.observe(4, 8, 0.018)  # a millisecond a token
    assert budget.tokens(4) == 8
    for _ in range(5_000):  # until the estimate is as small as a number can be
        budget.observe(4, 8, 0.0)
        budget.observe(4, 0, 0.010)
    assert budget.tokens(4) == 508


@given(left=st.lists(st.integers(1, 500), max_size=20), budget=st.integers(0, 600))
def test_shares_use_the_budget_and_starve_nobody_old(left: list[int], budget: int) -> None:
    shares = share(left, budget)
    assert all(0 <= given_ <= wanted for given_, wanted in zip(shares, left, strict=True))
    assert sum(shares) == min(budget, sum(left))
    if left:
        assert shares[0] >= min(left[0], (budget + 1) // 2)


def test_short_prompts_pass_long_ones() -> None:
    assert share([1000, 600, 20], 100) == [50, 30, 20]
