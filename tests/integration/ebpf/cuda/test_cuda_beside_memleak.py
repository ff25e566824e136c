"""What is outstanding on the device, beside memleak of BCC's tools: the stand-in backs each allocation with one malloc."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from typing import NamedTuple, TextIO

import pytest

from aie_ebpf import prerequisites
from aie_ebpf.messages import Cuda
from tests.conftest import SYSTEM_BIN
from tests.fakes.cuda_stand_in import StandIn, needs_gcc
from tests.integration.ebpf.cuda.cuda_probed import ProbeCuda

pytestmark = needs_gcc

REPORTS = 60
"""Of one a second: a bound; no test that passes waits for the last."""
DEBIAN_PYTHON = "/usr/bin/python3"  # BCC is of its packages
# glibc's malloc takes large pieces by mmap, which memleak takes for an allocation of its own.
NO_MMAP = {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=1073741824"}


class Outstanding(NamedTuple):
    """What was asked for and not given back."""

    size_bytes: int
    count: int


@pytest.fixture(scope="session")
def memleak(bpf: None) -> str:
    """The path of memleak-bpfcc."""
    found = shutil.which("memleak-bpfcc", path=f"{SYSTEM_BIN}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip("memleak-bpfcc is missing: make setup-system")
    return found


def test_the_same_is_outstanding(stand_in: StandIn, probe: ProbeCuda, memleak: str) -> None:
    with stand_in.start("kinds", environment=NO_MMAP) as program:
        probed = probe(program, "cuda_memory")
        with reports_of(memleak, program.tgid) as reports:
            assert next(reports) == Outstanding(0, 0)
            seen = []
            for until in ("freed", "all freed"):
                program.run(until)
                ours = of_malloc(probed.read())
                assert any(each == ours for each in itertools.islice(reports, REPORTS)), "the first ones began before"
                seen.append(ours.count)
        assert seen == [11, 6]


def of_malloc(cuda: Cuda) -> Outstanding:
    """All that is outstanding, but for registered memory: that is the caller's own."""
    rows = [row for row in cuda.allocations if row.kind != "registered"]
    return Outstanding(sum(row.outstanding_bytes for row in rows), sum(row.outstanding for row in rows))


@contextlib.contextmanager
def reports_of(memleak: str, tgid: int) -> Iterator[Iterator[Outstanding]]:
    """memleak's reports, one a second, from when it has attached."""
    source = prerequisites.kernel_source()
    command = [DEBIAN_PYTHON, "-u", memleak, "-p", str(tgid), "--older", "0", "--top", "100", "1"]
    environment = os.environ | ({"BCC_KERNEL_SOURCE": str(source)} if source is not None else {})
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            yield parsed(process.stdout)
        finally:
            process.kill()


def parsed(lines: TextIO) -> Iterator[Outstanding]:
    """A report is complete when the header of the next one comes."""
    total: Outstanding | None = None
    for line in lines:
        found = re.match(r"\s+(\d+) bytes in (\d+) allocations from stack", line)
        if "stacks with outstanding allocations" in line:
            if total is not None:
                yield total
            total = Outstanding(0, 0)
        elif found is not None and total is not None:
            total = Outstanding(total.size_bytes + int(found[1]), total.count + int(found[2]))
    raise AssertionError("memleak ended")
