"""Prompts of unknown length: what fits is encoded as ever, what is far too long is refused for the price of its beginning."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import TOKENIZER

from aie_engine.prompts import encode_prompt
from aie_engine.scheduler import RequestTooLongError
from aie_engine.tokenizer import TokenStream


class Counting:
    """The real tokenizer; `chars` is how much text it was given. Runs of spaces are one token, as in real vocabularies."""

    eos_ids = TOKENIZER.eos_ids
    vocab_size = TOKENIZER.vocab_size

    def __init__(self, *, wide_spaces: bool = False) -> None:
        self.chars = 0
        self._wide_spaces = wide_spaces

    def encode(self, text: str, *, allow_special: bool) -> list[int]:
        self.chars += len(text)
        short = text.replace(" " * 64, " ") if self._wide_spaces else text
        return TOKENIZER.encode(short, allow_special=allow_special)

    def stream(self) -> TokenStream:
        return TOKENIZER.stream()


@pytest.mark.parametrize("allow_special", [True, False])
def test_a_prompt_far_too_long_costs_its_beginning(allow_special: bool) -> None:
    codec = Counting()
    with pytest.raises(RequestTooLongError, match="at most 1000 tokens"):
        encode_prompt(codec, "1" * 900_000, 1000, allow_special=allow_special)
    assert codec.chars == 2_000


def test_a_beginning_of_few_tokens_hides_nothing() -> None:
    codec = Counting(wide_spaces=True)
    with pytest.raises(RequestTooLongError):
        encode_prompt(codec, " " * 2_000 + "1" * 900_000, 1000, allow_special=False)
    assert codec.chars == 2_000 + 8_000


@pytest.mark.parametrize("length", [1, 399, 400, 401, 1_601, 6_400])
def test_few_tokens_of_many_characters_are_taken(length: int) -> None:
    codec = Counting(wide_spaces=True)
    text = " " * length
    assert encode_prompt(codec, text, 200, allow_special=False) == Counting(wide_spaces=True).encode(text, allow_special=False)


@given(st.text(st.sampled_from("ab 1é👍\n<tool>"), max_size=60), st.integers(1, 60), st.integers(1, 40), st.booleans())
def test_what_fits_is_never_refused_nor_changed(piece: str, times: int, longest: int, allow_special: bool) -> None:
    text = piece * times
    whole = TOKENIZER.encode(text, allow_special=allow_special)
    try:
        assert encode_prompt(TOKENIZER, text, longest, allow_special=allow_special) == whole
    except RequestTooLongError:
        assert len(whole) > longest


@pytest.mark.parametrize("allow_special", [True, False])
def test_other_threads_run_while_a_prompt_is_encoded(allow_special: bool) -> None:
    """A long prompt takes 20 ms and more: with Python's lock held, the model would stand still for as long."""
    text = "1 a " * 250_000
    # A machine that pauses takes its time from both; that it does so each time is no accident.
    assert any(longest_s < took_s / 2 for longest_s, took_s in (_encoded_beside(text, allow_special) for _ in range(10)))


def _encoded_beside(text: str, allow_special: bool) -> tuple[float, float]:
    """The longest time for which another thread did not run while this was encoded, and what that took."""
    longest_s = 0.0
    stop, running = threading.Event(), threading.Event()

    def watch() -> None:
        nonlocal longest_s
        last = time.perf_counter()
        while not stop.is_set():
            running.set()
            now = time.perf_counter()
            longest_s = max(longest_s, now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        assert running.wait(60)
        began = time.perf_counter()
        TOKENIZER.encode(text, allow_special=allow_special)
        took_s = time.perf_counter() - began
    finally:
        stop.set()
        thread.join()
    return longest_s, took_s  # with the lock held: all of it
