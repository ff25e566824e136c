"""What the NVML source makes of a GPU's answers, on the stand-in: garbage, GPM, PCIe, MIG, counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from aie_agent.simulate import MIB, NOT_AVAILABLE, Controller, MigInstance, Process
from aie_agent.simulate.layout import CONSTANTS
from aie_agent.sources.nvml.slots import Slot
from aie_telemetry.catalogue import Kind
from tests.integration.agent import nvml_host as host

GPUS = 3
AIE_GPM_FAULT = CONSTANTS["AIE_GPM_FAULT"]
UINT, ULONGLONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", GPUS, "H100") as controller:
        host.quiet(controller, GPUS)
        yield controller


@pytest.mark.parametrize(
    ("reading", "garbage", "key"),
    [
        ("gpu_percent", 37100, ("aie_gpu_utilization_ratio", "0")),
        ("gpu_percent", UINT, ("aie_gpu_utilization_ratio", "0")),
        ("power_mw", UINT, ("aie_gpu_power_watts", "0")),
        ("power_mw", 4_000_000_000, ("aie_gpu_power_watts", "0")),
        ("temperature_c", UINT, ("aie_gpu_temperature_celsius", "0", "gpu")),
        ("temperature_c", 70_000, ("aie_gpu_temperature_celsius", "0", "gpu")),
        ("memory_temperature_c", UINT, ("aie_gpu_temperature_celsius", "0", "memory")),
        ("sm_mhz", UINT, ("aie_gpu_clock_hertz", "sm", "0")),
        ("pcie_width", UINT, ("aie_gpu_pcie_link_width", "0")),
        ("pcie_width", 4000, ("aie_gpu_pcie_link_width", "0")),
        ("performance_state", 32, ("aie_gpu_performance_state", "0")),
        ("memory_used_bytes", NOT_AVAILABLE, ("aie_gpu_memory_used_bytes", "0")),
        ("memory_used_bytes", 1 << 60, ("aie_gpu_memory_used_bytes", "0")),
    ],
)
async def test_garbage_is_absent_and_spoils_nothing_else(
    gpus: Controller, reading: str, garbage: int, key: tuple[str, ...]
) -> None:
    at = host.source()
    assert key in await host.look(at)
    gpus.fix(0, reading, garbage)
    found = await host.look(at)
    assert key not in found
    assert host.up(found) == {"0": "", "1": "", "2": ""}
    assert (key[0], *(label if label != "0" else "1" for label in key[1:])) in found
    gpus.unfix(0, reading)
    assert key in await host.look(at)
    await at.close()


async def test_101_percent_is_all_of_it(gpus: Controller) -> None:
    gpus.fix(0, "gpu_percent", 101)
    at = host.source()
    assert (await host.look(at))["aie_gpu_utilization_ratio", "0"] == 1.0
    await at.close()


async def test_gpm_says_nothing_at_first_and_is_right_then(gpus: Controller) -> None:
    gpus.run()
    at = host.source()
    assert not any("_active_ratio" in key[0] for key in await host.look(at))
    gpus.freeze()
    for name, ppm in (("sm_ppm", 400_000), ("tensor_ppm", 300_000), ("dram_ppm", 200_000)):
        gpus.fix(0, name, ppm)
    await asyncio.sleep(0.11)
    await host.look(at)
    gpus.advance(1.0)
    await asyncio.sleep(0.11)
    found = await host.look(at)
    assert found["aie_gpu_sm_active_ratio", "0"] == pytest.approx(0.4, abs=0.01)
    assert found["aie_gpu_tensor_active_ratio", "0"] == pytest.approx(0.3, abs=0.01)
    assert found["aie_gpu_dram_active_ratio", "0"] == pytest.approx(0.2, abs=0.01)
    await at.close()


async def test_directions_of_pcie_are_not_swapped(gpus: Controller) -> None:
    for name, kilobytes in (("pcie_tx_kb_per_s", 1_000_000), ("pcie_rx_kb_per_s", 3_000_000)):
        gpus.fix(0, name, kilobytes)
    at = host.source()
    await host.look(at)
    gpus.advance(1.0)
    await asyncio.sleep(0.11)
    found = await host.look(at)
    assert found["aie_gpu_pcie_bytes_per_second", "tx", "0"] == pytest.approx(1e9, rel=0.05)
    assert found["aie_gpu_pcie_bytes_per_second", "rx", "0"] == pytest.approx(3e9, rel=0.05)
    await at.close()


async def test_the_slow_call_for_pcie_is_only_made_where_nothing_else_tells(gpus: Controller, tmp_path: Path) -> None:
    at = host.source()
    for _ in range(3):
        await host.look(at)
    assert gpus.calls("nvmlDeviceGetPcieThroughput") == 0
    await at.close()
    with host.simulated(tmp_path / "a100", 1, "A100") as old:
        old.fix(0, "pcie_tx_kb_per_s", 1_000_000)
        old.fix(0, "pcie_rx_kb_per_s", 3_000_000)
        for field in (197, 198):
            old.fail_field(field, pynvml.NVML_ERROR_NOT_SUPPORTED)
        at = host.source()
        found = await host.until(at, lambda found: ("aie_gpu_pcie_bytes_per_second", "tx", "0") in found)
        assert found["aie_gpu_pcie_bytes_per_second", "tx", "0"] == 1e9
        assert found["aie_gpu_pcie_bytes_per_second", "rx", "0"] == 3e9
        await at.close()


async def test_mig_instances_have_their_memory_and_no_duty_cycle(gpus: Controller) -> None:
    gpus.set_mig(0, [MigInstance("1g.10gb", number, 9728 * MIB, 16, load_ratio=0.5) for number in (7, 8)])
    at = host.source()
    found = await host.look(at)
    infos = {key[2]: key for key in found if key[0] == "aie_gpu_mig_info"}
    assert sorted(infos) == ["7/0", "8/0"]
    assert "1g.10gb" in infos["7/0"]
    assert found["aie_gpu_mig_memory_total_bytes", "0", "7/0"] == 9728 * MIB
    assert ("aie_gpu_utilization_ratio", "0") not in found or found["aie_gpu_mig_mode", "0"] == 1
    gpus.advance(1.0)
    await asyncio.sleep(0.11)
    found = await host.look(at)
    assert 0 <= found["aie_gpu_mig_sm_active_ratio", "0", "8/0"] <= 1
    gpus.set_mig(0, [])
    found = await host.until(at, lambda found: found.get(("aie_gpu_mig_mode", "0")) == 0)
    assert not any(key[0].startswith("aie_gpu_mig_i") for key in found)
    await at.close()


async def test_counters_never_fall_and_never_leap(gpus: Controller) -> None:
    gpus.run(scale=1.0)
    at = host.source()
    last: dict[tuple[str, ...], float] = {}
    for _ in range(30):
        batch = await at.collect(time.time())
        for point in batch.points:
            if point.kind is Kind.COUNTER:
                key = (point.name, *map(str, point.tags))
                assert point.value >= last.get(key, 0.0)
                last[key] = point.value
    assert len(last) > 20
    await at.close()


async def test_mig_switched_on_and_off_makes_the_gpu_be_asked_anew(gpus: Controller) -> None:
    """The duty cycle is not supported while MIG is on, and must not be taken as missing for ever."""
    at = host.source()
    assert ("aie_gpu_utilization_ratio", "0") in await host.look(at)
    gpus.set_mig(0, [MigInstance("1g.10gb", 7, 9728 * MIB, 16)])
    await host.until(
        at, lambda found: found.get(("aie_gpu_mig_mode", "0")) == 1 and ("aie_gpu_utilization_ratio", "0") not in found
    )
    gpus.set_mig(0, [])
    await host.until(at, lambda found: ("aie_gpu_utilization_ratio", "0") in found)
    await at.close()


async def test_gpm_that_was_not_ready_is_found_later(gpus: Controller) -> None:
    gpus.fail("nvmlGpmQueryDeviceSupport", pynvml.NVML_ERROR_NOT_READY)
    at = host.source()
    await host.look(at)
    gpus.fail("nvmlGpmQueryDeviceSupport", 0)
    gpus.run()
    await host.until(at, lambda found: ("aie_gpu_sm_active_ratio", "0") in found)
    await at.close()


async def test_gpm_that_fails_says_nothing_and_then_not_the_time_between(gpus: Controller) -> None:
    gpus.run()
    at = host.source()
    await host.until(at, lambda found: ("aie_gpu_sm_active_ratio", "0") in found)
    gpus.fail("nvmlGpmSampleGet", pynvml.NVML_ERROR_UNKNOWN, gpu=0)
    await asyncio.sleep(0.11)
    assert ("aie_gpu_sm_active_ratio", "0") not in await host.look(at)
    gpus.fail("nvmlGpmSampleGet", 0, gpu=0)
    await asyncio.sleep(0.11)
    assert ("aie_gpu_sm_active_ratio", "0") not in await host.look(at)
    await host.until(at, lambda found: ("aie_gpu_sm_active_ratio", "0") in found)
    await at.close()


async def test_gpm_switched_off_is_not_asked_for(gpus: Controller) -> None:
    at = host.source(host.section(gpm=False))
    for _ in range(3):
        found = await host.look(at)
        await asyncio.sleep(0.11)
    assert not any("active_ratio" in key[0] for key in found)
    assert gpus.calls("nvmlGpmSampleGet") == gpus.calls("nvmlGpmQueryDeviceSupport") == 0
    assert ("aie_gpu_pcie_bytes_per_second", "tx", "0") in found  # by the counters
    await at.close()


@pytest.mark.parametrize(
    "refuse",
    [
        lambda gpus, code: gpus.fail("nvmlGpmSampleGet", code, gpu=0),
        lambda gpus, code: gpus.fail("nvmlGpmSampleAlloc", code),
        lambda gpus, code: [gpus.fail_field(AIE_GPM_FAULT + metric, code, gpu=0) for metric in (20, 21)],
    ],
    ids=["sample", "memory", "metrics"],
)
async def test_pcie_comes_from_its_counters_while_gpm_is_refused(
    gpus: Controller, refuse: Callable[[Controller, int], object]
) -> None:
    """Announced is not allowed: where sampling is refused, the numbers that there is another way to are not lost with it."""
    gpus.fix(0, "pcie_tx_kb_per_s", 1_000_000)
    gpus.fix(0, "pcie_rx_kb_per_s", 3_000_000)
    gpus.run()

    def is_told(found: host.Numbers) -> bool:
        """As exactly as it is where nothing comes between a reading and its time: at one look or the next."""
        told = {key[1]: value for key, value in found.items() if key[0] == "aie_gpu_pcie_bytes_per_second" and key[2] == "0"}
        return told == pytest.approx({"tx": 1e9, "rx": 3e9}, rel=0.05)

    refuse(gpus, pynvml.NVML_ERROR_NO_PERMISSION)
    at = host.source()
    await host.until(at, is_told)
    assert gpus.calls("nvmlDeviceGetPcieThroughput") == 0
    refuse(gpus, 0)
    # Back with GPM, and never twice in one batch.
    deadline_s = time.monotonic() + 60.0
    active = False
    while not (active and at._session.gpus[0]._of_gpm):
        batch = await at.collect(time.time())
        assert len(batch.points) == len({(point.name, point.tags) for point in batch.points})
        active = ("aie_gpu_sm_active_ratio", "0") in host.numbers(batch)
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.02)
    await host.until(at, is_told)
    await at.close()


async def test_links_of_the_fifth_generation_are_summed(tmp_path: Path) -> None:
    kinds = ("malformed_packet", "buffer_overrun", "receive", "receive_remote", "receive_general", "link_integrity",
             "transmit_discard", "recovery", "recovery_failed", None, "effective", "symbol")  # fmt: skip
    with host.simulated(tmp_path / "b200", 1, "B200") as new:
        with new.edit() as config:
            for row in range(len(kinds)):
                config.gpus[0].links[0].packet_errors[row] = 10 + row
                config.gpus[0].links[17].packet_errors[row] = 1000
        new.set_load(0, 1.0)
        new.advance(10)
        at = host.source()
        found = await host.look(at)
        await at.close()
        shown = {key[2]: value for key, value in found.items() if key[0] == "aie_gpu_nvlink_errors_total"}
        assert shown == {kind: 1010 + row for row, kind in enumerate(kinds) if kind}
        assert found["aie_gpu_nvlink_bytes_total", "tx", "0"] == pytest.approx(new.counter(0, "nvlink_tx_bytes"), abs=18)
        assert found["aie_gpu_nvlink_bytes_total", "rx", "0"] == pytest.approx(new.counter(0, "nvlink_rx_bytes"), abs=18)
        assert found["aie_gpu_nvlink_bytes_total", "rx", "0"] < found["aie_gpu_nvlink_bytes_total", "tx", "0"]
        assert new.calls("nvmlDeviceGetNvLinkErrorCounter") == 18 * 3, "asked once a kind that is not counted by packets"


async def test_links_that_are_not_counted_at_first_are_asked_for_again(tmp_path: Path) -> None:
    """A moment's error at the start is no GPU without links."""
    with host.simulated(tmp_path / "b200", 1, "B200") as new:
        host.quiet(new, 1)
        new.fail_field(91, pynvml.NVML_ERROR_TIMEOUT)
        at = host.source()
        for _ in range(4):
            found = await host.look(at)
            assert not any(key[0].startswith("aie_gpu_nvlink") for key in found)
        new.fail_field(91, 0)
        found = await host.until(at, lambda found: ("aie_gpu_nvlink_bytes_total", "tx", "0") in found)
        found = await host.until(at, lambda found: ("aie_gpu_nvlink_errors_total", "0", "symbol") in found)
        assert found["aie_gpu_nvlink_links", "0", "active"] == 18
        await at.close()


