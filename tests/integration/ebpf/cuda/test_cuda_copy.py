"""Copies on the stand-in: bytes by direction, sizes, bursts."""

from __future__ import annotations

from aie_ebpf.messages import SIZE_BOUNDS_BYTES
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = needs_gcc

MIB = 1 << 20


@both_ways
def test_every_way_to_copy_is_counted_by_direction(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("copies") as program:
        probed = probe(program, "cuda_copy")
        program.step()
        copies = {each.direction: each for each in probed.read().copies}
        assert {name: each.bytes for name, each in copies.items()} == {
            "htod": 1111, "dtoh": 2222, "dtod": 3333, "unified": 4444, "peer": 5555,
        }  # fmt: skip
        # 1, 10 and 100 bytes are in the first slot, which ends at 256; 1000 ends at 1024.
        assert copies["htod"].sizes.slots[:3] == (3, 0, 1)
        assert copies["htod"].sizes.total == 1111
        assert len(copies["htod"].sizes.slots) == len(SIZE_BOUNDS_BYTES) + 1
        assert probed.hits() == {"cuda_copy": 20}


def test_the_size_of_a_shape_is_read_from_the_caller(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("copies") as program:
        probed = probe(program, "cuda_copy")
        program.run(until="shapes")
        probed.read()
        program.step()
        assert {each.direction: (each.bytes, sum(each.sizes.slots)) for each in probed.read().copies} == {
            "htod": (2 * 30, 2), "dtoh": (2 * 300, 2), "dtod": (2 * 3000, 2), "unified": (4 * 60, 4), "peer": (4 * 60, 4),
        }  # fmt: skip
        program.step()
        (batches,) = probed.read().copies
        assert (batches.direction, batches.bytes, sum(batches.sizes.slots)) == ("unified", 1 + sum(range(101)), 2)
        assert probed.read_lost() == {}
        program.step()
        (batch,) = probed.read().copies
        assert batch.bytes == sum(range(257))
        assert probed.read_lost() == {"events": 1}


def test_a_burst_is_what_comes_within_a_millisecond(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("bursts") as program:
        probed = probe(program, "cuda_copy")
        program.step()
        (apart,) = probed.read().copies
        assert (apart.bytes, apart.burst_bytes) == (55 * MIB, 10 * MIB)
        program.step()
        (together,) = probed.read().copies
        assert MIB <= together.burst_bytes <= 4 * MIB == together.bytes
        assert probed.read().copies == ()
