"""The host's metrics, from a tree and from the machine that runs the test."""

from __future__ import annotations

from pathlib import Path

import pytest
from fakes.batches import assert_in_catalogue, value
from fakes.privilege import public_directory, unprivileged
from fakes.proc_tree import ProcTree

from aie_agent.sources.base import SourceError
from aie_agent.sources.host import HostSource
from aie_agent.sources.procfs import Procfs

PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=500000\n"


def full_tree(root: Path) -> ProcTree:
    tree = ProcTree(root)
    tree.write("stat", "cpu  100 1 200 3000 40 5 6 700 50 0\ncpu0 1 1 1\ncpu1 1 1 1\n")
    tree.write("loadavg", "1.25 0.50 0.25 2/300 4711\n")
    tree.write("meminfo", "MemTotal: 1000 kB\nMemAvailable: 400 kB\nSwapTotal: 200 kB\nSwapFree: 150 kB\n")
    tree.write("vmstat", "pswpin 3\npswpout 4\npgmajfault 5\noom_kill 6\n")
    for resource in ("cpu", "memory", "io"):
        tree.write(f"pressure/{resource}", PRESSURE)
    tree.write("sys/kernel/hostname", "gpu-7\n")
    tree.write("sys/kernel/osrelease", "6.1.0\n")
    return tree


async def test_everything(tmp_path: Path) -> None:
    batch = await HostSource(Procfs(full_tree(tmp_path).root)).collect(5.0)
    assert_in_catalogue(batch)
    assert (batch.source, batch.time_s) == ("host", 5.0)
    hertz = Procfs().ticks_per_second
    assert value(batch, "aie_host_cpu_seconds_total", mode="user") == 100 / hertz
    assert value(batch, "aie_host_cpu_seconds_total", mode="steal") == 700 / hertz
    assert value(batch, "aie_host_cpus") == 2
    assert value(batch, "aie_host_load1") == 1.25
    assert value(batch, "aie_host_memory_total_bytes") == 1000 * 1024
    assert value(batch, "aie_host_memory_available_bytes") == 400 * 1024
    assert value(batch, "aie_host_swap_used_bytes") == 50 * 1024
    assert value(batch, "aie_host_swap_in_pages_total") == 3
    assert value(batch, "aie_host_swap_out_pages_total") == 4
    assert value(batch, "aie_host_major_faults_total") == 5
    assert value(batch, "aie_host_oom_kills_total") == 6
    assert value(batch, "aie_host_pressure_seconds_total", resource="io", kind="full") == 0.5
    assert value(batch, "aie_host_pressure_seconds_total", resource="cpu", kind="some") == 2.5
    assert value(batch, "aie_host_info", hostname="gpu-7", kernel="6.1.0") == 1


async def test_the_real_host() -> None:
    batch = await HostSource(Procfs()).collect(0.0)
    assert_in_catalogue(batch)
    assert value(batch, "aie_host_cpus")


async def test_what_the_kernel_does_not_have_is_absent(tmp_path: Path) -> None:
    tree = full_tree(tmp_path)
    for name in ("pressure/cpu", "pressure/memory", "pressure/io", "vmstat", "loadavg", "meminfo"):
        (tree.root / name).unlink()
    batch = await HostSource(Procfs(tree.root)).collect(0.0)
    assert {point.name for point in batch.points} == {"aie_host_cpus", "aie_host_cpu_seconds_total", "aie_host_info"}


async def test_without_proc_there_is_a_reason(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="/proc/stat"):
        await HostSource(Procfs(tmp_path)).collect(0.0)


async def test_one_file_that_cannot_be_read_does_not_hide_the_others() -> None:
    with public_directory() as directory:
        tree = full_tree(directory / "proc")
        (tree.root / "meminfo").chmod(0)
        source = HostSource(Procfs(tree.root))
        with unprivileged(), pytest.raises(SourceError, match="meminfo") as caught:
            await source.collect(0.0)
    assert caught.value.batch is not None
    assert value(caught.value.batch, "aie_host_load1") == 1.25
    assert value(caught.value.batch, "aie_host_memory_total_bytes") is None


async def test_idle_time_that_falls_a_little_does_not_look_like_a_restart(tmp_path: Path) -> None:
    tree = full_tree(tmp_path)
    source = HostSource(Procfs(tree.root))
    first = value(await source.collect(0.0), "aie_host_cpu_seconds_total", mode="idle")
    tree.write("stat", "cpu  100 1 200 2990 40 5 6 700 50 0\ncpu0 1 1 1\n")
    assert value(await source.collect(1.0), "aie_host_cpu_seconds_total", mode="idle") == first
    tree.write("stat", "cpu  100 1 200 10 40 5 6 700 50 0\ncpu0 1 1 1\n")
    again = value(await source.collect(2.0), "aie_host_cpu_seconds_total", mode="idle")
    assert again == 10 / Procfs().ticks_per_second  # this is one