async def test_the_highest_generation_does_not_follow_the_load(gpus: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hypervisor's port that claims what a link at rest does, until the link works."""
    monkeypatch.setattr("aie_agent.sources.nvml.gpu.read_slot", lambda bus: Slot(5, 16, 1, 16))
    at = host.source()
    most = []
    for generation in (1, 5, 1, 5):
        gpus.set_link(0, generation=generation)
        found = await host.look(at)
        assert found["aie_gpu_pcie_link_generation", "0"] == generation
        most.append(found["aie_gpu_pcie_link_generation_max", "0"])
    assert most == [1, 5, 5, 5]
    await at.close()


async def test_each_gpu_is_known_by_the_number_of_its_device_file(gpus: Controller) -> None:
    """Which is not NVML's index on every host."""
    for gpu, minor in enumerate((2, 0, 1)):
        gpus.set(gpu, minor_number=minor)
    at = host.source()
    await host.look(at)
    assert [at._on_gpus[gpu].gpu.minor for gpu in range(GPUS)] == [2, 0, 1]
    await at.close()


async def test_a_gpu_that_says_it_has_no_links_is_not_asked_for_them_again(tmp_path: Path) -> None:
    with host.simulated(tmp_path / "b200", 1, "B200") as new:
        host.quiet(new, 1)
        new.fail_field(91, pynvml.NVML_ERROR_NOT_SUPPORTED)
        at = host.source()
        await host.look(at)
        new.fail_field(91, 0)
        for _ in range(4):
            assert not any(key[0].startswith("aie_gpu_nvlink") for key in await host.look(at))
        await at.close()


async def test_a_link_that_does_not_answer_makes_no_sum_fall(tmp_path: Path) -> None:
    with host.simulated(tmp_path / "b200", 1, "B200") as new:
        with new.edit() as config:
            config.gpus[0].links[0].packet_errors[7] = 5
            config.gpus[0].links[17].packet_errors[7] = 1000
        key = ("aie_gpu_nvlink_errors_total", "0", "recovery")
        at = host.source()
        assert (await host.look(at))[key] == 1005
        with new.edit() as config:
            config.gpus[0].link_count = 17
        for _ in range(5):
            assert (await host.look(at))[key] == 1005
        await at.close()


@pytest.mark.parametrize("profile", ["A100", "H100"])
async def test_links_of_old_are_summed_by_the_driver_and_asked_for_nothing_new(tmp_path: Path, profile: str) -> None:
    with host.simulated(tmp_path / "old", 1, profile) as old:
        old.set_load(0, 1.0)
        old.advance(10)
        at = host.source()
        found = await host.look(at)
        assert {key[2] for key in found if key[0] == "aie_gpu_nvlink_errors_total"} == {
            "replay", "recovery", "crc_flit", "crc_data"
        }  # fmt: skip
        sent = found["aie_gpu_nvlink_bytes_total", "tx", "0"]
        assert sent == pytest.approx(old.counter(0, "nvlink_tx_bytes"), abs=1024)
        calls = old.calls("nvmlDeviceGetFieldValues")
        await host.look(at)
        assert old.calls("nvmlDeviceGetFieldValues") == calls + 2, "one call for the fast fields, one for the slow ones"
        await at.close()


async def test_processes_of_mig_are_asked_of_the_instances_where_the_gpu_tells_none(gpus: Controller) -> None:
    instances = [
        MigInstance("1g.10gb", 7, 9728 * MIB, 16),
        MigInstance("3g.40gb", 1, 40 * 1024 * MIB, 60),
        MigInstance("3g.40gb", 1, 40 * 1024 * MIB, 60, compute_instance=1),
    ]
    gpus.set_mig(0, instances)
    processes = [
        Process(101, 2000 * MIB, gpu_instance=7, compute_instance=0),
        Process(102, 3000 * MIB, gpu_instance=1, compute_instance=0),
        Process(101, 500 * MIB, gpu_instance=1, compute_instance=0),
    ]
    gpus.set_processes(0, processes)
    at = host.source()

    async def contexts() -> dict[int, int | None]:
        await host.look(at)
        return {context.pid: context.memory_bytes for context in at._on_gpus[0].contexts or ()}

    everything = {101: 2500 * MIB, 102: 3000 * MIB}
    assert await contexts() == everything, "with the privilege"
    calls = gpus.calls("nvmlDeviceGetComputeRunningProcesses_v3")
    assert await contexts() == everything
    assert gpus.calls("nvmlDeviceGetComputeRunningProcesses_v3") == calls + GPUS, "the instances are not asked as well"
    gpus.set(0, mig_hides_processes=1)
    assert await contexts() == everything, "without it"
    gpus.set_processes(0, [processes[0]])
    assert await contexts() == {101: 2000 * MIB}
    gpus.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_NO_PERMISSION, gpu=0)
    for ending in ("_v2", ""):
        gpus.fail(f"nvmlDeviceGetComputeRunningProcesses{ending}", pynvml.NVML_ERROR_NO_PERMISSION, gpu=0)
    await contexts()
    gpus.set_mig(0, [])
    gpus.set_processes(0, [])
    await host.until(at, lambda found: found.get(("aie_gpu_mig_mode", "0")) == 0)
    await at.close()


async def test_xids_come_again_of_a_gpu_that_was_lost(gpus: Controller) -> None:
    def xid_62(found: host.Numbers) -> float | None:
        return found.get(("aie_gpu_xid_errors_total", "1", "62"))

    at = host.source(xids=True)
    await host.until(at, lambda found: xid_62(found) == 0)
    gpus.lose(1)
    await host.until(at, lambda found: host.up(found)["1"] == "lost")
    gpus.lose(1, lost=False)
    await host.until(at, lambda found: host.up(found)["1"] == "")
    await host.until(at, lambda found: found["aie_gpu_xid_source_up", "nvml_events"] == 1)
    gpus.push_xid(1, 62)
    await host.until(at, lambda found: xid_62(found) == 1)
    await at.close()
