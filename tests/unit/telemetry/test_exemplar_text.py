"""The text of an exemplar: what is written is read back, and nothing else is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_telemetry.exemplars import Exemplar, read

TRACE, SPAN = "0123456789abcdef" * 2, "fedcba9876543210"
GOOD = f'{{trace_id="{TRACE}",span_id="{SPAN}"}} 0.25 1790000000.125'


def hex_of(length: int) -> st.SearchStrategy[str]:
    return st.integers(1, 16**length - 1).map(lambda number: f"{number:0{length}x}")


@given(
    st.floats(allow_nan=False, allow_infinity=False), st.integers(1, 4_000_000_000_000), hex_of(32), hex_of(16)
)  # fmt: skip
def test_what_is_written_is_read(value: float, time_ms: int, trace_id: str, span_id: str) -> None:
    exemplar = Exemplar(value, time_ms / 1000, trace_id, span_id)
    found = read(exemplar.text().removeprefix(" # "))
    assert found is not None
    assert found._replace(time_s=0.0) == exemplar._replace(time_s=0.0)
    assert found.time_s == pytest.approx(exemplar.time_s, abs=1e-3)


def test_the_ids_come_in_either_order() -> None:
    turned = f'{{span_id="{SPAN}",trace_id="{TRACE}"}} 0.25 1790000000.125'
    assert read(turned) == read(GOOD) == Exemplar(0.25, 1790000000.125, TRACE, SPAN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        GOOD[1:],
        GOOD.replace(TRACE, TRACE.upper()),
        GOOD.replace(TRACE, TRACE[:-1]),
        GOOD.replace(TRACE, SPAN),
        GOOD.replace(TRACE, "0" * 32),
        GOOD.replace(SPAN, "0" * 16),
        GOOD.replace("span_id", "trace_id"),
        GOOD.replace(",", ', ,'),
        GOOD.replace("}", ',user="me"}'),
        GOOD.replace("0.25", "NaN"),
        GOOD.replace("0.25", "1e999"),
        GOOD.replace("0.25", "1_0"),
        GOOD.replace("0.25", "0.2.5"),
        GOOD.replace(" 1790000000.125", ""),
        GOOD.replace("1790000000.125", "-5"),
        GOOD.replace("1790000000.125", "0"),
        GOOD.replace("1790000000.125", "1e300"),
        GOOD + ' # {trace_id="x"} 1',
        GOOD + "\nmore 1",
        GOOD.replace("0.25", "٣"),
    ],
)  # fmt: skip
def test_nothing_else_is_read(text: str) -> None:
    assert read(text) is None


@given(st.text(alphabet=st.sampled_from(list('{}",= .#_0123abtrace_idspn\n')), max_size=120))
def test_no_text_raises(text: str) -> None:
    assert read(text) is None
