"""What a tracepoint costs, of rounds that a busy host disturbs: never nothing."""

from __future__ import annotations

from itertools import repeat

import pytest

from aie_ebpf.calibrate import shown
from aie_ebpf.door import BpfError


def test_rounds_in_which_a_program_gave_time_back_tell_nothing() -> None:
    rounds = iter([-50.0, 0.0, 300.0, 900.0, -1.0, 260.0, 5000.0])
    assert shown(lambda: next(rounds)) == 300.0
    assert next(rounds) == 5000.0, "three are enough"


@pytest.mark.parametrize("seen", [0, 1, 2])
def test_what_hardly_ever_shows_has_no_cost_that_is_known(seen: int) -> None:
    rounds = iter([*repeat(200.0, seen), *repeat(0.0, 100)])
    with pytest.raises(BpfError, match=f"shows in {seen} of 12 rounds only"):
        shown(lambda: next(rounds))
