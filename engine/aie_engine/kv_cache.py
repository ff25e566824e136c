"""Keys and values of every cached token, allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from aie_engine.model_config import ModelConfig


class KvCache:
    """Storage of shape [layers, 2 * kv_heads, capacity_tokens, head_dim]: in each layer the key heads, then the value heads.

    One sequence owns one contiguous extent of token slots, so attention reads views and copies nothing. Heads come before
    tokens because a decode step at a long context is bound by reading keys in order (4,000 tokens: 0.38 ms a layer instead
    of 0.48); keys and values share one tensor so that a step stores both with one copy.
    """

    def __init__(self, config: ModelConfig, capacity_tokens: int, *, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ValueError for a capacity below one token."""
        if capacity_tokens < 1:
            raise ValueError(f"KV capacity of {capacity_tokens} tokens")
        # One slot more than can be handed out: rows that only fill up a step store there.
        shape = (config.layers, 2 * config.kv_heads, capacity_tokens + 1, config.head_dim)
        # Written, not only reserved: otherwise the pages become resident one by one while serving, which looks like a
        # leak from outside and can fail long after start.
        self._storage = torch.empty(shape, device=device, dtype=dtype).zero_()
        self._layers = tuple(self._storage)
        self._kv_heads = config.kv_heads
        self.capacity_tokens = capacity_tokens
        self.spare_slot = capacity_tokens

    @property
    def bytes(self) -> int:
        """Bytes of the whole storage, all of them resident."""
        return self._storage.nbytes

    def store(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """Writes [tokens, 2 * kv_heads, head_dim] (key heads first) into the token slots [tokens] (int64)."""
        self._layers[layer].index_copy_(1, slots, keys_values.transpose(0, 1))

    def read(self, layer: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of keys and values in slots [start, end), each [1, kv_heads, end - start, head_dim]."""
        extent = self._layers[layer][None, :, start:end]
        return extent[:, : self._kv_heads], extent[:, self._kv_heads :]
