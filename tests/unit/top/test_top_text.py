"""Text in columns: padding, cutting, wrapping, charts. Whatever a name contains, the width is the width."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from aie_top import charts
from aie_top.text import cell_width, crop, fit, line, to_ascii, wrap

texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Zl", "Zp", "M"]), max_size=60)
series = st.lists(st.none() | st.floats(), max_size=150)


@given(texts, st.integers(0, 50), st.booleans(), st.booleans())
def test_fit_is_exact(text: str, width: int, right: bool, middle: bool) -> None:
    assert cell_width(fit(text, width, right=right, middle=middle)) == width


@given(st.text(st.sampled_from("abc µ█▏░▸…日本語✓✖▲é")))
def test_width_is_what_the_terminal_library_says(text: str) -> None:
    assert cell_width(text) == cell_len(text)


@given(texts, st.integers(2, 40))
def test_wrap_loses_nothing_and_stays_within(text: str, width: int) -> None:
    lines = wrap(text, width)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(cell_width(one) <= width for one in lines)


@given(texts)
def test_ascii_keeps_the_columns(text: str) -> None:
    plain = to_ascii(text)
    assert plain.isascii()
    assert len(plain) == cell_width(text)


@given(st.lists(texts, max_size=6), st.integers(0, 40))
def test_crop_stays_within(parts: list[str], width: int) -> None:
    assert cell_width(crop(line(*parts), width).plain()) <= width


def test_a_name_keeps_both_its_ends() -> None:
    assert fit("prod-llama-70b-0", 9, middle=True) == "prod…0b-0"


@given(series, st.integers(0, 60), st.integers(1, 12))
def test_charts_have_their_size(values: list[float | None], width: int, height: int) -> None:
    for scale in (charts.from_zero(values), charts.around(values), charts.Scale(0.0, 1.0)):
        rows = charts.chart(values, width, height, scale)
        assert [len(row) for row in rows] == [width] * height
        assert len(charts.sparkline(values, width, scale)) == width


@given(st.none() | st.floats(), st.integers(0, 30))
def test_a_bar_has_its_width(ratio: float | None, width: int) -> None:
    assert len("".join(charts.bar(ratio, width))) == width


def test_a_known_zero_is_drawn_and_the_unknown_is_blank() -> None:
    assert charts.sparkline([None, 0.0, 4.0], 4, charts.Scale(0.0, 4.0)) == "  ▁█"


def test_what_is_as_near_to_zero_as_a_number_can_be_is_drawn() -> None:
    values = [5e-324, 0.0]
    assert charts.sparkline(values, 2, charts.from_zero(values)) == "▁▁"


def test_memory_that_does_not_move_is_a_flat_line_in_the_middle() -> None:
    values = [1e9, 1e9 + 4096.0] * 10
    assert set(charts.sparkline(values, 20, charts.around(values))) == {"▄"}
