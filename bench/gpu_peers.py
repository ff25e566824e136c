"""The engine and transformers on one device, driven alike: so many sequences of the same length, a token for each in every step."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from aie_engine.kv_arena import KvArena
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner
from gpu_models import Loaded

_GREEDY = SamplingParams(temperature=0.0)
# Newer versions call it `cache`; older ones know it under this name only.
warnings.filterwarnings("ignore", message=".*past_key_values.* is deprecated", category=FutureWarning)


class Engine:
    """Model, KV cache and its accounting, without scheduler and server.

    `sums_up` turns False when a slot is lost or given twice.
    """

    name = "aie-engine"

    def __init__(self, loaded: Loaded, capacity_tokens: int, step_tokens: int) -> None:
        self.loaded = loaded
        self.device = loaded.decoder.device
        whole: Any = loaded  # of a LoadedModel the runner takes no more
        self.runner = Runner(whole, capacity_tokens=capacity_tokens, max_step_tokens=step_tokens)
        self.arena = KvArena(capacity_tokens)
        self.sums_up = True

    def begin(self, prompts: Sequence[list[int]], more_tokens: int) -> Run:
        """Computes the prompts, one after the other, with room for `more_tokens` after each."""
        starts = [self._reserve(len(prompt) + more_tokens) for prompt in prompts]
        run = Run(self, starts, [list(prompt) for prompt in prompts])
        for start, ids in zip(starts, run.sequences, strict=True):
            ids.extend(self.sample([Chunk(start, 0, list(ids), True, _GREEDY)]))
        return run

    def sample(self, chunks: list[Chunk]) -> list[int]:
        """The next token of each, known on the host."""
        return [token.id for token in self.runner.execute(chunks) if token is not None]

    def count(self) -> None:
        """Whether the accounting of KV slots still adds up."""
        self.sums_up &= self.arena.used + self.arena.free == self.arena.capacity

    def _reserve(self, tokens: int) -> int:
        start = self.arena.reserve(tokens)
        if start is None:
            raise RuntimeError(f"no room for {tokens} tokens beside {self.arena.used}")
        self.count()
        return start


class Run:
    """Sequences that decode together: their prompts and what has been sampled after each."""

    def __init__(self, engine: Engine, starts: list[int], sequences: list[list[int]]) -> None:
        self._engine = engine
        self._starts = starts
        self.sequences = sequences

    def _chunks(self) -> list[Chunk]:
        return [Chunk(at, len(ids) - 1, ids[-1:], True, _GREEDY) for at, ids in zip(self._starts, self.sequences, strict=True)]

    def step(self) -> None:
        """One more token for each. Returns when it is known on the host."""
        for ids, token in zip(self.sequences, self._engine.sample(self._chunks()), strict=True):
            ids.append(token)

    def logits(self) -> Tensor:
        """[sequences, vocab] that the next step samples from."""
        return self._engine.runner.logits(self._chunks())

    def end(self) -> None:
        """Gives the KV slots back."""
        for start in self._starts:
            self._engine.arena.release(start)
        self._engine.count()


class Peer:
    """transformers on the same device with the same weights: a forward pass a step over its dynamic cache."""

    name = "transformers"

    def __init__(self, model: Any, device: torch.device) -> None:
        self._model = model
        self._device = device

    def begin(self, prompts: Sequence[list[int]], more_tokens: int) -> PeerRun:
        """The same as the engine's; all prompts in one batch."""
        run = PeerRun(self._model, torch.tensor(prompts, device=self._device))
        run.step()
        return run

    def logits(self, ids: list[int]) -> Tensor:
        """[len(ids), vocab] of one pass over a sequence."""
        with torch.inference_mode():
            logits: Tensor = self._model(torch.tensor([ids], device=self._device)).logits[0]
        return logits


class PeerRun:
    """Its sequences."""

    def __init__(self, model: Any, ids: Tensor) -> None:
        from transformers import DynamicCache  # whoever has a model of it has it

        self._model, self._ids, self._cache = model, ids, DynamicCache()

    def step(self) -> None:
        """One more token for each. Returns when it is known on the host."""
        with torch.inference_mode():
            logits = self._model(self._ids, past_key_values=self._cache, use_cache=True, logits_to_keep=1).logits
            self._ids = logits[:, -1].argmax(-1, keepdim=True)
        self._ids.tolist()

    def end(self) -> None:
        """Nothing to give back: the cache goes with the object."""


class Stepping(Protocol):
    """What is common to the engine's sequences and the peer's."""

    def step(self) -> None: ...
    def end(self) -> None: ...


class Starting(Protocol):
    """The engine or its peer."""

    @property
    def name(self) -> str: ...
    def begin(self, prompts: Sequence[list[int]], more_tokens: int) -> Stepping: ...
