"""A driver's update under a running engine: the library on disk is another, and the engine goes on with the old one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from aie_ebpf.messages import Cuda, Report
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = [needs_gcc, pytest.mark.usefixtures("bpf")]

MIB = 1 << 20


def replace(library: Path) -> None:
    """As a package manager does: a new file under the old name."""
    fresh = library.with_suffix(".fresh")
    shutil.copy(library, fresh)
    os.replace(fresh, library)


def delete(library: Path) -> None:
    """As an uninstaller does."""
    library.unlink()


def read(child: Child, periods: int = 3) -> list[Cuda]:
    """What is seen in the next reports; a second count would be in one of them."""
    return [each.cuda for report in child.reports(periods) for each in report.processes if each.cuda is not None]


@pytest.mark.parametrize("change", [replace, delete])
def test_what_is_attached_is_not_attached_again(tmp_path: Path, change: Callable[[Path], None]) -> None:
    stand_in = StandIn(tmp_path)
    with (
        stand_in.start("replaced") as program,
        running_child("--period", "0.3", "--budget", "1", log=tmp_path / "stderr") as child,
    ):
        child.watch(program.tgid)
        first = child.until(lambda message: isinstance(message, Report) and bool(message.coverage))
        probes = {row.set: row.probes for row in first.coverage or ()} if isinstance(first, Report) else {}
        change(stand_in.driver)
        second = child.until(
            lambda message: (
                isinstance(message, Report) and any("was replaced" in note for row in message.coverage or () for note in row.notes)
            )
        )
        assert isinstance(second, Report)
        assert {row.set: row.probes for row in second.coverage or ()} == probes
        assert probes["cuda_copy"] > 0
        program.step()
        loaded = read(child)
        assert sum(copy.bytes for cuda in loaded for copy in cuda.copies) == 100 * MIB
        assert sum(row.allocated_bytes for cuda in loaded for row in cuda.allocations) == 100 * MIB
        assert [row.outstanding_bytes for row in loaded[-1].allocations] == [100 * MIB]
        program.step()
        freed = read(child)
        assert sum(row.freed_bytes for cuda in freed for row in cuda.allocations) == 100 * MIB
        assert sum(row.outstanding_bytes for row in freed[-1].allocations) == 0
        assert sum(cuda.unknown_frees for cuda in freed) == 0
