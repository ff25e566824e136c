"""Byte-level BPE tokenizers on the `tokenizers` library, from GGUF metadata or a Hugging Face folder."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import NFC
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreSequence
from tokenizers.processors import TemplateProcessing

from aie_engine.errors import ModelError, require_regular

_MAX_JSON_BYTES = 256 << 20
# Values of tokenizer.ggml.token_type.
_CONTROL, _USER_DEFINED = 3, 4

# How text falls into words before merging. Llama 3 and Qwen2 differ in how many digits stay together.
_LLAMA3_WORDS, _QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + digits + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    for digits in ("{1,3}", "")
)


class Tokenizer:
    """Text to token ids and back. Thread-safe: nothing changes after construction.

    `eos_ids` are the tokens that end an answer. `vocab_size` is one more than the highest id.
    """

    def __init__(self, backend: Backend, eos_ids: Iterable[int]) -> None:
        """`backend` must decode by bytes (ByteLevel); `eos_ids` outside the vocabulary raise ValueError."""
        added = backend.get_added_tokens_decoder()
        special = {token_id for token_id, token in added.items() if token.special}
        self._marked = backend
        self._plain = _without_special_tokens(backend)
        self._bytes = _token_bytes(backend, special)
        self.vocab_size = len(self._bytes)
        self.eos_ids = frozenset(eos_ids)
        if any(not 0 <= token_id < self.vocab_size for token_id in self.eos_ids):
            raise ValueError(f"end-of-sequence ids {sorted(self.eos_ids)}, the vocabulary has {self.vocab_size}")

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        """Token ids of `text`.

        With `allow_special` control tokens such as `<|im_end|>` are recognised and none is added: for rendered chat
        templates, which write all of theirs. Without it they are ordinary text, so that a user cannot forge a turn, and
        the model's begin-of-sequence token is put in front where it wants one.
        """
        backend = self._marked if allow_special else self._plain
        # A batch of one: only for batches does the library let other threads run meanwhile, the model's among them.
        ids: list[int] = backend.encode_batch_fast([text], add_special_tokens=not allow_special)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. Control tokens and ids outside the vocabulary give nothing, invalid UTF-8 gives U+FFFD."""
        return b"".join(map(self.token_bytes, ids)).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for control tokens and for ids outside the vocabulary."""
        # A model's vocabulary may be padded beyond the tokenizer's.
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_name(self, token_id: int) -> str:
        """How the vocabulary writes a token, such as `<|im_end|>`; for an id outside it `<id>`."""
        name: str | None = self._marked.id_to_token(token_id) if token_id >= 0 else None
        return f"<{token_id}>" if name is None else name

    def stream(self) -> TokenStream:
        """A decoder for one answer, token by token."""
        return TokenStream(self)


class TokenStream:
    """Decodes one answer as its tokens arrive; the pieces joined are what `decode` gives for all of them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """Text that is complete with this token; a character still missing bytes is held back."""
        return self._utf8.decode(self._tokenizer.token_bytes(token_id))

    def finish(self) -> str:
        """What was held back, as replacement characters."""
        return self._utf8.decode(b"", final=True)


def tokenizer_from_gguf(metadata: Mapping[str, Any], path: Path) -> Tokenizer:
    """Builds the tokenizer described by `tokenizer.ggml.*`; raises ModelError for other kinds and damaged tables."""
    tokens, types, merges = (_list(metadata, f"tokenizer.ggml.{key}", path) for key in ("tokens", "token_type", "merges"))
    if metadata.get("tokenizer.ggml.model") != "gpt2":
        raise ModelError(path, f"tokenizer model {metadata.get('tokenizer.ggml.model')!r:.40}", "gpt2 (byte-level BPE)")
    kind = metadata.get("tokenizer.ggml.pre", "default")
    if not isinstance(kind, str) or kind not in _PRE_TOKENIZERS:
        raise ModelError(path, f"pre-tokenizer {kind!r:.40}", ", ".join(sorted(_PRE_TOKENIZERS)))
    if len(types) != len(tokens):
        raise ModelError(path, f"{len(types)} token types for {len(tokens)} tokens")
    try:
        pairs = [tuple(merge.split(" ")) for merge in merges]
        vocab = {token: token_id for token_id, token in enumerate(tokens)}
        backend = Backend(BPE(vocab, pairs, ignore_merges=kind == "llama-bpe"))  # Llama 3 prefers whole words
    except Exception as error:  # the library raises bare Exception for merges outside the vocabulary
        raise ModelError(path, f"tokenizer tables do not fit together: {error}") from error
    backend.pre_tokenizer = _PRE_TOKENIZERS[kind]()
    if kind in _NORMALISED:
        backend.normalizer = NFC()
    backend.decoder = ByteLevelDecoder()
    for token_type, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        chosen = (token for token, its_type in zip(tokens, types, strict=True) if its_type == token_type)
        added = [AddedToken(token, special=special, normalized=False) for token in chosen]
        (backend.add_special_tokens if special else backend.add_tokens)(added)
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token") and isinstance(bos, int) and 0 <= bos < len(tokens):
        backend.post_processor = TemplateProcessing(f"{_BOS} $A", None, [(_BOS, bos)])
    eos_keys = ("eos", "eot", "eom")
    ends = (metadata.get(f"tokenizer.ggml.{key}_token_id") for key in eos_keys)
    return _checked(backend, [end for end in ends if isinstance(end, int)], path)


