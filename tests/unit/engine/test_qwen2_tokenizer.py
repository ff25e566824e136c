"""Qwen2's tokenizer read from GGUF gives the ids of transformers' own: same words, same normal form."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tiny_models import END, byte_tokens
from transformers import Qwen2Tokenizer

from aie_engine.errors import ModelError
from aie_engine.tokenizer import Tokenizer, tokenizer_from_gguf

# Merges across the borders that pre-tokenizers draw: they show where text was cut.
MERGES = ["1 2", "12 3", "123 4", "Ġ Ġ", "Ġ a", "a b", "' s", "! !", "Ċ Ċ", ". Ċ", "Ã ©", "Ġ !"]
TOKENS = [*byte_tokens(), *("".join(merge.split(" ")) for merge in MERGES if merge != "a b")]


def from_gguf(pre: object) -> Tokenizer:
    types = [3, *[1] * (len(TOKENS) - 1)]  # control, normal
    table = {"model": "gpt2", "pre": pre, "tokens": TOKENS, "token_type": types, "merges": MERGES, "eos_token_id": 0}
    return tokenizer_from_gguf({f"tokenizer.ggml.{key}": value for key, value in table.items()}, Path("model.gguf"))


OURS = from_gguf("qwen2")
THEIRS = Qwen2Tokenizer(
    vocab={token: index for index, token in enumerate(TOKENS)},
    merges=[tuple(merge.split(" ")) for merge in MERGES],
    eos_token=END,
    unk_token=END,
    pad_token=END,
)
WORDS = st.lists(
    st.sampled_from(["1234", "12", " ", "  ", "a", "ab", "'s", "'S", "!!", ".\n", "\n\n", "\t", "é", "e\u0301", "日本", "🙂"])
)


@given(WORDS.map("".join) | st.text())
@example("1234 12")
@example("x  ab's!!\n\n  \n é")
@example("e\u0301")
def test_ids_are_those_of_transformers(text: str) -> None:
    text = text.replace(END, "")
    assert OURS.encode(text, allow_special=False) == THEIRS(text, add_special_tokens=False)["input_ids"]


def test_it_is_neither_llama_3_nor_gpt_2() -> None:
    """The texts above can tell them apart: digits stand alone in Qwen2, in threes in Llama 3; and é is composed."""
    digits, accent = "1234", "e\u0301"
    for other in ("llama-bpe", "gpt-2", "smollm"):
        tokenizer = from_gguf(other)
        ids = [one.encode(text, allow_special=False) for one in (OURS, tokenizer) for text in (digits, accent)]
        assert ids[:2] != ids[2:], other
    assert OURS.decode(OURS.encode(accent, allow_special=False)) == "\u00e9"


@pytest.mark.parametrize("pre", [["qwen2"], 7, "qwen35"])
def test_other_kinds_are_refused(pre: object) -> None:
    with pytest.raises(ModelError, match=r"pre-tokenizer .*accepted: .*llama-bpe, qwen2"):
        from_gguf(pre)
