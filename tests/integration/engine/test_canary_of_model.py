"""The canary of a real model: alike alone and in any batch, and another number once one layer is a twentieth too large."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, LEARNT, CanaryWatch
from aie_engine.canary import Prompt
from aie_engine.loading import LoadedModel
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner
from aie_hooks.canary import ALONE_NOISE_NATS
from aie_hooks.logits import token_stats

pytestmark = pytest.mark.model

SAMPLING = SamplingParams()
BESIDE = 64
"""Token slots of each sequence beside the canary."""


class Model:
    """A runner, and the canary in its first slots."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.decoder = loaded.decoder
        self.runner = Runner(loaded, capacity_tokens=9 * BESIDE, max_step_tokens=9 * BESIDE)
        self.prompt = Prompt(loaded.tokenizer, self.runner.max_sequence_tokens, 9 * BESIDE)
        self.rng = random.Random(1)

    def alone(self) -> float:
        """As the engine asks it."""
        return self.prompt.logprob(self.runner, 0)

    def in_a_batch(self) -> float:
        """As an engine asks it that has no step for it alone: among prompts and decodes of others."""
        others = []
        for place in range(1, self.rng.randint(2, 9)):
            ids = [self.rng.randrange(100, 40_000) for _ in range(self.rng.choice((1, 1, 1, 30)))]
            others.append(Chunk(place * BESIDE, 0, ids, True, SAMPLING))
        logits = self.runner.logits([Chunk(0, 0, self.prompt.given, True, SAMPLING), *others])
        return float(token_stats(logits[:1], torch.tensor([self.prompt.expected]))[0, 0])

    @contextmanager
    def scaled(self, layer: int, factor: float) -> Iterator[None]:
        """One layer's share of the residual stream, all of it, times a factor."""
        norms = (self.decoder.layers[layer].attention_norm, self.decoder.layers[layer].mlp_norm)
        before = [norm.clone() for norm in norms]
        with torch.inference_mode():
            for norm in norms:
                norm.mul_(factor)
        yield
        with torch.inference_mode():
            for norm, old in zip(norms, before, strict=True):
                norm.copy_(old)


@pytest.fixture(scope="module")
def model(loaded: LoadedModel) -> Model:
    return Model(loaded)


@pytest.fixture
def watch(model: Model) -> CanaryWatch:
    """That has learnt what the model gives."""
    watch = CanaryWatch(0.0, ALONE_NOISE_NATS)
    level = model.alone()
    for _ in range(LEARNT):
        watch.take(level, 0.0)
    return watch


def test_alone_it_gives_the_same_to_the_last_bit(model: Model) -> None:
    assert len({model.alone() for _ in range(3)}) == 1


def test_other_batches_are_no_other_model(model: Model, watch: CanaryWatch) -> None:
    apart = [abs(model.in_a_batch() - (watch.level or 0.0)) for _ in range(8)]
    assert max(apart) < (watch.limit or 0.0) / 20, "a batch does less to the last bits than is allowed for"


@pytest.mark.parametrize("layer", [0, 15, 29])
def test_one_layer_a_twentieth_too_large_is_found(model: Model, watch: CanaryWatch, layer: int) -> None:
    with model.scaled(layer, 1.05):
        changed = model.alone()
    began = [watch.take(changed, float(run)) for run in range(CONSECUTIVE_RUNS)]
    assert began[-1], f"{changed - (watch.level or 0.0):+.3f} nats, the limit is {watch.limit}"
    assert model.alone() == watch.level, "and the model is as it was"
