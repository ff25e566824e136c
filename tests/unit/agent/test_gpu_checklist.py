"""The checklist: a host that is as it should be has nothing wrong, and each thing that is wrong is one line with what to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fakes.proc_tree import ProcTree
from hypothesis import given
from hypothesis import strategies as st

from aie_agent.analysis.gpu_checklist import check_gpu, check_memory_channels, check_process, check_topology, check_xids, ranges
from aie_agent.commands.check_gpu import numa_nodes
from aie_agent.commands.check_gpu_processes import allowed_cpus, parse_cpus
from aie_agent.sources.cuda_runtime import CudaLibraries, cuda_libraries
from aie_agent.sources.memory_channels import Channels, Module, channels, modules
from aie_agent.sources.nvml.facts import GpuFacts, Pair
from aie_agent.sources.nvml.nvlinks import NvLinks, joining
from aie_agent.sources.nvml.slots import Slot
from aie_agent.sources.procfs import Procfs

WELL = GpuFacts(
    index=0,
    name="NVIDIA H100",
    slot=Slot(5, 16, 5, 16),
    width=16,
    width_max=16,
    generation=5,
    generation_max=5,
    numa_node=0,
    cpus=frozenset(range(32)),
    persistence=True,
    sm_clock_mhz=1980,
    sm_clock_max_mhz=1980,
    power_limit_w=700,
    power_default_w=700,
    ecc=True,
    ecc_pending=True,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failed=False,
    mig=False,
    mig_pending=False,
    gpm=True,
)


@pytest.mark.parametrize(
    "gpu",
    [
        WELL,
        GpuFacts(index=0, name="?"),
        replace(WELL, generation=1, sm_clock_mhz=345, clock_events=("idle",)),
        replace(WELL, clock_events=("sw_power_cap",)),  # at work at its limit: what it was bought for
        replace(WELL, width=1, generation=1, unified_memory=True),
        replace(WELL, slot=Slot(5, 16, 1, 1)),  # a virtual machine's port
        replace(WELL, slot=Slot(5, 16, None, None, is_virtual=True)),
        replace(WELL, slot=Slot(5, 16, None, None, is_virtual=True), generation=1),  # at rest
        replace(WELL, slot=Slot(5, 16, 1, 1), generation=1),
        replace(WELL, slot=Slot(5, 8, 5, 16), width=8, width_max=8),  # a narrow card in a wide slot
        replace(WELL, slot=Slot(5, 8, 5, 8), width=8, width_max=8),  # a bifurcated slot, which has all that the card has
        replace(WELL, clock_events=("app_clocks",), app_clock_mhz=1200, app_clock_default_mhz=1980),  # as somebody wants it
        replace(WELL, clock_events=("sync_boost", "of the future")),
        replace(WELL, nvlinks=NvLinks(18, 0, {}, 18, {"replay": 2})),
        replace(WELL, name="NVIDIA A100 80GB PCIe", nvlinks=NvLinks(0, 12, {}, 0, {})),  # no bridge
        replace(WELL, name="NVIDIA H200", nvlinks=NvLinks(0, 18, {}, 0, {})),  # alone: a virtual machine that was given one GPU
        replace(WELL, ecc=False, ecc_pending=False, gpm=False),
    ],
)
def test_nothing_is_wrong_with_what_is_normal(gpu: GpuFacts) -> None:
    assert [check for check in check_gpu(gpu, 2) if not check.ok and check.what != "NUMA"] == []


@pytest.mark.parametrize(
    ("gpu", "what", "remedy"),
    [
        (replace(WELL, width=8), "link", "reseat the card"),
        (replace(WELL, slot=Slot(5, 16, 4, 16), generation=4, generation_max=4), "slot", "older than the card"),
        (replace(WELL, persistence=False), "persistence mode", "nvidia-persistenced"),
        (replace(WELL, slot=Slot(5, 16, 5, 8), width=8, width_max=8), "slot", "16 PCIe lanes, its slot 8"),
        (replace(WELL, slot=Slot(5, 16, 5, 8), width=4, width_max=16), "link", "4 lanes of 8"),
        (replace(WELL, nvlinks=NvLinks(16, 2, {}, 16, {})), "NVLink", "2 of 18 NVLinks"),
        (replace(WELL, clock_events=("hw_thermal",)), "clocks", "fans, air flow"),
        (replace(WELL, clock_events=("app_clocks", "hw_power_brake")), "clocks", "power supplies"),
        (replace(WELL, power_limit_w=400), "power", "nvidia-smi -pl 700"),
        (replace(WELL, remap_pending=True), "memory errors", "reset the GPU"),
        (replace(WELL, remap_failed=True), "memory errors", "board replaced"),
        (replace(WELL, ecc_uncorrected=2), "memory errors", "2 uncorrected"),
        (replace(WELL, ecc_pending=False), "memory errors", "next reset"),
        (replace(WELL, mig_pending=True), "MIG", "next reset"),
        (replace(WELL, numa_node=None), "NUMA", "BIOS"),
    ],
)
def test_each_thing_that_is_wrong(gpu: GpuFacts, what: str, remedy: str) -> None:
    wrong = {check.what: check.remedy for check in check_gpu(gpu, 2) if not check.ok}
    assert remedy in wrong.pop(what)
    assert set(wrong) <= ({"slot"} if gpu.slot == Slot(5, 16, 5, 8) else set())


def test_what_somebody_has_set_is_told() -> None:
    gpu = replace(WELL, clock_events=("app_clocks",), app_clock_mhz=1200, app_clock_default_mhz=1980)
    (clocks,) = (check for check in check_gpu(gpu, 1) if check.what == "clocks")
    assert "application clocks are set to 1200 MHz of the board's own 1980: nvidia-smi -rac" in clocks.found


def test_numa_is_no_matter_on_a_host_with_one_node() -> None:
    assert "NUMA" not in {check.what for check in check_gpu(replace(WELL, numa_node=None), 1)}


def test_topology() -> None:
    assert check_topology([]) == []
    near, far = Pair(0, 1, 10, ""), Pair(0, 2, 50, "the topology does not support it")
    (told,) = check_topology([near, far, Pair(1, 2, 50, None)])
    assert told.ok
    assert told.found == "1 pair below one PCIe switch (PIX); 2 pairs across NUMA nodes (SYS)"
    bridged = Pair(0, 1, 10, "", 12)
    (told,) = check_topology([bridged, replace(far, nvlinks=0), Pair(1, 2, 50, "", 4)])
    assert told.found == ("1 pair joined by 12 NVLinks (NV12); 1 pair joined by 4 NVLinks (NV4); 1 pair across NUMA nodes (SYS)")
    _, blocked = check_topology([replace_pair(near, "the chipset does not support it"), far])
    assert not blocked.ok
    assert "GPU 0 and 1: the chipset" in blocked.found


def test_nvlinks_between_two_are_counted_as_nvidia_smi_does() -> None:
    switched = NvLinks(18, 0, {}, 18, {})
    bridged = NvLinks(6, 0, {"0000:3b:00": 4, "0000:86:00": 2}, 0, {})
    assert joining(switched, switched._replace(to_switch=16), "0000:3b:00") == 16, "through switches: as many as both have"
    assert joining(bridged, bridged, "0000:86:00") == 2
    assert joining(bridged, bridged, "0000:99:00") == 0
    assert joining(bridged, None, "0000:3b:00") is None


def test_xids_of_the_log() -> None:
    bus = "0000:3b:00"
    assert check_xids([]) == []
    found = check_xids([(bus, 79, 7300.0), (bus, 79, 200_000.0), (bus, 13, 5.0), ("0000:86:00", 999, 90.0)])
    assert [(check.what, check.ok) for check in found] == [
        ("XID 13 of the GPU at 0000:3b:00", True),
        ("XID 999 of the GPU at 0000:86:00", False),
        ("XID 79 of the GPU at 0000:3b:00", False),
    ]
    assert found[2].found == "XID 79: the GPU has fallen off the bus: 2 times, last 2 hours ago"
    assert "return the board" in found[2].remedy


def replace_pair(pair: Pair, problem: str) -> Pair:
    return Pair(pair.one, pair.other, pair.level, problem)


MAPS = b"""\
5581-5582 r--p 00000000 08:01 1 /usr/bin/python3
7f00-7f01 r-xp 00000000 08:01 2 /opt/my venv/nvidia/cuda_runtime/lib/libcudart.so.12
7f02-7f03 r-xp 00000000 08:01 3 /usr/local/cuda-12.4/lib64/libcudart.so.12.4.127
7f04-7f05 r-xp 00000000 08:01 4 /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
7f06-7f07 rw-p 00000000 00:00 0
7f08-7f09 r-xp 00000000 08:01 5 /usr/lib/libcudadebugger.so.580.95.05
7f10-7f11 rw-p 00000000 00:00 0 [heap]
"""


def test_libraries_of_cuda_in_maps() -> None:
    assert cuda_libraries(MAPS) == CudaLibraries((12, 4), "580.95.05")
    assert cuda_libraries(b"") == CudaLibraries()
    only_pip = b"7f00-7f01 r-xp 0 08:01 2 /venv/nvidia/cuda_runtime/lib/libcudart.so.13\n"
    assert cuda_libraries(only_pip).runtime == (13, None)
    replaced = b"7f00-7f01 r-xp 0 08:01 2 /usr/lib/libcuda.so.570.1 (deleted)\n"
    assert cuda_libraries(replaced) == CudaLibraries(None, "570.1", False, True)
    compat = b"7f00-7f01 r-xp 0 08:01 2 /usr/local/cuda/compat/libcuda.so.560.35.05\n"
    assert cuda_libraries(compat).is_compat


@given(st.binary())
def test_any_bytes_are_maps(content: bytes) -> None:
    assert cuda_libraries(content + b"\n7f00-7f01 r-xp 0 08:01 2 /x/libcudart.so.12.1\n").runtime is not None


@pytest.mark.parametrize(
    ("libraries", "cuda", "wrong"),
    [
        (CudaLibraries((12, 4), "580.1"), (12, 8), []),
        (CudaLibraries((12, 9), "580.1"), (12, 8), []),  # minor versions work
        (CudaLibraries((11, 8), "580.1"), (12, 8), []),
        (CudaLibraries((13, None), "580.1"), (12, 8), ["p: CUDA runtime"]),
        (CudaLibraries((13, 0), "590.1", is_compat=True), (12, 8), []),
        (CudaLibraries((12, 4), "570.9"), (12, 8), ["p: driver library"]),
        (CudaLibraries((12, 4), "580.1", is_deleted=True), (12, 8), ["p: driver library"]),
        (CudaLibraries(), (12, 8), []),
        (CudaLibraries((13, 0), None), None, []),
    ],
)
def test_cuda_of_a_process_against_the_drivers(libraries: CudaLibraries, cuda: tuple[int, int] | None, wrong: list[str]) -> None:
    checks = check_process("p", libraries, "580.1", cuda, frozenset(range(8)), frozenset(range(4)))
    assert [check.what for check in checks if not check.ok] == wrong


def test_a_process_that_runs_far_from_its_gpu() -> None:
    (far,) = check_process("p", CudaLibraries(), "580.1", None, frozenset(range(32, 64)), frozenset(range(32)))
    assert not far.ok
    assert "CPUs 32-63" in far.found
    assert "CPUs 0-31" in far.remedy
    assert check_process("p", CudaLibraries(), "580.1", None, None, frozenset(range(32))) == []


def smbios(*slots: tuple[str, str, int]) -> bytes:
    """A table of a BIOS, of processors and memory slots as the specification (2.1 and later) lays them out."""
    table = b"\x04\x06\x00\x00\x01\x00CPU\0\0"
    for number, (locator, bank, size) in enumerate(slots):
        fixed = bytearray(0x28)
        fixed[0:4] = bytes((17, 0x28, number, 0x11))
        fixed[0x0C:0x0E] = size.to_bytes(2, "little")
        fixed[0x10:0x12] = b"\x01\x02"
        table += bytes(fixed) + locator.encode() + b"\0" + bank.encode() + b"\0\0"
    return table + b"\x7f\x04\x00\x00\0\0"


def test_modules_of_a_table() -> None:
    table = smbios(("DIMM_A1", "P0 CHANNEL A", 32768), ("DIMM_B1", "P0 CHANNEL B", 0), ("DIMM_C1", "P0 CHANNEL C", 0x7FFF))
    assert modules(table) == [
        Module("DIMM_A1", "P0 CHANNEL A", True),
        Module("DIMM_B1", "P0 CHANNEL B", False),
        Module("DIMM_C1", "P0 CHANNEL C", True),
    ]
    assert channels(modules(table)) == Channels(2, 3, 3, ("CPU 0 channel B",))


@pytest.mark.parametrize(
    ("locator", "bank", "channel"),
    [
        ("CPU1_DIMM_B2", "NODE 1", "CPU 1 channel B"),
        ("DIMM A1", "", "channel A"),
        ("ChannelB-DIMM0", "BANK 2", "channel B"),
        ("DIMM 0", "P0 CHANNEL H", "CPU 0 channel H"),
        ("DIMM 0", "BANK 0", None),
    ],
)
def test_channels_by_their_names(locator: str, bank: str, channel: str | None) -> None:
    assert channels([Module(locator, bank, False)]).empty == ((channel,) if channel else ())


def test_a_channel_with_one_module_of_two_is_not_empty() -> None:
    found = channels([Module("A1", "", True), Module("A2", "", False), Module("B1", "", False), Module("B2", "", False)])
    assert found == Channels(1, 4, 2, ("channel B",))
    check = check_memory_channels(found)
    assert check is not None
    assert not check.ok
    assert "channel B" in check.remedy
    full = check_memory_channels(channels([Module("A1", "", True), Module("B1", "", True)]))
    assert full is not None
    assert full.ok
    assert check_memory_channels(Channels(0, 0, 0, ())) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_table(content: bytes) -> None:
    assert all(isinstance(module.is_filled, bool) for module in modules(content))
    whole = smbios(("A1", "", 1))
    for cut in range(len(whole)):
        assert len(modules(whole[:cut])) <= 1


@given(st.frozensets(st.integers(0, 300)))
def test_cpu_lists_there_and_back(cpus: frozenset[int]) -> None:
    assert parse_cpus(ranges(cpus)) == (cpus or None)


def test_cpus_that_a_process_may_use(tmp_path: Path) -> None:
    proc = ProcTree(tmp_path / "proc")
    proc.process(10)
    assert allowed_cpus(Procfs(proc.root), 10) is None
    proc.write("10/status", "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-3,8\n")
    assert allowed_cpus(Procfs(proc.root), 10) == frozenset({0, 1, 2, 3, 8})
    assert allowed_cpus(Procfs(proc.root), 11) is None


def test_numa_nodes_of_the_host(tmp_path: Path) -> None:
    assert numa_nodes(tmp_path) == 1
    for name in ("node0", "node1", "possible"):
        (tmp_path / name).mkdir()
    assert numa_nodes(tmp_path) == 2
