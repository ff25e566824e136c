"""The shape of a Llama or Qwen2 model, read from GGUF metadata or a Hugging Face `config.json`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from aie_engine.errors import ModelError

# Limits no model comes near: they keep a damaged or hostile file from asking for absurd amounts of memory.
_LIMITS: dict[str, int] = {
    "layers": 1_024,
    "hidden": 131_072,
    "heads": 2_048,
    "kv_heads": 2_048,
    "head_dim": 1_024,
    "ffn": 1_048_576,
    "vocab": 4_194_304,
    "context": 16_777_216,
}
_LARGEST_NUMBER = 1e30  # of no constant of a model; JSON knows integers that no float can hold


@dataclass(frozen=True, slots=True)
class Architecture:
    """What sets one architecture apart from its kin: its class in Hugging Face folders, and how its attention is stored.

    `qkv_bias` is None where config.json decides (then for the output projection too). With `paired_rows` a GGUF file holds the
    rows of q and k in llama.cpp's order: the two halves that RoPE turns together as neighbours.
    """

    causal_class: str
    qkv_bias: bool | None
    paired_rows: bool


#: By `model_type` of config.json, which is `general.architecture` in GGUF.
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture("LlamaForCausalLM", qkv_bias=None, paired_rows=True),
    "qwen2": Architecture("Qwen2ForCausalLM", qkv_bias=True, paired_rows=False),
}


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes and constants of the decoder.

    `rope_factors` divides the RoPE frequencies one by one (head_dim / 2 values, Llama 3 style); None leaves them alone.
    `attention_bias` adds biases to the q, k and v projections, `output_bias` to attention's output projection. With `tied_head`
    the output head is the embedding.
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    rope_base: float
    norm_eps: float
    tied_head: bool
    attention_bias: bool = False
    output_bias: bool = False
    rope_factors: tuple[float, ...] | None = None

    @property
    def q_width(self) -> int:
        """Columns of the q projection: heads x head_dim."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the k (or the v) projection: kv_heads x head_dim."""
        return self.kv_heads * self.head_dim


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that the decoder reads, by Hugging Face name, with its shape."""
    hidden = config.hidden
    yield "model.embed_tokens.weight", (config.vocab, hidden)
    yield "model.norm.weight", (hidden,)
    if not config.tied_head:
        yield "lm_head.weight", (config.vocab, hidden)
    products = (  # name, columns out, columns in, bias
        ("self_attn.q_proj", config.q_width, hidden, config.attention_bias),
        ("self_attn.k_proj", config.kv_width, hidden, config.attention_bias),
        ("self_attn.v_proj", config.kv_width, hidden, config.attention_bias),
        ("self_attn.o_proj", hidden, config.q_width, config.output_bias),
        ("mlp.gate_proj", config.ffn, hidden, False),
        ("mlp.up_proj", config.ffn, hidden, False),
        ("mlp.down_proj", hidden, config.ffn, False),
    )
    for index in range(config.layers):
        prefix = f"model.layers.{index}"
        yield f"{prefix}.input_layernorm.weight", (hidden,)
        yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
        for name, width_out, width_in, bias in products:
            yield f"{prefix}.{name}.weight", (width_out, width_in)
            if bias:
                yield f"{prefix}.{name}.bias", (width_out,)


def config_from_gguf(
    metadata: Mapping[str, Any],
    path: Path,
    *,
    vocab: int,
    tied_head: bool,
    attention_bias: bool,
    output_bias: bool,
    rope_factors: tuple[float, ...] | None,
) -> ModelConfig:
    """Builds the configuration from GGUF metadata.

    What GGUF keeps in its tensors comes as arguments: the rows of the embedding, whether there are an output head and
    attention biases, and the values of `rope_freqs.weight`. Raises ModelError for other architectures and for RoPE scaling
    of other kinds.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise ModelError(path, f"architecture {architecture!r:.60}", ", ".join(ARCHITECTURES))
    fields = _Fields(metadata, path, prefix=f"{architecture}.")
    scaling = fields.get("rope.scaling.type", "none")
    refusals = (
        (metadata.get("split.count", 1) != 1, "one of several files of a split model", "one file (llama-gguf-split --merge)"),
        (scaling != "none", f"RoPE scaling {scaling!r:.40}", "none, or Llama 3 factors in rope_freqs.weight"),
        (bool(fields.get("expert_count", 0)), "mixture of experts", "dense models"),
        (bool(fields.get("attention.sliding_window", 0)), "sliding-window attention", "full attention"),
    )
    _refuse(refusals, path)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(key, head_dim) != head_dim:
            raise ModelError(path, f"{architecture}.{key} differs from the head size {head_dim}", "equal sizes")
    return _checked(
        path,
        ModelConfig(
            layers=fields.integer("block_count"),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=fields.integer("feed_forward_length"),
            vocab=vocab,
            context=fields.integer("context_length"),
            rope_base=fields.number("rope.freq_base", 10_000.0),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            tied_head=tied_head,
            attention_bias=attention_bias,
            output_bias=output_bias,
            rope_factors=rope_factors,
        ),
    )


