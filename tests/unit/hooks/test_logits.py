"""Numbers of the distributions that tokens are drawn from, against torch's own in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_receivers import UnixReceiver, manual_emitter, observations
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Categorical

from aie_hooks import LogitsHooks, token_stats
from aie_telemetry.catalogue import CATALOGUE

ENTROPY = "aie_engine_output_entropy_nats"
SURPRISAL = "aie_engine_output_surprisal_nats"
LOGSUMEXP = "aie_engine_first_token_logsumexp_nats"
LOG_LENGTH = "aie_engine_output_log_length"
MINUS_INF = -math.inf


def _oracle(logits: Tensor, chosen: Tensor) -> Tensor:
    wide = logits.double()
    distribution = Categorical(logits=wide)
    return torch.stack((distribution.log_prob(chosen), distribution.entropy(), wide.logsumexp(-1)), -1)


@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    vocab=st.integers(1, 3000),
    scale=st.sampled_from([1e-3, 1.0, 5.0, 50.0]),
    shift=st.sampled_from([-300.0, 0.0, 300.0]),
    masked=st.sampled_from([0.0, 0.5, 0.99]),
)
@settings(max_examples=150, deadline=None)
def test_against_torch_in_float64(seed: int, rows: int, vocab: int, scale: float, shift: float, masked: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, vocab, generator=generator) * scale + shift
    logits[torch.rand(rows, vocab, generator=generator) < masked] = MINUS_INF
    logits[:, 0] = shift  # one token at least can be chosen
    chosen = logits.argmax(-1)
    stats = token_stats(logits, chosen)
    torch.testing.assert_close(stats.double(), _oracle(logits, chosen), atol=2e-3, rtol=2e-5)
    assert (stats[:, 1] >= 0.0).all()
    assert (stats[:, 1] <= math.log(vocab) + 1e-4).all()


@pytest.mark.parametrize("vocab", [1, 2, 49152])
def test_of_equal_logits_the_entropy_is_the_logarithm_of_the_vocabulary(vocab: int) -> None:
    (row,) = token_stats(torch.full((1, vocab), 7.0), torch.tensor([vocab - 1])).tolist()
    assert row == pytest.approx([-math.log(vocab), math.log(vocab), 7.0 + math.log(vocab)], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_of_any_float_type(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(1)).to(dtype)
    chosen = torch.tensor([0, 499, 7])
    stats = token_stats(logits, chosen)
    assert (stats.dtype, stats.shape) == (torch.float32, (3, 3))
    torch.testing.assert_close(stats.double(), _oracle(logits, chosen), atol=1e-4, rtol=1e-4)


def test_a_certain_token_has_no_entropy() -> None:
    logits = torch.full((1, 1000), MINUS_INF)
    logits[0, 3] = 12.0
    assert token_stats(logits, torch.tensor([3])).tolist() == [[0.0, 0.0, 12.0]]


def test_a_token_that_was_masked_is_impossible() -> None:
    ((logprob, entropy, logsumexp),) = token_stats(torch.tensor([[0.0, 0.0, MINUS_INF]]), torch.tensor([2])).tolist()
    assert logprob == MINUS_INF
    assert (entropy, logsumexp) == pytest.approx((math.log(2), math.log(2)), rel=1e-6)


@pytest.mark.parametrize("poison", [math.nan, math.inf])
def test_rows_that_are_broken_say_so_and_spare_the_others(poison: float) -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = poison
    stats = token_stats(logits, torch.zeros(3, dtype=torch.int64))
    assert stats[1].isnan().all()
    assert stats[[0, 2]].isfinite().all()
    assert token_stats(torch.full((1, 4), MINUS_INF), torch.tensor([0])).isnan().all()


def test_the_logits_stay_what_they_are_and_keep_no_graph() -> None:
    logits = torch.randn(2, 50, requires_grad=True)
    before = logits.detach().clone()
    stats = token_stats(logits, torch.tensor([1, 2]))
    assert torch.equal(logits, before)
    assert not stats.requires_grad


class _Answers:
    def __init__(self, receiver: UnixReceiver, path: Path, rate: float = 1.0) -> None:
        self.receiver = receiver
        self.emitter = manual_emitter(f"unix://{path}")
        self.hooks = LogitsHooks(self.emitter, model="m", rate=rate)

    def sent(self) -> dict[str, list[float]]:
        self.emitter.flush()
        samples = self.receiver.samples()
        return {name: observations(samples, name) for name in (ENTROPY, SURPRISAL, LOGSUMEXP, LOG_LENGTH)}

    def dropped(self) -> int:
        return self.emitter.stats().dropped["invalid"]


@pytest.fixture
def answers(receiver: UnixReceiver, socket_path: Path) -> _Answers:
    return _Answers(receiver, socket_path)


def test_a_whole_answer(answers: _Answers) -> None:
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(40, 800, generator=generator) * 3
    chosen = Categorical(logits=logits).sample()
    answer = answers.hooks.enter()
    assert answer.wanted
    for row in token_stats(logits, chosen).tolist():
        answer.add(*row)
    answer.end()
    answer.end()
    answer.add(-1.0, 1.0, 1.0)
    oracle = _oracle(logits, chosen)
    assert answers.sent() == {
        ENTROPY: [pytest.approx(float(oracle[:, 1].mean()), rel=1e-4)],
        SURPRISAL: [pytest.approx(-float(oracle[:, 0].mean()), rel=1e-4)],
        LOGSUMEXP: [pytest.approx(float(oracle[0, 2]), rel=1e-4)],
        LOG_LENGTH: [pytest.approx(math.log(40), rel=1e-4)],
    }


def test_an_answer_without_tokens_leaves_nothing(answers: _Answers) -> None:
    answers.hooks.enter().end()
    assert answers.sent() == {ENTROPY: [], SURPRISAL: [], LOGSUMEXP: [], LOG_LENGTH: []}


def test_one_certain_token(answers: _Answers) -> None:
    answer = answers.hooks.enter()
    answer.add(1e-7, 0.0, 3.0)
    answer.end()
    assert answers.sent() == {ENTROPY: [0.0], SURPRISAL: [0.0], LOGSUMEXP: [3.0], LOG_LENGTH: [0.0]}


def test_nan_is_counted_and_left_out(answers: _Answers) -> None:
    answer = answers.hooks.enter()
    for row in ((-1.0, 2.0, 5.0), (math.nan, math.nan, math.nan), (MINUS_INF, 1.0, 5.0), (-3.0, 4.0, 5.0)):
        answer.add(*row)
    answer.end()
    assert answers.sent() == {
        ENTROPY: [3.0],
        SURPRISAL: [2.0],
        LOGSUMEXP: [5.0],
        LOG_LENGTH: [pytest.approx(math.log(4), rel=1e-5)],
    }
    assert answers.dropped() == 2


def test_an_answer_of_nothing_but_nan_is_a_length_and_a_count(answers: _Answers) -> None:
    answer = answers.hooks.enter()
    answer.add(math.nan, math.nan, math.nan)
    answer.end()
    assert answers.sent() == {ENTROPY: [], SURPRISAL: [], LOGSUMEXP: [], LOG_LENGTH: [0.0]}
    assert answers.dropped() == 2  # its numbers, and the log-sum-exp of its first token


def test_a_logsumexp_below_zero_is_sent_with_its_sign(answers: _Answers) -> None:
    answer = answers.hooks.enter()
    answer.add(-1.0, 1.0, -37.5)
    answer.end()
    answers.emitter.flush()
    assert b"\naie_engine_first_token_logsumexp_nats,engine=chat,model=m:-37.5|h\n" in b"".join(
        b"\n%s\n" % packet for packet in answers.receiver.packets()
    )
    assert answers.dropped() == 0


@pytest.mark.parametrize("name", [name for name, metric in CATALOGUE.items() if metric.buckets])
def test_which_metrics_may_be_negative(receiver: UnixReceiver, socket_path: Path, name: str) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    labels: dict[str, Any] = {label: "x" for label in CATALOGUE[name].labels if label != "engine"}
    emitter.histogram(name, **labels).record(-1.0)
    emitter.histogram(name, **labels).record(MINUS_INF)
    assert emitter.stats().dropped["invalid"] == (1 if CATALOGUE[name].buckets[0] < 0.0 else 2)


def test_about_the_share_that_was_asked_for_is_looked_at(receiver: UnixReceiver, socket_path: Path) -> None:
    hooks = _Answers(receiver, socket_path, rate=0.25).hooks
    wanted = 0
    for _ in range(1000):
        answer = hooks.enter()
        wanted += answer.wanted
        answer.add(-1.0, 1.0, 1.0)
        answer.end()
    assert 180 < wanted < 320  # 0.25 +- 5 standard deviations
    hooks.emitter.flush()
    samples = receiver.samples()
    assert len(observations(samples, ENTROPY)) == wanted
    assert {sample.rate for sample in samples if sample.type == "histogram"} == {0.25}


def test_an_answer_ends_with_its_with(answers: _Answers) -> None:
    with answers.hooks.enter() as answer:
        answer.add(-2.0, 1.0, 5.0)
    assert answers.sent()[SURPRISAL] == [2.0]


@pytest.mark.parametrize("error", [KeyError, GeneratorExit])
def test_an_answer_that_was_cut_off_says_nothing_of_the_model(answers: _Answers, error: type[BaseException]) -> None:
    answer = answers.hooks.enter()
    answer.add(-2.0, 1.0, 5.0)
    with pytest.raises(error), answer:
        raise error
    answer.end()
    assert answers.sent() == {ENTROPY: [], SURPRISAL: [], LOGSUMEXP: [], LOG_LENGTH: []}
    assert answers.dropped() == 0
