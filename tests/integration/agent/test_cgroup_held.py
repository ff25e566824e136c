"""How much of a control group's limit is held, against the kernel's own group: anonymous memory is, page cache is not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aie_agent.sources.cgroup import Cgroups, MemoryUse
from aie_agent.sources.procfs_text import CgroupPaths, cgroup_paths
from tests.e2e.programs import eventually
from tests.integration.dashboards.control_groups import MEMORY_BYTES, limited

MIB = 1 << 20
HELD_BYTES, CACHED_BYTES = 96 * MIB, 96 * MIB
ENGINE = """
import sys
sys.stdin.readline()
held = bytearray(b"x") * int(sys.argv[1])
with open(sys.argv[2], "wb") as file:
    for _ in range(int(sys.argv[3]) >> 20):
        file.write(b"y" * (1 << 20))
print("there", flush=True)
sys.stdin.readline()
"""


def test_what_cannot_be_taken_back_is_told_apart_from_page_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENGINE, str(HELD_BYTES), str(tmp_path / "weights"), str(CACHED_BYTES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdin is not None
        assert engine.stdout is not None
        try:
            with limited(engine.pid):
                try:
                    engine.stdin.write("\n")
                    engine.stdin.flush()
                    assert engine.stdout.readline() == "there\n"
                    paths = cgroup_paths(Path(f"/proc/{engine.pid}/cgroup").read_bytes())
                    use = eventually(lambda: _settled(Cgroups(), paths))
                finally:
                    engine.kill()
                    engine.wait()
        except OSError as error:
            pytest.skip(f"no control group with limits can be made here: {error}")
    assert use.limit == MEMORY_BYTES
    assert use.used >= HELD_BYTES + CACHED_BYTES * 0.9
    assert HELD_BYTES <= use.held_ratio * MEMORY_BYTES <= HELD_BYTES + 32 * MIB


def _settled(groups: Cgroups, paths: CgroupPaths) -> MemoryUse | None:
    """The kernel adds up what CPUs count within some seconds."""
    use = groups.memory(paths, 0.0)
    return use if use is not None and use.held_ratio is not None and use.held_ratio * MEMORY_BYTES >= HELD_BYTES else None
