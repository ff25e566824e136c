"""NVIDIA's own libcudart: the names of our rows are there, and probes on them fire."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from aie_ebpf.cuda_probes import CUDA_UPROBES
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda

pytestmark = needs_gcc


def real_runtime() -> Path:
    """The library of the package of CUDA 12's runtime."""
    files = importlib.metadata.files("nvidia-cuda-runtime-cu12") or []
    (library,) = (file for file in files if file.name.startswith("libcudart.so"))
    return Path(str(library.locate())).resolve()


def test_every_name_is_there_and_fires(stand_in: StandIn, probe: ProbeCuda) -> None:
    with stand_in.start("opener", str(real_runtime())) as program:
        probed = probe(program, "cuda_memory", library="libcudart", in_full=True)
        assert probed.unseen == []
        (row,) = (row for row in CUDA_UPROBES if row.soname == "libcudart")
        assert probed.symbols == set(row.symbols)
        program.step()
        # There is no driver, so each call fails; that it was made is seen.
        assert probed.hits() == {"cuda_memory": 3}
