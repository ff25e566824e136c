"""Memory on the stand-in: exact amounts by kind, size class and calling file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from aie_ebpf.messages import Allocations, Cuda, CudaFailure
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = needs_gcc

MIB = 1 << 20


def by_kind(cuda: Cuda, field: str) -> dict[str, int]:
    """One amount, summed by kind, without those that are 0."""
    total: Counter[str] = Counter()
    for row in cuda.allocations:
        total[row.kind] += getattr(row, field)
    return {kind: amount for kind, amount in total.items() if amount}


def by_class(rows: Iterable[Allocations], kind: str) -> dict[int, tuple[int, int]]:
    """Outstanding bytes and count of a kind, by size class."""
    return {row.size_class_bytes: (row.outstanding_bytes, row.outstanding) for row in rows if row.kind == kind}


@both_ways
def test_every_kind_is_counted_to_the_byte(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("kinds") as program:
        probed = probe(program, "cuda_memory")
        assert probed.unseen == []
        assert probed.read() == Cuda(contexts=0)
        program.step()
        cuda = probed.read()
        assert by_class(cuda.allocations, "device") == {1024: (1000, 1), MIB: (2 * MIB, 2), 16384: (10240, 1)}
        assert {row.module for row in cuda.allocations} == {"kinds"}
        assert by_kind(cuda, "allocations") == {"device": 4}

        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "allocations") == {"managed": 1, "async": 2, "vmm": 2, "host": 2, "registered": 1}
        assert by_kind(cuda, "allocated_bytes") == {
            "managed": 5000, "async": 12001, "vmm": 6 * MIB, "host": 15000, "registered": 4096,
        }  # fmt: skip
        assert by_kind(cuda, "frees") == {}

        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "outstanding_bytes") == {
            "device": 1000 + MIB + 10240, "async": 6001, "vmm": 2 * MIB, "host": 8000,
        }  # fmt: skip
        assert by_kind(cuda, "freed_bytes") == {
            "device": MIB, "managed": 5000, "async": 6000, "vmm": 4 * MIB, "host": 7000, "registered": 4096,
        }  # fmt: skip
        assert by_kind(cuda, "allocations") == {}

        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "outstanding") == {}
        assert by_kind(cuda, "frees") == {"device": 3, "async": 1, "vmm": 1, "host": 1}
        assert cuda.unknown_frees == 0
        assert cuda.failures == ()
        assert probed.read_lost() == {}
        # Every call runs a program at its entry and one at its return: 12 allocations and 12 frees, and 2 that were nested.
        assert probed.hits() == {"cuda_memory": 2 * (12 + 12 + 2)}


def test_failures_change_nothing_and_are_counted_by_code(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("refusals") as program:
        probed = probe(program, "cuda_memory")
        program.step()
        cuda = probed.read()
        assert cuda.allocations == ()
        assert set(cuda.failures) == {
            CudaFailure(call="cuMemAlloc", code=2, count=3),
            CudaFailure(call="cuMemAllocManaged", code=700, count=1),
        }
        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "outstanding_bytes") == {"device": 3000}
        assert by_kind(cuda, "frees") == {}
        assert set(cuda.failures) == {
            CudaFailure(call="cuMemFree", code=700, count=1),
            CudaFailure(call="cuMemFree", code=1, count=1),
        }
        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "outstanding") == {}
        assert by_kind(cuda, "freed_bytes") == {"device": 3000}
        assert (cuda.failures, cuda.unknown_frees) == ((), 0)
        program.step()
        cuda = probed.read()
        assert cuda.unknown_frees == 2
        assert by_kind(cuda, "frees") == {}


def test_threads_that_pass_addresses_to_each_other_lose_nothing(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("threads") as program:
        probed = probe(program, "cuda_memory")
        program.step()
        cuda = probed.read()
        assert by_kind(cuda, "allocations") == {"device": 8 * 1000}
        assert by_kind(cuda, "frees") == {"device": 8 * 750}
        assert by_kind(cuda, "outstanding") == {"device": 8 * 250}
        assert by_kind(cuda, "outstanding_bytes") == {"device": 8 * 250 * 1000}
        assert cuda.unknown_frees == 0
        assert probed.read_lost() == {}


@both_ways
def test_who_called_the_runtime_is_who_asked(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("runtime") as program:
        probed = probe(program, "cuda_memory")
        program.step()
        rows = probed.read().allocations
        assert {row.module for row in rows} == {"runtime"}
        assert Counter(row.kind for row in rows for _ in range(row.allocations)) == {
            "device": 2,
            "async": 1,
            "managed": 1,
            "host": 2,
        }
        program.step()
        (row,) = (row for row in probed.read().allocations if row.allocations)
        assert (row.module, row.outstanding_bytes) == ("runtime", 300)


def test_the_calling_library_is_told_from_the_program(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("plugged", libraries=(stand_in.built("plugin"),)) as program:
        probed = probe(program, "cuda_memory")
        program.step()
        amounts = {(row.module, row.outstanding_bytes) for row in probed.read().allocations}
        assert amounts == {("plugged", 100), ("libplugin.so", 2000), ("libplugin.so", 30000)}


def test_without_probes_on_the_runtime_it_is_the_runtime_that_asks(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("plugged", libraries=(stand_in.built("plugin"),)) as program:
        probed = probe(program, "cuda_memory", library="libcuda.so")
        program.step()
        by_module = {row.module: row.outstanding_bytes for row in probed.read().allocations if row.size_class_bytes > 128}
        assert by_module == {"libcudart.so.12": 2000, "libplugin.so": 30000}