def config_from_huggingface(raw: Mapping[str, Any], path: Path) -> ModelConfig:
    """Builds the configuration from a parsed `config.json`; raises ModelError for what the decoder cannot compute."""
    architecture = _huggingface_architecture(raw, path)
    # transformers 5 writes everything about RoPE into `rope_parameters`; before, the base stood beside `rope_scaling`.
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ModelError(path, "rope_parameters is not an object")
    layer_types = raw.get("layer_types") or []
    other_layers = [kind for kind in layer_types if kind != "full_attention"] if isinstance(layer_types, list) else layer_types
    partial = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor")) or 1
    refusals = (
        (raw.get("hidden_act", "silu") != "silu", f"activation {raw.get('hidden_act')!r:.40}", "silu"),
        (bool(raw.get("quantization_config")), "quantised weights", "float32, float16, bfloat16; or GGUF"),
        (bool(raw.get("mlp_bias")), "mlp_bias", "no bias in the feed-forward layers"),
        (bool(raw.get("use_sliding_window")), "use_sliding_window", "full attention (use_sliding_window false)"),
        (bool(other_layers), f"layer_types {layer_types!r:.60}", "full_attention in every layer"),
        (partial != 1, f"partial_rotary_factor {partial!r:.40}", "RoPE over the whole head"),
    )
    _refuse(refusals, path)
    fields = _Fields(raw, path)
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // max(heads, 1))
    base = _Fields(rope, path).number("rope_theta", fields.number("rope_theta", 10_000.0))
    declared_bias = bool(raw.get("attention_bias", False))
    config = _checked(
        path,
        ModelConfig(
            layers=fields.integer("num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            ffn=fields.integer("intermediate_size"),
            vocab=fields.integer("vocab_size"),
            context=fields.integer("max_position_embeddings", 2_048),
            rope_base=base,
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            tied_head=bool(raw.get("tie_word_embeddings", False)),
            attention_bias=declared_bias if architecture.qkv_bias is None else architecture.qkv_bias,
            output_bias=declared_bias and architecture.qkv_bias is None,
        ),
    )
    # After the check: there is a factor for each frequency, of which a hostile file claims any number.
    return _checked(path, replace(config, rope_factors=_rope_factors(rope, base, config.head_dim, path)))


def _huggingface_architecture(raw: Mapping[str, Any], path: Path) -> Architecture:
    model_type, classes = raw.get("model_type"), raw.get("architectures")
    architecture = ARCHITECTURES.get(model_type) if isinstance(model_type, str) else None
    if architecture is None:
        raise ModelError(path, f"model_type {model_type!r:.60}", ", ".join(ARCHITECTURES))
    if isinstance(classes, list) and classes and architecture.causal_class not in classes:
        raise ModelError(path, f"architectures {classes!r:.80}", ", ".join(row.causal_class for row in ARCHITECTURES.values()))
    return architecture


def _refuse(refusals: Iterable[tuple[bool, str, str]], path: Path) -> None:
    """Each row: whether to refuse, what is wrong, what would be accepted."""
    for refused, wrong, accepted in refusals:
        if refused:
            raise ModelError(path, wrong, accepted)


def _rope_factors(rope: Mapping[str, Any], base: float, head_dim: int, path: Path) -> tuple[float, ...] | None:
    """Per-frequency divisors of Llama 3.1 RoPE scaling ("The Llama 3 Herd of Models", and Meta's reference code).

    Long wavelengths are stretched by `factor`, short ones kept, and the band between is interpolated.
    """
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind != "llama3":
        raise ModelError(path, f"RoPE scaling {kind!r:.40}", "default, llama3")
    fields = _Fields(rope, path)
    factor, low, high = (fields.number(key) for key in ("factor", "low_freq_factor", "high_freq_factor"))
    original = fields.number("original_max_position_embeddings")
    if high <= low or min(base, factor, low, original) <= 0:
        raise ModelError(path, "inconsistent llama3 RoPE factors", "positive ones, high_freq_factor above low_freq_factor")
    factors = []
    for index in range(head_dim // 2):
        wavelength = 2 * math.pi * base ** (2 * index / head_dim)
        keep = min(max((original / wavelength - low) / (high - low), 0.0), 1.0)
        factors.append(1.0 / (keep + (1.0 - keep) / factor))
    return tuple(factors)


def _checked(path: Path, config: ModelConfig) -> ModelConfig:
    for name, limit in _LIMITS.items():
        value = getattr(config, name)
        if not 1 <= value <= limit:
            raise ModelError(path, f"{name} = {value!r:.40}", f"1 to {limit}")
    if config.heads % config.kv_heads:
        raise ModelError(path, f"{config.heads} heads do not divide into {config.kv_heads} KV heads")
    if config.head_dim % 2:
        raise ModelError(path, f"head size {config.head_dim} is odd", "even head sizes (RoPE turns pairs)")
    if not (config.rope_base > 0 and 0 < config.norm_eps < 1):
        raise ModelError(path, f"RoPE base {config.rope_base} or norm epsilon {config.norm_eps} out of range")
    if config.rope_factors is not None and (
        len(config.rope_factors) != config.head_dim // 2 or not all(0 < f < math.inf for f in config.rope_factors)
    ):
        raise ModelError(path, "RoPE factors do not fit the head size", f"{config.head_dim // 2} positive numbers")
    return config


@dataclass(frozen=True, slots=True)
class _Fields:
    """Typed access to untrusted key-value data; a missing or mistyped value is a ModelError that names the key."""

    values: Mapping[str, Any]
    path: Path
    prefix: str = ""

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ModelError(self.path, f"{self.prefix}{key} is {value!r:.40}", "an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST_NUMBER:
            raise ModelError(self.path, f"{self.prefix}{key} is {value!r:.40}", "a finite number")
        return float(value)

    def get(self, key: str, default: object) -> Any:
        """The value as it stands, or `default` where there is none."""
        return self.values.get(self.prefix + key, default)

    def _get(self, key: str, default: float | None) -> Any:
        value = self.values.get(self.prefix + key)
        if value is None:
            value = default
        if value is None:
            raise ModelError(self.path, f"{self.prefix}{key} is missing")
        return value
