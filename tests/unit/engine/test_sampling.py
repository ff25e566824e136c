"""Sampling: right distribution, exact nucleus, and the same token whatever else is in the batch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_engine import sampling
from aie_engine.plan import SamplingParams
from aie_engine.sampling import uniform

DRAWS = 20_000


def sample(logits: torch.Tensor, params: Sequence[SamplingParams], positions: Sequence[int]) -> list[int]:
    return [token.id for token in sampling.sample(logits, params, positions)]


def draw(logits: torch.Tensor, temperature: float, top_p: float, draws: int = DRAWS) -> torch.Tensor:
    """Counts per token, [vocab], of draws at positions 0, 1, 2, ... with one seed."""
    params = [SamplingParams(temperature, top_p, seed=11)] * draws
    tokens = sample(logits.expand(draws, -1), params, range(draws))
    return torch.bincount(torch.tensor(tokens), minlength=logits.shape[-1])


def chi_square_p(counts: torch.Tensor, expected: torch.Tensor, degrees: int) -> float:
    """Probability of a chi-square statistic at least this large (NIST handbook, 1.3.5.15)."""
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(torch.special.gammaincc(torch.tensor(degrees / 2).double(), statistic.double() / 2))


def correlation(first: list[float], second: list[float]) -> float:
    return abs(float(torch.corrcoef(torch.tensor([first, second]))[0, 1]))


def reference_nucleus(probabilities: list[float], top_p: float) -> set[int]:
    order = sorted(range(len(probabilities)), key=lambda token: (-probabilities[token], token))
    kept: set[int] = set()
    total = 0.0
    for token in order:
        if total >= top_p:
            break
        kept.add(token)
        total += probabilities[token]
    return kept


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_frequencies_follow_the_probabilities(temperature: float, top_p: float) -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1))
    expected = torch.softmax(logits.double() / temperature, dim=-1)
    nucleus = sorted(reference_nucleus(expected.tolist(), top_p))
    counts = draw(logits, temperature, top_p)
    assert counts.sum() == counts[nucleus].sum()
    frequencies = expected[nucleus] / expected[nucleus].sum() * DRAWS
    assert chi_square_p(counts[nucleus], frequencies, len(nucleus) - 1) > 1e-3


def test_draws_agree_with_multinomial() -> None:
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2))
    torch.manual_seed(3)
    theirs = torch.multinomial(torch.softmax(logits, dim=-1), DRAWS, replacement=True)
    table = torch.stack([draw(logits, 1.0, 1.0), torch.bincount(theirs, minlength=30)])
    table = table[:, table.sum(dim=0) > 10].double()
    expected = table.sum(dim=0).expand(2, -1) / 2  # both rows have the same number of draws
    assert chi_square_p(table, expected, table.shape[1] - 1) > 1e-3


# Whole multiples of log 2 give many equal probabilities, where "smallest set" is decided by the lowest id.
@given(
    levels=st.lists(st.integers(-12, 0), min_size=1, max_size=600),
    top_p=st.floats(0.01, 0.99),
)
@settings(max_examples=150, deadline=None)
def test_nucleus_is_exact(levels: list[int], top_p: float) -> None:
    logits = torch.tensor([level * math.log(2.0) for level in levels])
    probabilities = torch.softmax(logits - logits.max(), dim=-1).double()
    kept = reference_nucleus((probabilities / probabilities.sum()).tolist(), top_p)
    almost = reference_nucleus((probabilities / probabilities.sum()).tolist(), min(top_p + 1e-6, 1.0))
    drawn = set(draw(logits, 1.0, top_p, draws=300).nonzero()[:, 0].tolist())
    assert drawn <= kept | almost
    if len(kept) <= 8:
        weights = torch.tensor([probabilities[token] for token in sorted(kept)])
        if float(weights.min() / weights.sum()) > 0.05:  # missed 300 times with probability 2e-7
            assert drawn >= kept


def test_flat_distribution_needs_more_than_the_likely_tokens() -> None:
    counts = draw(torch.zeros(2_000), 1.0, 0.5, draws=8_000)
    assert counts[:1_000].sum() == 8_000  # of equal tokens the lowest ids
    assert (counts[:1_000] > 0).sum() > 950


def test_a_row_does_not_depend_on_its_batch() -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(32, 5_000, generator=generator) * 3
    params = [SamplingParams([0.0, 0.7, 1.0][row % 3], [1.0, 0.9, 0.3, 0.999][row % 4], row) for row in range(32)]
    positions = list(range(100, 132))
    together = sample(logits, params, positions)
    alone = [sample(logits[row : row + 1], [params[row]], [positions[row]])[0] for row in range(32)]
    assert together == alone
    assert sample(logits.flip(0), params[::-1], positions[::-1]) == together[::-1]


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = torch.tensor([[0.0, 2.0, 2.0, 1.0]])
    assert sample(logits, [SamplingParams(0.0)], [0]) == [1]


@pytest.mark.parametrize("params", [SamplingParams(1e-9), SamplingParams(1e-9, 0.5), SamplingParams(1.0, 1e-9)])
def test_extreme_parameters_are_greedy(params: SamplingParams) -> None:
    logits = torch.tensor([[1e4, -1e4, 2e4, float("-inf")]])
    assert sample(logits, [params], [0]) == [2]


def test_the_largest_random_number_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "uniform", lambda seed, position: 1.0 - 2.0**-53)
    logits = torch.tensor([[1.0, 0.5, 0.7, float("-inf"), float("-inf")]])
    assert sample(logits, [SamplingParams(1.0, 1.0)], [0]) == [2]
    assert sample(logits, [SamplingParams(1.0, 0.5)], [0]) == [2]  # 0.42 alone does not reach it


def test_uniform_is_uniform_and_seeds_are_unrelated() -> None:
    for values in ([uniform(5, p) for p in range(DRAWS)], [uniform(s, 5) for s in range(DRAWS)]):
        assert 0 <= min(values) < max(values) < 1
        ordered = torch.tensor(values, dtype=torch.float64).sort().values
        distance = (ordered - torch.linspace(0, 1, DRAWS, dtype=torch.float64)).abs().max()
        assert distance < 1.95 / math.sqrt(DRAWS)  # Kolmogorov-Smirnov at 1e-3
        assert correlation(values[:-1], values[1:]) < 0.03
    streams = [[uniform(seed, position) for position in range(DRAWS)] for seed in (0, 1, -1)]
    assert correlation(streams[0], streams[1]) < 0.03
    assert correlation(streams[0], streams[2]) < 0.03


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_details_are_those_of_the_raw_distribution(dtype: torch.dtype) -> None:
    logits = (torch.randn(4, 500, generator=torch.Generator().manual_seed(3)) * 4).to(dtype)
    params = [
        SamplingParams(0.0, detail=3),
        SamplingParams(0.5, 0.9, 1),
        SamplingParams(2.0, 1.0, 2, detail=0),
        SamplingParams(detail=5),
    ]
    tokens = sampling.sample(logits, params, range(4))
    assert [token.id for token in tokens] == sample(logits, [dataclasses.replace(p, detail=None) for p in params], range(4))
    for token, row, p in zip(tokens, logits.double(), params, strict=True):
        if p.detail is None:
            assert token.detail is None
            continue
        assert token.detail is not None
        exact = torch.distributions.Categorical(logits=row)
        assert token.detail.logprob == pytest.approx(exact.logits[token.id].item(), abs=1e-4)
        assert token.detail.entropy == pytest.approx(exact.entropy().item(), abs=1e-4)
        assert token.detail.logsumexp == pytest.approx(row.logsumexp(0).item(), abs=1e-4)
        values, ids = exact.logits.sort(descending=True, stable=True)
        assert [token_id for token_id, _ in token.detail.top] == ids[: p.detail].tolist()
        assert [value for _, value in token.detail.top] == pytest.approx(values[: p.detail].tolist(), abs=1e-4)
