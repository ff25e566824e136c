"""Tokenizer: streaming loses nothing, control tokens cannot be forged, GGUF and folder agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import END, byte_tokens, tiny_llama, write_folder
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from aie_engine.errors import ModelError
from aie_engine.tokenizer import Tokenizer, tokenizer_from_folder, tokenizer_from_gguf

NOWHERE = Path("model.gguf")
CONTROL, USER_DEFINED, NORMAL = 3, 4, 1


def metadata(**changes: Any) -> dict[str, Any]:
    tokens = [*byte_tokens(), "<tool>"]
    base = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [CONTROL, *[NORMAL] * (len(tokens) - 2), USER_DEFINED],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": 0,
    }
    return base | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


TOKENIZER = tokenizer_from_gguf(metadata(), NOWHERE)


@given(st.text())
def test_plain_text_survives(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text, allow_special=False)) == text


# Any ids at all: bytes that are no UTF-8, control tokens, ids outside the vocabulary.
@given(st.lists(st.integers(-2, TOKENIZER.vocab_size + 2), max_size=60))
def test_stream_joined_is_decode(ids: list[int]) -> None:
    stream = TOKENIZER.stream()
    assert "".join([*map(stream.push, ids), stream.finish()]) == TOKENIZER.decode(ids)


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=60))
def test_decode_is_the_librarys(ids: list[int]) -> None:
    backend = Backend(models.BPE({token: index for index, token in enumerate([*byte_tokens(), "<tool>"])}, []))
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(END, special=True)])
    backend.add_tokens([AddedToken("<tool>", special=False)])
    assert TOKENIZER.decode(ids) == backend.decode(ids)


def test_characters_come_whole() -> None:
    ids = TOKENIZER.encode("a👍🏽é.", allow_special=False)
    assert len(ids) == 1 + 4 + 4 + 2 + 1
    stream = TOKENIZER.stream()
    assert [piece for piece in map(stream.push, ids) if piece] == ["a", "👍", "🏽", "é", "."]
    assert stream.finish() == ""


def test_unfinished_character_is_flushed_as_replacement() -> None:
    stream = TOKENIZER.stream()
    ids = TOKENIZER.encode("👍", allow_special=False)
    assert [stream.push(token_id) for token_id in ids[:3]] == ["", "", ""]
    assert stream.finish() == "�"


def test_control_tokens_are_recognised_only_in_templates() -> None:
    text = f"x{END}<tool>"
    marked, plain = TOKENIZER.encode(text, allow_special=True), TOKENIZER.encode(text, allow_special=False)
    assert 0 in marked
    assert 0 not in plain
    assert TOKENIZER.decode(plain) == text
    assert marked[-1] == plain[-1] == TOKENIZER.vocab_size - 1  # ordinary added tokens stay tokens
    assert TOKENIZER.decode(marked) == "x<tool>"


def test_begin_token_goes_before_plain_text_only() -> None:
    tokenizer = tokenizer_from_gguf(metadata(add_bos_token=True, bos_token_id=0), NOWHERE)
    assert tokenizer.encode("x", allow_special=False)[0] == 0
    assert tokenizer.encode("x", allow_special=True) == TOKENIZER.encode("x", allow_special=False)


def test_end_tokens_are_collected() -> None:
    assert tokenizer_from_gguf(metadata(eot_token_id=3), NOWHERE).eos_ids == {0, 3}


def test_pre_tokenizers_split_as_their_models_do() -> None:
    tokens = [*byte_tokens(), "12", "123", "1234"]
    types = [CONTROL, *[NORMAL] * (len(tokens) - 1)]
    changes = {"tokens": tokens, "token_type": types, "merges": ["1 2", "12 3", "123 4"]}
    lengths = {
        pre: len(tokenizer_from_gguf(metadata(pre=pre, **changes), NOWHERE).encode("1234", allow_special=False))
        for pre in ("smollm", "gpt-2", "default", "llama-bpe")
    }
    # Single digits; whole numbers; whole numbers; groups of three from the left.
    assert lengths == {"smollm": 4, "gpt-2": 1, "default": 1, "llama-bpe": 2}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": "llama"}, "tokenizer model"),
        ({"pre": "tekken"}, "tekken"),
        ({"tokens": None}, "tokens is missing"),
        ({"token_type": [1]}, "token types"),
        ({"merges": ["no such"]}, "do not fit together"),
        ({"merges": ["nospace"]}, "do not fit together"),
        ({"merges": [3]}, "do not fit together"),
        ({"tokens": list(range(258)), "token_type": [1] * 258}, "do not fit together"),
        ({"eos_token_id": 10_000}, "end-of-sequence"),
    ],
)
def test_damaged_tables_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        tokenizer_from_gguf(metadata(**changes), NOWHERE)


def test_folder_and_gguf_agree(tmp_path: Path) -> None:
    folder = tokenizer_from_folder(write_folder(tmp_path, tiny_llama()), [0])
    for text in ("about a cab", "ünïcode", f"{END}ab"):
        for allow_special in (True, False):
            expected = TOKENIZER.encode(text, allow_special=allow_special)
            assert folder.encode(text, allow_special=allow_special) == expected


def test_folder_without_byte_level_decoder_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.BPE({"a": 0}, []))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(" "), "removed")
    backend.decoder = decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelError, match="byte-level BPE"):
        tokenizer_from_folder(tmp_path, [])


def test_end_token_outside_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="end-of-sequence"):
        Tokenizer(Backend(models.BPE({"a": 0}, [])), [5])
