"""What a tracepoint costs, of rounds that a busy host disturbs: never nothing."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from aie_ebpf.calibrate import shown
from aie_ebpf.door import BpfError


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([900.0, 260.0, 300.0], 300.0),
        ([-1.0, 260.0, 300.0], 260.0),
        ([-50.0, 0.0, 300.0, 900.0], 150.0),
        ([*repeat(0.0, 5), 200.0, *repeat(-9.0, 5), 90.0], 90.0),
    ],
)
def test_rounds_in_which_a_program_gave_time_back_count_as_well(rounds: list[float], expected: float) -> None:
    """Of those above 0 alone the median would be of the noise."""
    told = chain(rounds, [7777.0])
    assert shown(lambda: next(told)) == expected
    assert next(told) == 7777.0, "no more rounds than that"


def test_what_never_shows_has_no_cost_that_is_known() -> None:
    rounds = repeat(0.0, 100)
    with pytest.raises(BpfError, match="does not show in 12 rounds"):
        shown(lambda: next(rounds))
