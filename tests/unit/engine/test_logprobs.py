"""Log-probabilities stay with the text that they belong to, wherever it is cut; and both of OpenAI's forms."""

from __future__ import annotations

import math

import msgspec
import pytest
from fakes.fake_model import EOS, ByteTokenizer
from hypothesis import example, given
from hypothesis import strategies as st

from aie_engine.generation import AnswerText
from aie_engine.logprobs import LEAST_LOGPROB, ScoredToken, chat_logprobs, spell, text_logprobs
from aie_engine.plan import Token, TokenDetail


class PieceSpeller:
    """Tokens 0, 1, 2... are given pieces of bytes; decoded as `TokenStream` does."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def token_name(self, token_id: int) -> str:
        return f"<|{token_id}|>"

    def push(self, token_id: int) -> str:
        """What is complete; the rest waits."""
        self._held += self._pieces[token_id]
        for end in range(len(self._held), -1, -1):
            try:
                text = self._held[:end].decode()
            except UnicodeDecodeError:
                continue
            self._held = self._held[end:]
            return text
        return ""

    def finish(self) -> str:
        held, self._held = self._held, b""
        return held.decode(errors="replace")


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """`data` in pieces of such lengths, repeated; a length of 0 is a token that stands for nothing."""
    pieces = []
    index = 0
    while data:
        length = lengths[index % len(lengths)]
        pieces.append(data[:length])
        data = data[length:]
        index += 1
    return pieces


_words = st.text(alphabet="aäb€😀\n", max_size=12)


@given(
    _words,
    st.lists(st.integers(0, 4), min_size=1, max_size=5).filter(any),
    st.lists(st.text(alphabet="aäb€", min_size=1, max_size=3), max_size=2),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
@example("a€b", [1], ["€"], [True])
@example("ab€", [2], ["b€"], [False])
def test_tokens_follow_the_text_through_any_cut(text: str, lengths: list[int], stops: list[str], looks: list[bool]) -> None:
    """`looks` says after which tokens the client looks: that changes when tokens are shown, never which."""
    pieces = cut(text.encode(), lengths)
    speller = PieceSpeller(pieces)
    answer = AnswerText(speller, frozenset(), stops, scored=True)
    shown = ""
    scored: list[ScoredToken] = []
    for token_id in range(len(pieces)):
        shown += answer.push(Token(token_id))
        if answer.stopped:
            break
        if looks[token_id % len(looks)]:
            scored += answer.take_scored(complete=False)
            assert all(token.offset <= len(shown) for token in scored)  # never ahead of the text
    if not answer.stopped:
        shown += answer.finish()
    scored += answer.take_scored(complete=True)
    ids = [item.token.id for item in scored]
    assert ids == list(range(len(ids)))  # in order, none twice, none left out
    spelled = b"".join(pieces[token_id] for token_id in ids)
    if not answer.stopped:
        assert (shown, ids) == (text, list(range(len(pieces))))
        return
    assert spelled.decode(errors="replace").startswith(shown)
    if ids:  # no token too many: without the last of them the text would be shorter
        last = max(token_id for token_id in ids if pieces[token_id])
        assert not b"".join(pieces[:last]).decode(errors="ignore").startswith(shown)
    else:
        assert shown == ""
    for item in scored:
        assert item.offset == len(b"".join(pieces[: item.token.id]).decode(errors="ignore"))


def test_a_character_cut_off_at_the_end_keeps_its_tokens() -> None:
    speller = PieceSpeller([b"a", b"\xe2", b"\x82"])
    answer = AnswerText(speller, frozenset(), [], scored=True)
    assert [answer.push(Token(token_id)) for token_id in range(3)] == ["a", "", ""]
    assert [item.token.id for item in answer.take_scored(complete=False)] == [0]
    assert answer.finish() == "\ufffd"
    assert answer.take_scored(complete=True) == [ScoredToken(Token(1), 1), ScoredToken(Token(2), 1)]


def test_the_end_of_the_sequence_counts_and_is_not_shown() -> None:
    answer = AnswerText(ByteTokenizer().stream(), frozenset({EOS}), [], scored=True)
    assert answer.push(Token(ord("a"))) + answer.push(Token(EOS)) + answer.finish() == "a"
    assert answer.take_scored(complete=True) == [ScoredToken(Token(ord("a")), 0)]
    assert len(answer.tokens) == 2


def test_nothing_is_kept_for_those_who_do_not_ask() -> None:
    answer = AnswerText(ByteTokenizer().stream(), frozenset(), [])
    answer.push(Token(ord("a")))
    assert answer.take_scored(complete=True) == ()


@pytest.mark.parametrize(
    ("piece", "text", "raw"),
    [
        (b" Paris", " Paris", list(b" Paris")),
        ("€".encode(), "€", [0xE2, 0x82, 0xAC]),
        (b"\xe2\x82", "bytes:\\xe2\\x82", [0xE2, 0x82]),
        (b"a\xff", "bytes:\\x61\\xff", [0x61, 0xFF]),
        (b"", "<|0|>", None),
    ],
)
def test_a_token_is_spelled(piece: bytes, text: str, raw: list[int] | None) -> None:
    speller = PieceSpeller([piece])
    assert spell(speller, 0) == text
    token = Token(0, TokenDetail(-0.5, 1.0, 2.0, ((0, -0.5),)))
    content = msgspec.to_builtins(chat_logprobs([ScoredToken(token, 0)], speller, 1))["content"]
    alternative = {"token": text, "logprob": -0.5, "bytes": raw}
    assert content == [alternative | {"top_logprobs": [alternative]}]


_SPELLER = PieceSpeller([b"x", b"y", b"z"])
_TOKEN = ScoredToken(Token(2, TokenDetail(-3.0, 1.0, 2.0, ((0, -0.1), (1, -2.5)))), 7)


def test_alternatives_of_a_completion_include_the_chosen_token() -> None:
    form = text_logprobs([_TOKEN], _SPELLER, 2)
    assert (form.tokens, form.token_logprobs, form.text_offset) == (["z"], [-3.0], [7])
    assert form.top_logprobs == [{"x": -0.1, "y": -2.5, "z": -3.0}]
    assert text_logprobs([_TOKEN], _SPELLER, 1).top_logprobs == [{"x": -0.1, "z": -3.0}]
    assert text_logprobs([_TOKEN], _SPELLER, 0).top_logprobs is None


def test_what_json_cannot_say() -> None:
    impossible = ScoredToken(Token(0, TokenDetail(-math.inf, 1.0, 2.0, ((1, -math.inf),))), 0)
    broken = ScoredToken(Token(0, TokenDetail(math.nan, math.nan, math.nan)), 0)
    content = msgspec.json.decode(msgspec.json.encode(chat_logprobs([impossible, broken], _SPELLER, 1)))["content"]
    assert content[0]["logprob"] == content[0]["top_logprobs"][0]["logprob"] == LEAST_LOGPROB
    assert content[1]["logprob"] is None  # not a number that looks like one


def test_a_token_without_its_detail_is_no_answer() -> None:
    for form in (chat_logprobs, text_logprobs):
        with pytest.raises(ValueError, match="without the detail"):
            form([ScoredToken(Token(0), 0)], _SPELLER, 1)
