"""What happens to memory when its contexts, or its process, go."""

from __future__ import annotations

from pathlib import Path

from aie_ebpf.messages import Cuda
from aie_ebpf.readers.cuda_memory import opened_a_gpu
from tests.fakes.cuda_stand_in import Program, StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda, ProbedCuda

pytestmark = needs_gcc

VMM_BYTES = 2 << 20


def outstanding(cuda: Cuda) -> dict[str, int]:
    """Bytes by kind, without those that are 0."""
    return {row.kind: row.outstanding_bytes for row in cuda.allocations if row.outstanding_bytes}


def test_memory_goes_with_the_last_context(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("contexts") as program:
        probed = probe(program, "cuda_memory")
        program.step()
        cuda = probed.read()
        assert (cuda.contexts, outstanding(cuda)) == (3, {"device": 1000, "vmm": VMM_BYTES})
        program.step()
        cuda = probed.read()
        assert (cuda.contexts, outstanding(cuda)) == (1, {"device": 1000, "vmm": VMM_BYTES})
        program.step()
        cuda = probed.read()
        assert (cuda.contexts, outstanding(cuda)) == (0, {"vmm": VMM_BYTES})
        assert {row.kind: (row.freed_bytes, row.frees) for row in cuda.allocations} == {"device": (1000, 1), "vmm": (0, 0)}
        program.step()
        cuda = probed.read()
        assert (cuda.contexts, sum(row.outstanding_bytes for row in cuda.allocations if row.kind == "device")) == (1, 7000)
        program.step()
        cuda = probed.read()
        assert (cuda.contexts, outstanding(cuda)) == (0, {"vmm": VMM_BYTES})
        assert entries(probed, program, "live") == 1


def test_contexts_from_before_we_came_may_still_be_there(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("contexts") as program:
        probed = probe(program, "cuda_memory", from_start=False)
        program.run(until="again")
        cuda = probed.read()
        assert (cuda.contexts, outstanding(cuda)) == (None, {"device": 1000, "vmm": VMM_BYTES})


def test_nothing_is_kept_of_a_process_that_ended(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("kinds") as program:
        probed = probe(program)
        program.run(until="freed")
        assert outstanding(probed.read())["managed"] == 5000
        assert entries(probed, program, "live") == 12
        program.kill()
        probed.reader.forget(program.tgid)
        assert entries(probed, program, "live") == 0
        assert entries(probed, program, "groups") == 0
        assert probed.read() == Cuda()


def test_a_gpu_that_is_open_means_contexts_that_we_have_not_seen(tmp_path: Path) -> None:
    (tmp_path / "1/fd").mkdir(parents=True)
    (tmp_path / "1/fd/0").symlink_to("/dev/null")
    assert not opened_a_gpu(1, tmp_path)
    (tmp_path / "1/fd/7").symlink_to("/dev/nvidia0")
    assert opened_a_gpu(1, tmp_path)
    assert opened_a_gpu(2, tmp_path)  # gone, or not for us to look at


def entries(probed: ProbedCuda, program: Program, name: str) -> int:
    """How many entries of a map are of the program."""
    layouts = {"live": ("QII", "QQII"), "groups": ("QIIII", "6Q")}
    return sum(key[1] == program.tgid for key, _ in probed.module.table(name, *layouts[name]).items())
