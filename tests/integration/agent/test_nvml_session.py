"""When the session of NVML is opened, closed and left alone: GPUs that are lost, calls that hang, a driver that is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pynvml
import pytest

from aie_agent.outputs.gpus import gpus as rows_of
from aie_agent.simulate import Controller
from aie_agent.sources.base import SourceError
from aie_agent.sources.nvml.bus_id import bus_id
from aie_agent.sources.nvml.source import NvmlSource
from aie_agent.sources.nvml.unreached import may_be_lost
from aie_agent.store import Store
from tests.integration.agent import nvml_host as host

GPUS = 4
RETRIES_OF_HOURS = 480
"""At `retry` 0 every look is a retry: so many are four hours of them at the default of 30 s."""


@pytest.fixture
def gpus(tmp_path: Path) -> Iterator[Controller]:
    with host.simulated(tmp_path / "gpus", GPUS, "H100") as controller:
        host.quiet(controller, GPUS)
        yield controller


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What /proc/driver/nvidia/gpus is on this host: one folder a GPU, by its bus id."""
    path = tmp_path / "proc"
    for gpu in range(GPUS):
        (path / bus(gpu)).mkdir(parents=True)
    monkeypatch.setattr("aie_agent.sources.nvml.session._GPU_FOLDERS", path)
    return path


def bus(gpu: int) -> str:
    return f"0000:{0x19 + 0x10 * gpu:02x}:00.0"


def opened(gpus: Controller) -> int:
    return gpus.calls("nvmlInitWithFlags")


async def closed(at: NvmlSource) -> host.Numbers:
    """What is delivered although there is no session."""
    with pytest.raises(SourceError) as raised:
        await at.collect(time.time())
    assert raised.value.batch is not None
    return host.numbers(raised.value.batch)


async def test_one_lost_gpu_interrupts_nobody_for_hours(gpus: Controller, folders: Path) -> None:
    at = host.source()
    await host.look(at)
    gpus.lose(1)
    await host.until(at, lambda found: host.up(found)["1"] == "lost")
    for _ in range(RETRIES_OF_HOURS):
        found = await host.look(at)
        assert host.up(found) == {"0": "", "1": "lost", "2": "", "3": ""}
        assert {("aie_gpu_power_watts", gpu) for gpu in "023"} < found.keys()
    assert opened(gpus) == 1
    # The driver lets go of it: one new session, and one only.
    gpus.remove(1)
    (folders / bus(1)).rmdir()
    await host.until(at, lambda _: opened(gpus) == 2)
    for _ in range(50):
        found = await host.look(at)
    # Those after it move up.
    assert sorted(host.up(found).values()) == ["", "", "", "lost"]
    assert opened(gpus) == 2
    # And has it again.
    gpus.remove(1, removed=False)
    gpus.lose(1, lost=False)
    (folders / bus(1)).mkdir()
    found = await host.until(at, lambda found: set(host.up(found).values()) == {""})
    for _ in range(50):
        found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": "", "3": ""}
    assert opened(gpus) == 3
    await at.close()


async def test_where_no_gpu_is_left_a_new_session_is_tried(gpus: Controller, folders: Path) -> None:
    at = host.source()
    await host.look(at)
    for gpu in range(GPUS):
        gpus.lose(gpu)
    await host.until(at, lambda _: opened(gpus) > 1)
    assert host.up(await host.look(at)) == dict.fromkeys("0123", "lost")
    await at.close()


async def test_while_nvml_is_given_back_every_gpu_is_there_and_none_is_up(gpus: Controller, folders: Path) -> None:
    at = host.source(host.section(retry=60.0))
    gpus.lose(3)
    before = await host.look(at)
    at.release()
    found = await closed(at)
    assert host.up(found) == {"0": "released", "1": "released", "2": "released", "3": "lost"}
    assert found["aie_gpu_present",] == 0
    assert found["aie_gpu_expected",] == GPUS
    assert {key for key in found if key[0] == "aie_gpu_info"} == {key for key in before if key[0] == "aie_gpu_info"}
    assert not any(key[0] == "aie_gpu_power_watts" for key in found)
    await at.close()


@pytest.mark.parametrize(
    "code",
    [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH],
)
async def test_a_driver_that_goes_away_takes_no_gpu_off_the_page(gpus: Controller, folders: Path, code: int) -> None:
    at = host.source()
    await host.look(at)
    gpus.fail_init(code)
    gpus.fail("nvmlDeviceGetUtilizationRates", pynvml.NVML_ERROR_UNINITIALIZED)
    await host.look(at)
    found = await closed(at)
    assert host.up(found) == dict.fromkeys("0123", "closed")
    assert found["aie_gpu_present",] == 0
    gpus.fail_init(0)
    gpus.fail("nvmlDeviceGetUtilizationRates", 0)
    found = await host.look(at)
    assert host.up(found) == dict.fromkeys("0123", "")
    assert found["aie_gpu_present",] == GPUS
    await at.close()


