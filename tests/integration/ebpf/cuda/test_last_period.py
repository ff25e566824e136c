"""What a process did in the moments before it ended: the refusal that it ended for, most of all."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_ebpf.messages import Cuda, ProcessReport, Report, ToAgent
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

MIB = 1 << 20
OUT_OF_MEMORY = 2


def refused(message: ToAgent) -> ProcessReport | None:
    """The process in a report that tells of a refusal."""
    rows = message.processes if isinstance(message, Report) else ()
    return next((row for row in rows if row.cuda is not None and row.cuda.failures), None)


def is_covered(message: ToAgent) -> bool:
    return isinstance(message, Report) and any(row.set == "cuda_memory" and row.state == "on" for row in message.coverage or ())


@pytest.mark.parametrize("who", ["the child", "the agent"])
def test_a_refusal_just_before_the_end_is_told(stand_in: StandIn, tmp_path: Path, who: str) -> None:
    """Whoever is the first to see that it is gone."""
    with (
        stand_in.start("last") as program,
        running_child("--period", "2", "--budget", "1", log=tmp_path / "stderr") as child,
    ):
        child.watch(program.tgid)
        child.until(is_covered)
        assert program.step() == "", "it has ended"
        program.kill()
        if who == "the agent":
            child.watch()
        row = refused(child.until(lambda message: refused(message) is not None))
        assert row is not None
        assert row.cuda is not None
        assert [(each.call, each.code, each.count) for each in row.cuda.failures] == [("cuMemAlloc", OUT_OF_MEMORY, 1)]
        assert _allocated(row.cuda) == [("last", 5 * MIB, 0)], "what it held went with it"
        after = child.reports(1)[0]
        assert after.processes == ()
        assert after.lost == {}


def _allocated(cuda: Cuda) -> list[tuple[str, int, int]]:
    return [(each.module, each.allocated_bytes, each.outstanding_bytes) for each in cuda.allocations]
