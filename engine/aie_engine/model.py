"""Llama-family decoder: the whole forward pass of a step, in the order it happens.

A step is one flat batch: the tokens of all sequences, of prompts and of decodes alike, stand in one [tokens, hidden]
matrix. Only attention knows about sequences; it works on one `Span` at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import Tensor

from aie_engine.kv_cache import KvCache
from aie_engine.linear import Layout, Linear, layout_for, padded_rows
from aie_engine.model_config import ModelConfig


class WeightSource(Protocol):
    """Tensors by Hugging Face name. `read` is called from several threads; it raises ModelError on missing or misshapen.

    `stored_bits` is the widest that a weight of any matrix takes in the files, known before anything is read: 32 for fp32, 16
    for fp16 and bf16, less for quantised ones (block scales counted, rounded up).
    """

    @property
    def stored_bits(self) -> int: ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence, which attend to `kv_tokens` KV slots from `kv_start` on.

    `mask` is None, or an additive [rows, kv_tokens] mask where the rows have a past and are several.
    """

    rows: int
    kv_start: int
    kv_tokens: int
    mask: Tensor | None = None


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What all layers of a step share. `cos` and `sin` are [tokens, 1, head_dim], the others [tokens] int64.

    The rows are those of `singles`, spans of one row, then those of `spans`, then `filling` rows that belong to no sequence: they
    fill the step up to a number of rows that the products like.
    """

    token_ids: Tensor
    slots: Tensor
    cos: Tensor
    sin: Tensor
    singles: Sequence[Span]
    spans: Sequence[Span]
    filling: int


class Decoder:
    """Weights and forward pass. Holds no state of any sequence: that is in the KvCache."""

    def __init__(
        self, config: ModelConfig, source: WeightSource, *, device: torch.device, dtype: torch.dtype, threads: int = 1
    ) -> None:
        """Reads and packs all weights, `threads` layers at a time. Raises ModelError (from `source`)."""
        self.config = config
        self.device = device
        self.dtype = dtype
        reader = _Reader(source, device, dtype)
        # Layer by layer, so that no more than a few layers exist in both layouts at once.
        with torch.inference_mode(), ThreadPoolExecutor(threads) as pool:
            self.layers = list(pool.map(lambda index: Layer(config, reader, index), range(config.layers)))
            embedding = reader.tensor("model.embed_tokens.weight", (config.vocab, config.hidden))
            self.norm = reader.tensor("model.norm.weight", (config.hidden,))
            head = embedding
            if not config.tied_head:
                head = reader.tensor("lm_head.weight", (config.vocab, config.hidden))
            self.head = Linear(head, layout=layout_for(head, source.stored_bits))
            # A few rows are read each step, so they may as well be kept as narrow as the head's.
            self.embedding = embedding.half() if self.head.layout is Layout.HALF else embedding

    @property
    def n_bytes(self) -> int:
        """Bytes of all weights. A tied head counts twice where it is prepacked, because then it exists twice."""
        shared = self.head.n_bytes if self.head.shares(self.embedding) else 0
        layers = sum(layer.n_bytes for layer in self.layers)
        return self.embedding.nbytes + self.norm.nbytes + self.head.n_bytes - shared + layers

    def rows_to_compute(self, rows: int) -> int:
        """With how many rows a step of `rows` rows is computed best: at least as many."""
        return padded_rows(rows) if self.head.layout is Layout.BLOCKED else rows

    def hidden_states(self, step: StepInputs, kv: KvCache) -> Tensor:
        """Runs all layers, storing the step's keys and values in `kv`. Returns [tokens, hidden], before the last norm."""
        x = self.embedding[step.token_ids].to(self.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, step, kv, index)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] from `hidden_states` -> [rows, vocab], in the model's dtype."""
        return self.head(_rms_norm(hidden, self.norm, self.config.norm_eps))