async def test_a_host_where_gpus_are_expected_and_none_was_seen_says_so(gpus: Controller, folders: Path) -> None:
    gpus.fail_init(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    at = host.source(host.section(expected=8))
    found = await closed(at)
    assert host.up(found) == {}
    assert (found["aie_gpu_expected",], found["aie_gpu_present",]) == (8, 0)
    await at.close()


async def test_nvml_is_not_shut_down_under_the_thread_that_waits_for_events(
    gpus: Controller, folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = host.source(xids=True)
    await host.until(at, lambda found: found["aie_gpu_xid_source_up", "nvml_events"] == 1)
    waits = gpus.calls("nvmlEventSetWait_v2")
    gpus.delay("nvmlEventSetWait_v2", 600.0)
    try:
        await host.until(at, lambda _: gpus.calls("nvmlEventSetWait_v2") > waits)
        at.release()
        with pytest.raises(SourceError, match="cannot be given back") as raised:
            await at.collect(time.time())
        assert raised.value.batch is not None
        found = host.numbers(raised.value.batch)
        assert host.up(found) == dict.fromkeys("0123", ""), "the GPUs themselves are read on"
        assert ("aie_gpu_power_watts", "0") in found
        at.release()
        assert host.up(await host.look(at)) == dict.fromkeys("0123", "")
        await at.close()
        assert gpus.calls("nvmlShutdown") == 0
        assert "NVML is left open" in caplog.text
    finally:
        gpus.delay("nvmlEventSetWait_v2", 0.0)


async def test_events_come_again_after_a_wait_that_hung_while_nvml_was_to_be_given_back(gpus: Controller, folders: Path) -> None:
    at = host.source(xids=True)
    await host.until(at, lambda found: found["aie_gpu_xid_source_up", "nvml_events"] == 1)
    waits = gpus.calls("nvmlEventSetWait_v2")
    gpus.delay("nvmlEventSetWait_v2", 600.0)
    await host.until(at, lambda _: gpus.calls("nvmlEventSetWait_v2") > waits)
    at.release()
    assert "cannot be given back" in await host.reason(at)
    at.release()
    assert (await host.look(at))["aie_gpu_xid_source_up", "nvml_events"] == 0
    gpus.delay("nvmlEventSetWait_v2", 0.0)
    await host.until(at, lambda found: found["aie_gpu_xid_source_up", "nvml_events"] == 1)
    gpus.push_xid(1, 62)
    await host.until(at, lambda found: found["aie_gpu_xid_errors_total", "1", "62"] == 1)
    await at.close()
    assert gpus.calls("nvmlShutdown") == 1


async def test_nvml_is_not_shut_down_under_a_gpu_that_hangs(
    gpus: Controller, folders: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = host.source()
    await host.look(at)
    gpus.delay("nvmlDeviceGetPowerUsage", 600.0, gpu=1)
    try:
        await host.until(at, lambda found: host.up(found)["1"] == "hung")
        at.release()
        assert "cannot be given back" in await host.reason(at)
        (folders / bus(2)).rmdir()  # a reason for a new session, which has to wait
        at.release()
        found = await host.look(at)
        assert host.up(found) == {"0": "", "1": "hung", "2": "", "3": ""}
        assert gpus.calls("nvmlShutdown") == 0
        assert opened(gpus) == 1
    finally:
        gpus.delay("nvmlDeviceGetPowerUsage", 0.0, gpu=1)
    await host.until(at, lambda _: opened(gpus) == 2)
    await at.close()
    assert gpus.calls("nvmlShutdown") == 2
    assert not caplog.text


def wait_for_lanes(at: NvmlSource) -> None:
    deadline_s = time.monotonic() + 60.0
    while at._lanes.away():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


async def test_while_closing_hangs_nothing_is_asked(gpus: Controller, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_agent.sources.nvml.source._CLOSE_PATIENCE_S", 0.2)
    at = host.source()
    await host.look(at)
    gpus.delay("nvmlShutdown", 600.0)
    at.release()
    for _ in range(3):
        power = gpus.calls("nvmlDeviceGetPowerUsage")
        with pytest.raises(SourceError, match="NVML hangs") as raised:
            await at.collect(time.time())
        assert raised.value.batch is not None
        assert host.up(host.numbers(raised.value.batch)) == dict.fromkeys("0123", "hung")
        assert gpus.calls("nvmlDeviceGetPowerUsage") == power
    gpus.delay("nvmlShutdown", 0.0)
    monkeypatch.setattr("aie_agent.sources.nvml.source._CLOSE_PATIENCE_S", 60.0)
    at.release()
    wait_for_lanes(at)
    assert host.up(await host.look(at)) == dict.fromkeys("0123", "")
    assert opened(gpus) == 2
    await at.close()


def xids_at_zero(found: host.Numbers, gpu: str) -> set[str]:
    return {key[2] for key, value in found.items() if key[:2] == ("aie_gpu_xid_errors_total", gpu) and value == 0}


async def test_a_gpu_that_was_lost_before_the_agent_came_has_its_xids_at_zero(gpus: Controller, folders: Path) -> None:
    """Its bus id is known from the driver, though NVML does not reach it: an increase needs a series that begins at 0."""
    gpus.lose(2)
    at = host.source(xids=True)
    found = await host.look(at)
    assert xids_at_zero(found, "2") == xids_at_zero(found, "0") > {"79", "48"}
    await at.close()


async def test_a_gpu_that_nvml_never_counted_is_a_row_that_is_not_up(
    gpus: Controller, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fell off the bus before the agent came: NVML numbers the others without it, the driver still has its folder."""
    monkeypatch.setattr("aie_agent.sources.nvml.session.simulated", lambda nvml: False)
    monkeypatch.setattr("aie_agent.sources.nvml.session.may_be_lost", partial(may_be_lost, pci_devices=tmp_path, dev=tmp_path))
    (folders / bus(1) / "information").write_text("Model: \t NVIDIA H100 80GB HBM3\nDevice Minor: \t 1\n")
    (tmp_path / bus(1)).mkdir()
    (tmp_path / bus(1) / "config").write_bytes(b"\xff" * 64)
    gpus.remove(1)
    store, at = Store(max_series=2000, retention_s=300), host.source(xids=True)
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": "", "3": "lost"}
    assert (found["aie_gpu_present",], found["aie_gpu_expected",]) == (3, 4)
    assert xids_at_zero(found, "3") == xids_at_zero(found, "0") > {"79"}
    assert not xids_at_zero(found, bus(1)[:-2])
    store.apply(await at.collect(time.time()))
    lost = rows_of(store, time.time(), 60.0)[3]
    assert (lost.up, lost.reason, lost.uuid, lost.name) == (False, "lost", "", "NVIDIA H100 80GB HBM3")
    assert bus_id(lost.pci_bus_id) == bus_id(bus(1))
    gpus.remove(1, removed=False)
    at.release()
    await host.reason(at)
    at.release()
    found = await host.look(at)
    assert host.up(found) == {"0": "", "1": "", "2": "", "3": ""}
    assert found["aie_gpu_expected",] == 4
    await at.close()


async def test_gpus_of_other_containers_are_not_lost(
    gpus: Controller, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver tells of all GPUs of the host, and this agent was given one."""
    monkeypatch.setattr("aie_agent.sources.nvml.session.simulated", lambda nvml: False)
    monkeypatch.setattr("aie_agent.sources.nvml.session.may_be_lost", partial(may_be_lost, pci_devices=tmp_path, dev=tmp_path))
    for gpu in range(GPUS):
        (folders / bus(gpu) / "information").write_text(f"Device Minor: \t {gpu}\n")
        (tmp_path / bus(gpu)).mkdir()
        (tmp_path / bus(gpu) / "config").write_bytes(b"\xde\x10\x30\x23")
    (tmp_path / "nvidia0").touch()
    for gpu in range(1, GPUS):
        gpus.remove(gpu)
    at = host.source(xids=True)
    found = await host.look(at)
    assert host.up(found) == {"0": ""}
    assert found["aie_gpu_expected",] == 1
    await at.close()


async def test_of_two_that_were_lost_before_the_agent_came_nobody_knows_which_is_which(gpus: Controller, folders: Path) -> None:
    gpus.lose(1)
    gpus.lose(2)
    at = host.source(xids=True)
    found = await host.look(at)
    assert not xids_at_zero(found, "1")
    assert xids_at_zero(found, "0000:29:00") == xids_at_zero(found, "0000:39:00") == xids_at_zero(found, "0")
    gpus.lose(2, lost=False)
    found = await host.until(at, lambda found: host.up(found)["2"] == "")
    assert xids_at_zero(found, "2") == xids_at_zero(found, "1") == xids_at_zero(found, "0")
    assert not xids_at_zero(found, "0000:39:00")
    await at.close()


async def test_without_a_session_the_driver_still_tells_whose_xids_there_can_be(gpus: Controller, folders: Path) -> None:
    gpus.fail_init(pynvml.NVML_ERROR_UNKNOWN)
    at = host.source(xids=True)
    found = await closed(at)
    assert {key[1] for key in found if key[0] == "aie_gpu_xid_errors_total"} == {bus(gpu)[:-2] for gpu in range(GPUS)}
    await at.close()
