"""Launches on the stand-in."""

from __future__ import annotations

from collections.abc import Callable

from aie_ebpf.readers.launches import LaunchReader
from tests.fakes.cuda_stand_in import Program, StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import Probed
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = needs_gcc


@both_ways
def test_launches_by_function(stand_in: StandIn, probe_launches: Callable[[Program], tuple[Probed, LaunchReader]]) -> None:
    with stand_in.start("launches") as program:
        probed, reader = probe_launches(program)
        assert probed.unseen == []
        assert reader.read() == {}
        program.step()
        launches = {"cuLaunchKernel": 55, "cuLaunchKernelEx": 11, "cuLaunchCooperativeKernel": 5, "cuGraphLaunch": 10}
        assert reader.read() == {program.tgid: launches}
        assert reader.read() == {}
        assert probed.hits() == {"cuda_launch": sum(launches.values())}
