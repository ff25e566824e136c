"""The NVML source on the stand-in library, through the real binding: what it says, and what it says when things go wrong."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest

from aie_agent.simulate import Controller
from aie_agent.sources.nvml.memory import Memory
from aie_agent.sources.nvml.rows import CLOCK_EVENTS
from aie_telemetry.catalogue import CATALOGUE
from tests.integration.agent import nvml_host as host

GPUS = 3
UINT, ULONGLONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", GPUS, "H100") as controller:
        host.quiet(controller, GPUS)
        yield controller


async def test_numbers_are_those_of_the_binding(gpus: Controller) -> None:
    gpus.throttle(1, 0x4 | 0x8 | 0x4000)
    gpus.set_link(1, width=8)
    at = host.source()
    found = await host.look(at)
    pynvml.nvmlInit()
    try:
        for index in range(GPUS):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            gpu = str(index)
            expected = {
                ("aie_gpu_memory_total_bytes", gpu): memory.total,
                ("aie_gpu_memory_used_bytes", gpu): memory.used,
                ("aie_gpu_memory_reserved_bytes", gpu): memory.reserved,
                ("aie_gpu_memory_free_bytes", gpu): memory.free,
                ("aie_gpu_utilization_ratio", gpu): rates.gpu / 100,
                ("aie_gpu_memory_utilization_ratio", gpu): rates.memory / 100,
                ("aie_gpu_clock_hertz", "sm", gpu): pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM) * 1e6,
                ("aie_gpu_clock_max_hertz", "memory", gpu): pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM) * 1e6,
                ("aie_gpu_power_watts", gpu): pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                ("aie_gpu_power_limit_watts", gpu): pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
                ("aie_gpu_energy_joules_total", gpu): pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3,
                ("aie_gpu_temperature_celsius", gpu, "gpu"): pynvml.nvmlDeviceGetTemperature(handle, 0),
                ("aie_gpu_pcie_link_width", gpu): pynvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
                ("aie_gpu_pcie_link_width_max", gpu): pynvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
                ("aie_gpu_pcie_link_generation", gpu): pynvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            }
            got = {key: found[key] for key in expected}
            assert got == pytest.approx(expected, rel=1e-12)
            reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
            for reason, bit in CLOCK_EVENTS.items():
                assert found["aie_gpu_clock_event_active", gpu, reason] == bool(reasons & bit)
        assert found["aie_gpu_clock_event_active", "1", "other"] == 1
        assert found["aie_gpu_clock_event_active", "0", "other"] == 0
        assert found["aie_gpu_pcie_link_width", "1"] == 8
    finally:
        pynvml.nvmlShutdown()
        await at.close()


async def test_every_point_is_of_the_catalogue(gpus: Controller) -> None:
    at = host.source()
    await at.collect(time.time())
    await asyncio.sleep(0.11)  # GPM's least interval
    batch = await at.collect(time.time())
    await at.close()
    for point in batch.points:
        metric = CATALOGUE[point.name]
        assert point.kind is metric.kind
        assert [label for label, _ in point.tags] == sorted(metric.labels), point
    assert len(batch.points) == len({(point.name, point.tags) for point in batch.points})


async def test_memory_adds_up_to_the_byte(gpus: Controller) -> None:
    at = host.source()
    found = await host.look(at)
    parts = [found[f"aie_gpu_memory_{part}_bytes", "0"] for part in ("used", "reserved", "free")]
    assert sum(parts) == found["aie_gpu_memory_total_bytes", "0"]
    await at.close()


async def test_without_version_2_memory_still_adds_up_and_nothing_is_reserved(gpus: Controller) -> None:
    gpus.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    at = host.source()
    found = await host.look(at)
    assert ("aie_gpu_memory_reserved_bytes", "0") not in found
    assert (
        found["aie_gpu_memory_used_bytes", "0"] + found["aie_gpu_memory_free_bytes", "0"]
        == found["aie_gpu_memory_total_bytes", "0"]
    )
    await at.close()


async def test_where_version_2_does_not_add_up_version_1_is_asked(gpus: Controller) -> None:
    total, free = 80 << 30, 20 << 30
    gpus.fix(0, "memory_total_bytes", total)
    gpus.fix(0, "memory_free_bytes", free)
    gpus.fix(0, "memory_used_bytes", total - free)
    gpus.fix(0, "memory_reserved_bytes", 70 << 30)
    at = host.source()
    found = await host.look(at)
    assert ("aie_gpu_memory_reserved_bytes", "0") not in found
    assert found["aie_gpu_memory_used_bytes", "0"] == total - free
    assert found["aie_gpu_memory_free_bytes", "0"] == free
    gpus.fix(0, "memory_free_bytes", free + (1 << 20))
    assert ("aie_gpu_memory_used_bytes", "0") not in await host.look(at), "neither adds up: nothing is known"
    await at.close()


async def test_a_gpu_without_memory_of_its_own_shows_the_hosts(tmp_path: Path) -> None:
    with host.simulated(tmp_path / "gb10", 1, "GB10"):
        at = host.source(memory=Memory(128 << 30, 28 << 30, 100 << 30))
        found = await host.look(at)
        assert found["aie_gpu_memory_unified", "0"] == 1
        assert found["aie_gpu_memory_used_bytes", "0"] == 28 << 30
        assert found["aie_gpu_memory_total_bytes", "0"] == 128 << 30
        assert ("aie_gpu_memory_reserved_bytes", "0") not in found
        await at.close()


async def test_a_lost_gpu_stays_and_the_others_do_not_notice(gpus: Controller) -> None:
    at = host.source(host.section(retry=60.0))
    before = await host.look(at)
    gpus.lose(1)
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "lost", "2": ""}
    assert found["aie_gpu_present",] == 2
    assert found["aie_gpu_expected",] == 3
    assert ("aie_gpu_power_watts", "1") not in found
    assert [key for key in found if key[0] == "aie_gpu_info"] == [key for key in before if key[0] == "aie_gpu_info"]
    assert found["aie_gpu_power_watts", "2"] == before["aie_gpu_power_watts", "2"]
    await at.close()


async def test_a_lost_gpu_is_not_asked_anything(gpus: Controller) -> None:
    at = host.source(host.section(retry=60.0))
    await host.look(at)
    gpus.lose(0)
    await host.look(at)
    power = gpus.calls("nvmlDeviceGetPowerUsage")
    await host.look(at)
    assert gpus.calls("nvmlDeviceGetPowerUsage") == power + GPUS - 1
    await at.close()


async def test_a_gpu_that_comes_back_is_up_again_without_a_restart(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    gpus.lose(1)
    await host.until(at, lambda found: host.up(found)["1"] == "lost")
    gpus.lose(1, lost=False)
    found = await host.until(at, lambda found: host.up(found)["1"] == "")
    assert found["aie_gpu_present",] == 3
    assert ("aie_gpu_power_watts", "1") in found
    await at.close()


async def test_a_gpu_that_was_lost_before_the_agent_came_is_there(gpus: Controller) -> None:
    gpus.lose(2)
    at = host.source()
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": "lost"}
    assert found["aie_gpu_expected",] == 3
    await at.close()


async def test_reset_required_is_another_reason_than_lost(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    gpus.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_RESET_REQUIRED, gpu=0)
    assert host.up(await host.look(at))["0"] == "reset_required"
    await at.close()


async def test_a_gpu_that_is_taken_out_is_lost_and_one_that_is_put_in_is_new(gpus: Controller) -> None:
    gpus.remove(0)
    at = host.source()
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": ""}
    first = [key for key in found if key[0] == "aie_gpu_info" and key[3] == "0"]
    gpus.remove(0, removed=False)
    at.release()
    assert "given back" in await host.reason(at)
    at.release()
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": ""}
    gpus.remove(2)
    at.release()
    await host.reason(at)
    at.release()
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": "lost"}
    assert found["aie_gpu_expected",] == 3
    assert len({key[-1] for key in found if key[0] == "aie_gpu_info"}) == 3  # by UUID: all of one name
    assert first[0][-1] in {key[-1] for key in found if key[0] == "aie_gpu_info"}
    await at.close()


async def test_a_call_that_hangs_takes_only_its_gpu(gpus: Controller) -> None:
    others = set(threading.enumerate())
    at = host.source()
    await host.look(at)
    gpus.delay("nvmlDeviceGetPowerUsage", 600.0, gpu=1)
    try:
        found = await host.until(at, lambda found: host.up(found)["1"] == "hung")
        assert host.up(found) == {"0": "", "1": "hung", "2": ""}
        assert ("aie_gpu_power_watts", "0") in found
        assert ("aie_gpu_power_watts", "2") in found
        assert ("aie_gpu_power_watts", "1") not in found
        await host.until(at, lambda _: [thread.name for thread in {*threading.enumerate()} - others].count("nvml") == 2)
    finally:
        gpus.delay("nvmlDeviceGetPowerUsage", 0.0, gpu=1)
    found = await host.until(at, lambda found: host.up(found)["1"] == "")
    assert ("aie_gpu_power_watts", "1") in found or ("aie_gpu_power_watts", "1") in await host.look(at)
    await at.close()


async def test_a_slow_gpu_is_read_last_and_stays_up(gpus: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the order, not of the time: who is slow is asked when nobody is left to wait for it."""
    monkeypatch.setattr("aie_agent.sources.nvml.source._PATIENCE_S", 30.0)
    at = host.source(host.section(hung_after=30.0))
    await host.look(at)
    gpus.delay("nvmlDeviceGetPowerUsage", 1.0, gpu=0)
    await host.look(at)
    asked: list[int] = []
    for gpu in at._session.gpus:
        read = gpu.read
        gpu.read = lambda slow, gpu=gpu, read=read: (asked.append(gpu.index), read(slow))[1]  # type: ignore[method-assign,misc]
    found = await host.look(at)
    assert asked[-1] == 0
    assert host.up(found) == {"0": "", "1": "", "2": ""}
    await at.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "driver and library are of different versions"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "driver is not loaded"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_UNKNOWN, "NVML does not start: unknown"),
    ],
)
async def test_what_keeps_nvml_closed_is_one_line_and_is_tried_again(gpus: Controller, code: int, words: str) -> None:
    gpus.fail_init(code)
    at = host.source()
    line = await host.reason(at)
    assert words in line
    assert "\n" not in line
    gpus.fail_init(0)
    assert host.up(await host.look(at)) == {"0": "", "1": "", "2": ""}
    await at.close()


