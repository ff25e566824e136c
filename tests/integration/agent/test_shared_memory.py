"""Shared memory of a real program whose forked workers all map one segment: it is there once."""

# ruff: noqa: ASYNC220 - nothing else runs on a test's event loop

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from fakes.batches import value

from aie_agent.identity import Engines, Origin
from aie_agent.sources.process import ProcessSource
from aie_agent.sources.procfs import Procfs

SEGMENT_BYTES = 24 << 20
WORKERS = 3
PROGRAM = f"""
import mmap, os, sys
segment = mmap.mmap(-1, {SEGMENT_BYTES})
reading, writing = os.pipe()
tgids = [os.getpid()]
for _ in range({WORKERS}):
    tgid = os.fork()
    if tgid == 0:
        for offset in range(0, {SEGMENT_BYTES}, 4096):
            segment[offset] = 1
        os.write(writing, b".")
        os.close(writing)
        sys.stdin.read()
        os._exit(0)
    tgids.append(tgid)
for offset in range(0, {SEGMENT_BYTES}, 4096):
    segment[offset] = 1
for _ in range({WORKERS}):
    os.read(reading, 1)
print(*tgids, flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
async def test_a_segment_that_workers_share_counts_once() -> None:
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            tgids = [int(word) for word in program.stdout.readline().split()]
            assert len(tgids) == WORKERS + 1
            procfs = Procfs()
            engines = Engines(procfs.start_ticks)
            for tgid in tgids:
                assert engines.declare("e", Origin.STATSD, tgid) == "e"
            source = ProcessSource(engines, procfs)
            batch = await source.collect(time.time())
            await source.close()
        finally:
            program.stdin.close()
    assert value(batch, "aie_process_instances", engine="e") == WORKERS + 1
    shared = value(batch, "aie_process_resident_shmem_bytes", engine="e")
    assert shared is not None
    assert SEGMENT_BYTES <= shared < 1.5 * SEGMENT_BYTES
