"""More kinds of allocations than the map of groups holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aie_ebpf.closer import Closer
from aie_ebpf.cuda_probes import CUDA_TEXT, CUDA_UPROBES
from aie_ebpf.door import Bcc, Module
from aie_ebpf.host import HostProbes
from aie_ebpf.uprobe_links import Way
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import BASE, ProbedCuda

pytestmark = needs_gcc

SIZES = 10
ROOM = 4


@pytest.fixture
def small_module(bcc: Bcc, host: HostProbes) -> Iterator[Module]:
    """The module with room for four groups."""
    module = bcc.compile(*BASE, *CUDA_TEXT, defines=[f"GROUPS_ENTRIES={ROOM}"])
    yield module
    module.close()


def test_groups_that_found_no_room_are_counted(
    stand_in: StandIn, host: HostProbes, small_module: Module, closer: Closer, way: Way
) -> None:
    """What is in the map stays right, and the frees of what is not are unknown ones."""
    with stand_in.start("sizes") as program:
        rows = [row for row in CUDA_UPROBES if row.set == "cuda_memory" and row.symbols[0] in ("cuMemAlloc_v2", "cuMemFree_v2")]
        probed = ProbedCuda(host, small_module, way, program.tgid, rows)
        program.step()
        found = probed.read().allocations
        assert {row.size_class_bytes: row.outstanding_bytes for row in found} == {
            1024 << each: 1000 << each for each in range(ROOM)
        }
        assert probed.read_lost() == {"groups": SIZES - ROOM}
        program.step()
        cuda = probed.read()
        assert [(row.outstanding_bytes, row.frees) for row in cuda.allocations] == [(0, 1)] * ROOM
        assert cuda.unknown_frees == SIZES - ROOM
    probed.release()
    closer.close(probed.probes)
