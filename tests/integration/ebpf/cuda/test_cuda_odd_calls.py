"""Calls that are not as they should be: never returned from, begun before we came, more than a map holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aie_ebpf.closer import Closer
from aie_ebpf.cuda_probes import CUDA_TEXT, CUDA_UPROBES
from aie_ebpf.door import Bcc, Module
from aie_ebpf.host import HostProbes
from aie_ebpf.uprobe_links import Way
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import BASE, ProbeCuda, ProbedCuda

pytestmark = needs_gcc

ROOM = 100


@pytest.fixture(scope="module")
def small_module(bcc: Bcc, host: HostProbes) -> Iterator[Module]:
    """The module with room for 100 allocations."""
    module = bcc.compile(*BASE, *CUDA_TEXT, defines=[f"LIVE_ENTRIES={ROOM}"])
    yield module
    module.close()


def test_a_call_that_was_jumped_out_of_hides_none_after_it(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("jumps") as program:
        probed = probe(program, "cuda_memory")
        program.step()
        assert probed.read().allocations == ()
        program.step()
        rows = probed.read().allocations
        assert {row.size_class_bytes: (row.allocations, row.outstanding_bytes, row.frees) for row in rows} == {
            1024: (1, 1000, 0),
            2048: (1, 0, 1),
        }


def test_a_wait_that_began_before_we_came_is_not_seen(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("syncs") as program:
        program.run(until="cancel")
        probed = probe(program, "cuda_sync")
        assert probed.read().syncs == ()


def test_a_map_that_is_full_is_said_and_leaves_no_ghosts(
    stand_in: StandIn, host: HostProbes, small_module: Module, closer: Closer, way: Way
) -> None:
    with stand_in.start("many", "150") as program:
        rows = [row for row in CUDA_UPROBES if row.set == "cuda_memory" and row.symbols[0] in ("cuMemAlloc_v2", "cuMemFree_v2")]
        probed = ProbedCuda(host, small_module, way, program.tgid, rows)
        program.step()
        (row,) = probed.read().allocations
        assert (row.allocations, row.outstanding, row.outstanding_bytes) == (150, ROOM, ROOM * 64)
        assert probed.read_lost() == {"allocations": 150 - ROOM}
        program.step()
        cuda = probed.read()
        assert [(row.outstanding, row.frees) for row in cuda.allocations] == [(0, ROOM)]
        assert cuda.unknown_frees == 150 - ROOM
    probed.release()
    closer.close(probed.probes)
