"""The CUDA programs, attached for real to programs on the stand-in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from aie_ebpf.closer import Closer
from aie_ebpf.cuda_probes import CUDA_TEXT, CUDA_UPROBES, LAUNCH_TEXT
from aie_ebpf.door import Bcc, Module
from aie_ebpf.host import HostProbes
from aie_ebpf.readers.launches import LaunchReader
from aie_ebpf.uprobe_links import Way
from tests.fakes.cuda_stand_in import Program, StandIn
from tests.integration.ebpf.cuda.cuda_probed import BASE, ProbeCuda, Probed, ProbedCuda


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    """The driver and the runtime."""
    return StandIn(tmp_path_factory.mktemp("cuda"))


@pytest.fixture(scope="session")
def cuda_module(bcc: Bcc, host: HostProbes) -> Module:
    """cuda_memory, cuda_sync and cuda_copy, compiled; `host` has the maps that they share with it."""
    return bcc.compile(*BASE, *CUDA_TEXT)


@pytest.fixture(scope="session")
def launch_module(bcc: Bcc, host: HostProbes) -> Module:
    """cuda_launch, compiled."""
    return bcc.compile(*BASE, *LAUNCH_TEXT)


@pytest.fixture(scope="session")
def closer() -> Closer:
    """Detaches probes while the next test runs."""
    return Closer()


@pytest.fixture
def probe(host: HostProbes, cuda_module: Module, closer: Closer, way: Way) -> Iterator[ProbeCuda]:
    """Attaches sets (all of the module when none is named) to a program; released, and detached, after the test."""
    with ExitStack() as stack:

        def attach(
            program: Program, *sets: str, from_start: bool = True, library: str = "lib", in_full: bool = False
        ) -> ProbedCuda:
            wanted = sets or ("cuda_memory", "cuda_sync", "cuda_copy")
            rows = [row for row in CUDA_UPROBES if row.set in wanted and row.soname.startswith(library)]
            probed = ProbedCuda(host, cuda_module, way, program.tgid, rows, from_start, in_full)
            # Programs end before their probes are detached, which is then quick.
            stack.callback(lambda: (probed.release(), closer.close(probed.probes)))
            return probed

        yield attach


@pytest.fixture
def probe_launches(
    host: HostProbes, launch_module: Module, closer: Closer, way: Way
) -> Iterator[Callable[[Program], tuple[Probed, LaunchReader]]]:
    """Attaches cuda_launch to a program."""
    with ExitStack() as stack:

        def attach(program: Program) -> tuple[Probed, LaunchReader]:
            probed = Probed(host, launch_module, way, program.tgid, [row for row in CUDA_UPROBES if row.set == "cuda_launch"])
            reader = LaunchReader(launch_module)
            stack.callback(lambda: (reader.forget(probed.tgid), probed.release(), closer.close(probed.probes)))
            return probed, reader

        yield attach