async def test_between_two_tries_nothing_is_called(gpus: Controller) -> None:
    gpus.fail_init(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    at = host.source(host.section(retry=60.0))
    first = await host.reason(at)
    calls = gpus.calls("nvmlInitWithFlags")
    assert await host.reason(at) == first
    assert gpus.calls("nvmlInitWithFlags") == calls == 1
    await at.close()


async def test_without_the_binding_the_reason_says_what_to_install() -> None:
    def load() -> None:
        raise ImportError("No module named 'pynvml'")

    at = host.source(load=load)
    assert "nvidia-ml-py is not installed" in await host.reason(at)
    await at.close()


async def test_a_session_that_ends_by_itself_is_opened_anew(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    opened = gpus.calls("nvmlInitWithFlags")
    gpus.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_UNINITIALIZED)
    await host.look(at)
    gpus.fail("nvmlDeviceGetUtilizationRates", 0)
    found = await host.until(at, lambda found: ("aie_gpu_utilization_ratio", "0") in found)
    assert host.up(found) == {"0": "", "1": "", "2": ""}
    assert gpus.calls("nvmlInitWithFlags") > opened
    await at.close()


async def test_given_back_it_holds_nothing_until_it_is_taken_again(gpus: Controller) -> None:
    at = host.source()
    await host.look(at)
    at.release()
    assert "given back" in await host.reason(at)
    assert gpus.calls("nvmlShutdown") == gpus.calls("nvmlInitWithFlags") == 1
    assert gpus.calls("nvmlGpmSampleFree") == gpus.calls("nvmlGpmSampleAlloc") == 2 * GPUS
    at.release()
    assert host.up(await host.look(at)) == {"0": "", "1": "", "2": ""}
    await at.close()
    assert gpus.calls("nvmlShutdown") == 2


async def test_given_back_for_a_while_it_comes_back_by_itself(gpus: Controller) -> None:
    at = host.source(host.section(released_for=0.2))
    await host.look(at)
    at.release()
    await host.reason(at)
    await asyncio.sleep(0.25)
    assert host.up(await host.look(at)) == {"0": "", "1": "", "2": ""}
    await at.close()


async def test_what_a_gpu_lacks_is_asked_once(gpus: Controller) -> None:
    gpus.fail("nvmlDeviceGetFanSpeed", pynvml.NVML_ERROR_NOT_SUPPORTED)
    at = host.source()
    for _ in range(5):
        found = await host.look(at)
    assert gpus.calls("nvmlDeviceGetFanSpeed") == GPUS
    assert ("aie_gpu_fan_speed_ratio", "0") not in found
    assert not any(name == "nvmlDeviceGetFanSpeed" for _, labels, _ in at.counts() for name in labels[:1] if len(labels) == 2)
    await at.close()


async def test_what_fails_for_a_moment_is_asked_again_and_counted(gpus: Controller) -> None:
    gpus.fail("nvmlDeviceGetPowerUsage", pynvml.NVML_ERROR_TIMEOUT, gpu=0)
    at = host.source()
    found = await host.look(at)
    assert ("aie_gpu_power_watts", "0") not in found
    gpus.fail("nvmlDeviceGetPowerUsage", 0, gpu=0)
    assert ("aie_gpu_power_watts", "0") in await host.look(at)
    failed = {labels: value for name, labels, value in at.counts() if name == "aie_agent_nvml_errors_total"}
    assert failed["nvmlDeviceGetPowerUsage", "timeout"] >= 1
    await at.close()


async def test_another_way_is_taken_where_the_best_is_not_there(gpus: Controller) -> None:
    gpus.fail_field(83, pynvml.NVML_ERROR_NOT_SUPPORTED)
    gpus.fail("nvmlDeviceGetCurrentClocksEventReasons", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    at = host.source()
    found = await host.look(at)
    assert ("aie_gpu_energy_joules_total", "0") in found
    assert ("aie_gpu_clock_event_active", "0", "idle") in found
    assert gpus.calls("nvmlDeviceGetTotalEnergyConsumption") > 0
    await at.close()
