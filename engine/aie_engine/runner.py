"""Executes one step: chunks of token ids in, sampled token ids out. Knows tensors but no requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from aie_engine.kv_cache import KvCache
from aie_engine.model import Span, StepInputs, rope_tables
from aie_engine.plan import Chunk, Token
from aie_engine.sampling import sample
from aie_hooks.nvtx import annotate

if TYPE_CHECKING:  # a model may come from elsewhere than files, and reading those takes more packages than running it
    from aie_engine.loading import LoadedModel


class Runner:
    """Owns the KV cache and the step buffers of one model. Not thread-safe: one thread calls it."""

    def __init__(self, loaded: LoadedModel, *, capacity_tokens: int, max_step_tokens: int) -> None:
        """Allocates everything that outlives a step, and touches it. Raises ValueError for sizes below 1."""
        if max_step_tokens < 1:
            raise ValueError(f"max_step_tokens is {max_step_tokens}")
        self._decoder = loaded.decoder
        self._config = loaded.config
        self._max_step_tokens = max_step_tokens
        device, dtype = self._decoder.device, self._decoder.dtype
        self._kv = KvCache(self._config, capacity_tokens, device=device, dtype=dtype)
        #: Positions a sequence can have: what the model was trained for, or what fits the cache if that is less.
        self.max_sequence_tokens = min(self._config.context, capacity_tokens)
        with torch.inference_mode():
            self._cos, self._sin = rope_tables(self._config, self.max_sequence_tokens, device, dtype)

    @property
    def capacity_tokens(self) -> int:
        """Token slots of the KV cache."""
        return self._kv.capacity_tokens

    @property
    def weights_bytes(self) -> int:
        """Bytes of the model's weights, in every layout that is kept."""
        return self._decoder.n_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of the KV cache, whatever part of it is in use."""
        return self._kv.bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes the runner keeps between steps besides weights and KV cache. Activations within a step are not in it."""
        return self._cos.nbytes + self._sin.nbytes

    def execute(self, chunks: Sequence[Chunk]) -> list[Token | None]:
        """Computes all chunks as one batch and samples where asked; the answer is aligned with `chunks`.

        Raises ValueError, before anything is computed, for a chunk that does not fit the step, the KV cache, the context
        or the vocabulary.
        """
        sampled = [chunk for chunk in chunks if chunk.sample]
        logits = self.logits(chunks)
        if not sampled:
            return [None] * len(chunks)
        params = [chunk.sampling for chunk in sampled]
        positions = [chunk.position + len(chunk.token_ids) for chunk in sampled]
        with annotate("sample"), torch.inference_mode():
            tokens = iter(sample(logits, params, positions))
        return [next(tokens) if chunk.sample else None for chunk in chunks]

    def logits(self, chunks: Sequence[Chunk]) -> Tensor:
        """Computes all chunks; returns [n, vocab] with one row for the last token of each chunk with `sample`, in order.

        Raises ValueError like `execute`.
        """
        self._validate(chunks)
        if not chunks:
            return torch.empty(0, self._config.vocab, device=self._decoder.device, dtype=self._decoder.dtype)
        with annotate("forward"), torch.inference_mode():
            # Those of one row first: attention takes them together.
            order = sorted(range(len(chunks)), key=lambda index: len(chunks[index].token_ids) > 1)
            step = self._inputs([chunks[index] for index in order])
            hidden = self._decoder.hidden_states(step, self._kv)
            end_rows = accumulate(len(chunks[index].token_ids) for index in order)
            end_row_of = dict(zip(order, end_rows, strict=True))
            last_rows = [end_row_of[index] - 1 for index, chunk in enumerate(chunks) if chunk.sample]
            # The head is a fifth of a decode step: rows of a prompt that nobody samples from do not go through it.
            filled = last_rows + [0] * (self._decoder.rows_to_compute(len(last_rows)) - len(last_rows)) if last_rows else []
            return self._decoder.logits(hidden[filled])[: len(last_rows)]

    def _inputs(self, chunks: Sequence[Chunk]) -> StepInputs:
        """What the layers need to compute `chunks`, of which those of one row come first."""
        device = self._decoder.device
        token_ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        spans: list[Span] = []
        for chunk in chunks:
            end = chunk.position + len(chunk.token_ids)
            token_ids.extend(chunk.token_ids)
            positions.extend(range(chunk.position, end))
            slots.extend(range(chunk.kv_start + chunk.position, chunk.kv_start + end))
            spans.append(Span(len(chunk.token_ids), chunk.kv_start, end, self._mask(chunk)))
        filling = self._decoder.rows_to_compute(len(token_ids)) - len(token_ids)
        token_ids.extend([0] * filling)
        positions.extend([0] * filling)
        slots.extend([self._kv.spare_slot] * filling)
        index = torch.tensor([token_ids, positions, slots], dtype=torch.int64).to(device)
        singles = sum(span.rows == 1 for span in spans)
        return StepInputs(index[0], index[2], self._cos[index[1]], self._sin[index[1]], spans[:singles], spans[singles:], filling)

    def _mask(self, chunk: Chunk) -> Tensor | None:
        """Additive causal mask [rows, position + rows] for several rows with a past; None where SDPA needs none."""
        rows = len(chunk.token_ids)
        if rows == 1 or chunk.position == 0:
            return None
        # SDPA's own causal mask starts at the top left corner, which is wrong once there is a past.
        shape = (rows, chunk.position + rows)
        mask = torch.full(shape, float("-inf"), device=self._decoder.device, dtype=self._decoder.dtype)
        return mask.triu_(chunk.position + 1)

    def _validate(self, chunks: Sequence[Chunk]) -> None:
        step_tokens = sum(len(chunk.token_ids) for chunk in chunks)
        if step_tokens > self._max_step_tokens:
            raise ValueError(f"step of {step_tokens} tokens, at most {self._max_step_tokens}")
        for chunk in chunks:
            end = chunk.position + len(chunk.token_ids)
            if not chunk.token_ids:
                raise ValueError("chunk without tokens")
            if chunk.position < 0 or end > self.max_sequence_tokens:
                raise ValueError(f"positions {chunk.position} to {end}, at most {self.max_sequence_tokens}")
            if chunk.kv_start < 0 or chunk.kv_start + end > self.capacity_tokens:
                raise ValueError(f"KV slots {chunk.kv_start} to {chunk.kv_start + end}, there are {self.capacity_tokens}")
            if min(chunk.token_ids) < 0 or max(chunk.token_ids) >= self._config.vocab:
                raise ValueError(f"token id outside 0 to {self._config.vocab - 1}")
