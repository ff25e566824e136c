"""Stop strings: the same cut however the text is divided, and nothing of one is ever shown."""

from __future__ import annotations

import pytest
from fakes.fake_model import EOS, ByteStream
from hypothesis import example, given
from hypothesis import strategies as st

from aie_engine.generation import AnswerText
from aie_engine.plan import Token
from aie_engine.stop_strings import StopFilter, first_stop

# Few letters, so that overlaps, repeats and near misses are common.
_text = st.text("ab\n", max_size=30)
_stops = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4)


def cut(text: str, stops: list[str]) -> tuple[str, bool]:
    """The oracle: reads character by character, and stops as soon as a stop string is complete."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(text=_text, stops=_stops, pieces=st.lists(st.integers(0, 6)))
@example(text="abab", stops=["abab", "ba"], pieces=[4])
@example(text="aab", stops=["ab"], pieces=[1, 1, 1])
def test_any_division_gives_the_same_cut(text: str, stops: list[str], pieces: list[int]) -> None:
    expected, stopped = cut(text, stops)
    filter_ = StopFilter(stops)
    shown = ""
    rest = text
    for size in [*pieces, len(text)]:
        shown += filter_.push(rest[:size])
        rest = rest[size:]
        # Never more than what the whole text will show: no part of a stop string leaks.
        assert expected.startswith(shown)
    assert filter_.stopped == stopped
    assert shown + filter_.finish() == expected


@given(text=_text, stops=_stops)
def test_no_more_is_held_back_than_could_begin_a_stop_string(text: str, stops: list[str]) -> None:
    filter_ = StopFilter(stops)
    shown = filter_.push(text)
    if not filter_.stopped:
        held = text[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)


def test_without_stop_strings_nothing_is_held_back() -> None:
    filter_ = StopFilter([])
    assert filter_.push("any") == "any"
    assert filter_.finish() == ""


def test_nothing_comes_after_a_stop() -> None:
    filter_ = StopFilter(["x"])
    assert filter_.push("axb") == "a"
    assert filter_.push("c") == ""
    assert filter_.finish() == ""
    assert first_stop("axb", ["x"]) == 1


def test_an_answer_counts_tokens_up_to_the_stop_string_and_hides_the_end_of_sequence() -> None:
    text = AnswerText(ByteStream(), frozenset({EOS}), ["cd"])
    assert [text.push(Token(token_id)) for token_id in b"abcd"] == ["a", "b", "", ""]
    assert text.stopped
    assert len(text.tokens) == 4
    plain = AnswerText(ByteStream(), frozenset({EOS}), ["cd"])
    assert plain.push(Token(ord("c"))) == ""
    assert plain.push(Token(EOS)) == ""
    assert plain.finish() == "c"
    assert len(plain.tokens) == 2


class Truncated(ByteStream):
    """Ends in the middle of a character."""

    def finish(self) -> str:
        return "\ufffd"


@pytest.mark.parametrize(("stops", "expected"), [([], "a\ufffd"), (["\ufffd"], "a")])
def test_what_the_decoder_held_back_goes_through_the_filter_too(stops: list[str], expected: str) -> None:
    text = AnswerText(Truncated(), frozenset(), stops)
    assert text.push(Token(ord("a"))) + text.finish() == expected
    assert text.stopped == bool(stops)
