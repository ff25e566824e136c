"""Synchronisation on the stand-in: time blocked, failures, and a call that never returns."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from aie_ebpf.messages import CudaFailure, CudaSync
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda, ProbedCuda
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = needs_gcc


@both_ways
def test_time_blocked_by_function(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("syncs") as program:
        probed = probe(program, "cuda_sync")
        program.step()
        syncs = {each.call: each for each in probed.read().syncs}
        assert {name: sum(each.seconds.slots) for name, each in syncs.items()} == {
            "cuStreamSynchronize": 4, "cuEventSynchronize": 1, "cuCtxSynchronize": 2,
        }  # fmt: skip
        assert syncs["cuStreamSynchronize"].seconds.total >= 0.080
        assert syncs["cuEventSynchronize"].seconds.total >= 0.030
        assert sum(syncs["cuEventSynchronize"].seconds.slots[:15]) == 0  # none below 16 ms
        assert all(each.blocked_s == pytest.approx(each.seconds.total) and each.waiting == 0 for each in syncs.values())
        program.step()
        assert probed.read().failures == (CudaFailure(call="cuCtxSynchronize", code=700, count=1),)
        assert probed.read().syncs == ()
        assert probed.hits() == {"cuda_sync": 2 * (4 + 1 + 2 + 1 + 1)}


def test_a_call_that_does_not_return_is_seen_to_wait(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("syncs") as program:
        probed = probe(program, "cuda_sync")
        program.run(until="hang")
        probed.read()
        program.step()
        seen = read_until(probed, lambda sync: sync is not None and sync.waiting == 1 and sync.longest_wait_s > 0.3)
        last = seen[-1]
        assert last is not None
        assert last.call == "cuStreamSynchronize"
        assert sum(last.seconds.slots) == 0
        # Each second counts when it passes, and once.
        assert sum(each.blocked_s for each in seen if each is not None) == pytest.approx(last.longest_wait_s)
        in_sync = probed.module.table("in_sync", "I", "Q")
        assert len(list(in_sync.items())) == 1
        program.step()
        assert read_until(probed, lambda sync: sync is None)[-1] is None
        assert list(in_sync.items()) == []


def read_until(probed: ProbedCuda, seen: Callable[[CudaSync | None], bool]) -> list[CudaSync | None]:
    """Readings up to the first that is as wanted; each is the one function of the program that waits, or None."""
    readings: list[CudaSync | None] = []
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        readings.append(next(iter(probed.read().syncs), None))
        if seen(readings[-1]):
            return readings
        time.sleep(0.05)
    raise AssertionError(f"not seen: {readings[-3:]}")