def tokenizer_from_folder(folder: Path, eos_ids: Iterable[int]) -> Tokenizer:
    """Reads `tokenizer.json`; raises ModelError when it is missing, damaged, or not byte-level."""
    path = folder / "tokenizer.json"
    require_regular(path, "a tokenizer.json of the tokenizers library")
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelError(path, "too large", f"up to {_MAX_JSON_BYTES >> 20} MiB")
        backend = Backend.from_file(str(path))
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception for anything it cannot parse
        raise ModelError(path, f"cannot be read: {error}", "a tokenizer.json of the tokenizers library") from error
    backend.no_truncation()
    backend.no_padding()
    return _checked(backend, eos_ids, path)


def special_token_texts(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The texts of begin- and end-of-sequence in GGUF metadata, under the names that chat templates use."""
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    ids = {key: metadata.get(f"tokenizer.ggml.{key}_id") for key in ("bos_token", "eos_token")}
    return {key: tokens[index] for key, index in ids.items() if isinstance(index, int) and 0 <= index < len(tokens)}


_BOS = "bos"  # a name inside the post-processor, never seen in text


def _split_by(words: str) -> PreTokenizer:
    return PreSequence([Split(Regex(words), "isolated"), ByteLevel(add_prefix_space=False, use_regex=False)])


# Those whose models have seen composed characters only (é in one piece), as their own tokenizers in Hugging Face folders say.
_NORMALISED = frozenset({"qwen2"})

_PRE_TOKENIZERS: dict[str, Callable[[], PreTokenizer]] = {
    "smollm": lambda: PreSequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)]),
    "llama-bpe": lambda: _split_by(_LLAMA3_WORDS),
    "qwen2": lambda: _split_by(_QWEN2_WORDS),
    "gpt-2": lambda: ByteLevel(add_prefix_space=False),
    # Files from before the key existed say nothing or "default"; transformers reads them as GPT-2 too.
    "default": lambda: ByteLevel(add_prefix_space=False),
}


def _list(metadata: Mapping[str, Any], key: str, path: Path) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise ModelError(path, f"{key} is missing", "a GGUF file with its tokenizer")
    return value


def _checked(backend: Backend, eos_ids: Iterable[int], path: Path) -> Tokenizer:
    decoder = json.loads(backend.to_str())["decoder"] or {}
    if decoder.get("type") != "ByteLevel":
        raise ModelError(path, f"tokenizer with decoder {decoder.get('type')}", "byte-level BPE")
    try:
        return Tokenizer(backend, eos_ids)
    except ValueError as error:
        raise ModelError(path, str(error)) from error


def _without_special_tokens(backend: Backend) -> Backend:
    """The same tokenizer, sharing its tables, but blind to control tokens."""
    plain = Backend(backend.model)
    plain.normalizer = backend.normalizer
    plain.pre_tokenizer = backend.pre_tokenizer
    plain.post_processor = backend.post_processor
    plain.add_tokens([token for token in backend.get_added_tokens_decoder().values() if not token.special])
    return plain


def _token_bytes(backend: Backend, special: set[int]) -> list[bytes]:
    """The bytes each token stands for, by id; empty for control tokens and for gaps."""
    byte_of = {character: value for value, character in enumerate(_byte_characters())}
    vocab = backend.get_vocab(with_added_tokens=True)
    table = [b""] * (max(vocab.values(), default=-1) + 1)
    for text, token_id in vocab.items():
        if token_id not in special:
            # A token with a character outside the byte alphabet stands for itself, as in the library's own decoder.
            known = all(character in byte_of for character in text)
            table[token_id] = bytes(byte_of[character] for character in text) if known else text.encode()
    return table


def _byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte value 0 to 255 (openai/gpt-2: encoder.py, bytes_to_unicode)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    others = [value for value in range(256) if value not in printable]
    return [chr(value) if value in printable else chr(256 + others.index(value)) for value in range(256)]