class Layer:
    """Attention and feed-forward block, each behind an RMSNorm and added to the residual stream."""

    def __init__(self, config: ModelConfig, reader: _Reader, index: int) -> None:
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        hidden, q, kv = config.hidden, config.q_width, config.kv_width
        self.config = config
        self.attention_norm = reader.tensor(f"{prefix}.input_layernorm.weight", (hidden,))
        self.mlp_norm = reader.tensor(f"{prefix}.post_attention_layernorm.weight", (hidden,))
        # q, k and v in one product, gate and up in another: one pass over the input, a third of the calls.
        qkv = {f"{attention}.q_proj": q, f"{attention}.k_proj": kv, f"{attention}.v_proj": kv}
        self.qkv = reader.linear(qkv, hidden, bias=config.attention_bias)
        self.output = reader.linear({f"{attention}.o_proj": hidden}, q, bias=config.output_bias)
        self.gate_up = reader.linear({f"{mlp}.gate_proj": config.ffn, f"{mlp}.up_proj": config.ffn}, hidden)
        self.down = reader.linear({f"{mlp}.down_proj": hidden}, config.ffn)

    @property
    def n_bytes(self) -> int:
        """Bytes of this layer's weights."""
        linears = (self.qkv, self.output, self.gate_up, self.down)
        return sum(linear.n_bytes for linear in linears) + self.attention_norm.nbytes + self.mlp_norm.nbytes

    def __call__(self, x: Tensor, step: StepInputs, kv: KvCache, index: int) -> Tensor:
        """[tokens, hidden] -> [tokens, hidden]; stores this layer's keys and values."""
        x = x + self._attention(_rms_norm(x, self.attention_norm, self.config.norm_eps), step, kv, index)
        gate, up = self.gate_up(_rms_norm(x, self.mlp_norm, self.config.norm_eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate).mul_(up))

    def _attention(self, x: Tensor, step: StepInputs, kv: KvCache, index: int) -> Tensor:
        heads, kv_heads, head_dim = self.config.heads, self.config.kv_heads, self.config.head_dim
        qkv = self.qkv(x).view(-1, heads + 2 * kv_heads, head_dim)
        turned = _rope(qkv[:, : heads + kv_heads], step.cos, step.sin)  # queries and keys in one go
        kv.store(index, step.slots, turned[:, heads:], qkv[:, heads + kv_heads :])
        mixed = []
        first_row = len(step.singles)
        # The query heads that share a key head become rows of one head: each key is read once, not once for each of them.
        queries = turned[:first_row, :heads].view(first_row, 1, kv_heads, heads // kv_heads, head_dim).unbind(0)
        for query, span in zip(queries, step.singles, strict=True):
            keys, values = kv.read(index, span.kv_start, span.kv_tokens)
            mixed.append(F.scaled_dot_product_attention(query, keys, values).view(1, heads * head_dim))
        for span in step.spans:
            keys, values = kv.read(index, span.kv_start, span.kv_tokens)
            mixed.append(_attend(turned[first_row : first_row + span.rows, :heads], keys, values, span.mask))
            first_row += span.rows
        if step.filling:
            mixed.append(x.new_zeros(step.filling, heads * head_dim))  # they attend to nothing
        return self.output(torch.cat(mixed))


class _Reader:
    """Moves tensors from a source to the device and dtype of the model, fusing projections that share their input."""

    def __init__(self, source: WeightSource, device: torch.device, dtype: torch.dtype) -> None:
        self._source = source
        self._device = device
        self._dtype = dtype

    def tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.read(name, shape).to(device=self._device, dtype=self._dtype)

    def linear(self, widths: dict[str, int], width_in: int, *, bias: bool = False) -> Linear:
        weight = torch.cat([self.tensor(f"{name}.weight", (width, width_in)) for name, width in widths.items()])
        biases = [self.tensor(f"{name}.bias", (width,)) for name, width in widths.items()] if bias else None
        return Linear(weight, None if biases is None else torch.cat(biases), layout=layout_for(weight, self._source.stored_bits))


def rope_tables(config: ModelConfig, positions: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin for positions 0 to `positions` - 1, each [positions, 1, head_dim] (RoFormer, arXiv:2104.09864).

    Half-split form: element i turns with element i + head_dim / 2. The sign of that rotation is folded into sin.
    """
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_base**exponents
    if config.rope_factors is not None:
        frequencies = frequencies / torch.tensor(config.rope_factors)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    tables = (torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1))
    return tables[0][:, None].to(device, dtype), tables[1][:, None].to(device, dtype)


def _rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns [tokens, heads, head_dim] by the tables of the tokens' positions."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, the mean in fp32 whatever the dtype (arXiv:1910.07467)."""
    return F.rms_norm(x, weight.shape, weight, eps)


def _attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Grouped-query attention of several rows of one sequence, causal where `mask` is None.

    q [rows, heads, head_dim], keys and values [1, kv_heads, n, head_dim] -> [rows, heads * head_dim].
    """
    causal = mask is None
    mixed = F.scaled_dot_product_attention(q.transpose(0, 1)[None], keys, values, attn_mask=mask, is_causal=causal, enable_gqa=True)
    return mixed[0].transpose(0, 1).flatten(1)
