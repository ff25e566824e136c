"""GPUs through the whole agent, as a process of its own: its page, its snapshot, and the signal that gives NVML back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aie_agent import simulate
from aie_agent.sources.nvml import build, presence
from aie_telemetry.catalogue import CATALOGUE
from tests.integration.agent.nvml_agent import AGENT, agent


def source(snapshot: dict[str, Any]) -> dict[str, Any] | None:
    return next((row for row in snapshot["sources"] if row["name"] == "nvml"), None)


def test_simulated_gpus_reach_page_and_snapshot_and_say_what_they_are(tmp_path: Path) -> None:
    with agent(tmp_path, "--simulate-gpus", "2:H200") as running:
        found = running.until(lambda found: len(found["gpus"]) == 2 and found["gpus"][1]["sm_active_ratio"] is not None)
        for index, gpu in enumerate(found["gpus"]):
            assert gpu["index"] == index
            assert gpu["simulated"] is True
            assert gpu["up"] is True
            assert "H200" in gpu["name"]
            assert gpu["memory_used_bytes"] + gpu["memory_reserved_bytes"] + gpu["memory_free_bytes"] == gpu["memory_total_bytes"]
            assert gpu["power_limit_watts"] == 700
            assert gpu["utilization_history"][-1] is not None
        families = {family.name: family for family in text_string_to_metric_families(running.get("/metrics"))}
        assert {family for family in families if family.startswith("aie_gpu_")} > {
            "aie_gpu_up",
            "aie_gpu_power_watts",
            "aie_gpu_info",
        }
        assert {sample.labels["simulated"] for sample in families["aie_gpu_info"].samples} == {"true"}
        for family in families.values():
            for sample in family.samples:
                if sample.name.startswith("aie_gpu_"):
                    assert set(sample.labels) == set(CATALOGUE[sample.name].labels)
        assert "aie_agent_nvml_seconds" in families


def test_a_lost_gpu_has_one_state_on_the_page(tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    with (
        simulate.Controller.create(state, 2, "H100") as controller,
        agent(tmp_path, environment=simulate.environment(state), config='[gpu]\nretry = "1s"\n') as running,
    ):
        running.until(lambda found: [gpu["up"] for gpu in found["gpus"]] == [True, True])
        controller.lose(1)
        found = running.until(lambda found: [gpu["up"] for gpu in found["gpus"]] == [True, False])
        assert found["gpus"][1]["reason"] == "lost"
        assert found["gpus"][1]["power_watts"] is None
        assert found["gpus"][1]["uuid"]
        ups = [line for line in running.get("/metrics").splitlines() if line.startswith("aie_gpu_up{")]
        assert ups == ['aie_gpu_up{gpu="0",reason=""} 1', 'aie_gpu_up{gpu="1",reason="lost"} 0']
        controller.lose(1, lost=False)
        running.until(lambda found: [gpu["up"] for gpu in found["gpus"]] == [True, True])


def test_the_signal_gives_nvml_back_and_takes_it_again(tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    with (
        simulate.Controller.create(state, 2, "H100") as controller,
        agent(tmp_path, environment=simulate.environment(state)) as running,
    ):
        running.until(lambda found: len(found["gpus"]) == 2)
        running.process.send_signal(signal.SIGUSR1)
        found = running.until(lambda found: source(found)["state"] == "down")
        assert "given back" in source(found)["reason"]
        assert controller.calls("nvmlShutdown") == 1
        running.process.send_signal(signal.SIGUSR1)
        running.until(lambda found: source(found)["state"] == "up" and len(found["gpus"]) == 2)


def test_a_gpu_that_hangs_does_not_keep_the_agent_from_ending(tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    with (
        simulate.Controller.create(state, 2, "H100") as controller,
        agent(tmp_path, environment=simulate.environment(state), config='[gpu]\nhung_after = "1s"\n') as running,
    ):
        running.until(lambda found: [gpu["up"] for gpu in found["gpus"]] == [True, True])
        controller.delay("nvmlDeviceGetTemperature", 3600.0, gpu=0)
        found = running.until(lambda found: [gpu["up"] for gpu in found["gpus"]] == [False, True])
        assert found["gpus"][0]["reason"] == "hung"
        assert found["gpus"][1]["temperature_celsius"] is not None
        running.process.terminate()
        assert running.process.wait(60) == 0


@pytest.mark.parametrize(("driver", "has_reserved", "has_gpm"), [(450, False, False), (515, True, False), (525, True, True)])
def test_old_drivers_give_what_they_have(tmp_path: Path, driver: int, has_reserved: bool, has_gpm: bool) -> None:
    """A library without the symbols of later ones: what is missing is absent, and everything else is there."""
    state = tmp_path / "gpus"
    with (
        simulate.Controller.create(state, 2, "H100") as controller,
        agent(tmp_path, environment=simulate.environment(state, driver)) as running,
    ):
        controller.throttle(0, 0x40)
        controller.set_processes(0, [simulate.Process(os.getpid(), 3 << 30)])
        found = running.until(
            lambda found: (
                len(found["gpus"]) == 2
                and found["gpus"][0]["clock_events"]
                and found["gpus"][0]["processes"]
                and found["gpus"][0]["pcie_tx_bytes_per_second"] is not None
                and (found["gpus"][0]["sm_active_ratio"] is not None) == has_gpm
            )
        )
        gpu = found["gpus"][0]
        assert gpu["clock_events"] == ["hw_thermal"]
        assert [process["memory_bytes"] for process in gpu["processes"]] == [3 << 30]
        assert (gpu["memory_reserved_bytes"] is not None) == has_reserved
        parts = [gpu[f"memory_{part}_bytes"] or 0 for part in ("used", "reserved", "free")]
        assert sum(parts) == gpu["memory_total_bytes"]
        assert gpu["power_watts"] > 0
        assert "function_not_found" not in running.get("/metrics")


def test_a_driver_of_another_version_is_one_reason_and_the_rest_works(tmp_path: Path) -> None:
    state = tmp_path / "gpus"
    with (
        simulate.Controller.create(state, 2, "H100") as controller,
    ):
        controller.fail_init(18)
        with agent(tmp_path, environment=simulate.environment(state), config='[gpu]\nretry = "1s"\n') as running:
            found = running.until(lambda found: (source(found) or {}).get("state") == "down")
            assert "different versions" in source(found)["reason"]
            assert found["host"]["cpus"] is not None
            assert found["gpus"] == []
            controller.fail_init(0)
            running.until(lambda found: len(found["gpus"]) == 2)


def host_has_nvidia() -> bool:
    """Asked in a process of its own: this one may have loaded the stand-in in another test, and keeps it loaded."""
    program = "from aie_agent.sources.nvml import presence; raise SystemExit(7 if presence.is_expected() else 0)"
    return subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 7


def test_without_a_gpu_there_is_no_source(tmp_path: Path) -> None:
    if host_has_nvidia():
        pytest.skip("this host has something of NVIDIA's")
    with agent(tmp_path) as running:
        found = running.until(lambda found: len(found["sources"]) >= 3)
        assert source(found) is None
        assert found["gpus"] == []
        assert "aie_gpu_" not in running.get("/metrics")
        running.process.send_signal(signal.SIGUSR1)  # and the signal does nothing
        assert running.snapshot()["gpus"] == []


def test_where_gpus_are_expected_their_absence_is_a_reason(tmp_path: Path) -> None:
    if host_has_nvidia():
        pytest.skip("this host has something of NVIDIA's")
    with agent(tmp_path, config="[gpu]\nexpected = 8\n") as running:
        found = running.until(lambda found: (source(found) or {}).get("state") == "down")
        assert "no NVIDIA driver" in source(found)["reason"]
        assert "aie_gpu_expected 8" in running.get("/metrics")


@pytest.mark.parametrize(
    ("argument", "words"),
    [("0", "--simulate-gpus"), ("17", "--simulate-gpus"), ("8:GTX1080", "GTX1080"), ("eight", "--simulate-gpus")],
)
def test_simulated_gpus_that_cannot_be_are_one_line(tmp_path: Path, argument: str, words: str) -> None:
    done = subprocess.run(
        [AGENT, "run", "--no-bpf", "--listen", "127.0.0.1:0", "--simulate-gpus", argument],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert words in done.stderr or "gpu.simulate" in done.stderr


def test_a_card_on_the_bus_is_enough(tmp_path: Path) -> None:
    for name, vendor, kind in (("0000:00:02.0", "0x8086", "0x030000"), ("0000:3b:00.1", "0x10de", "0x040300")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(f"{vendor}\n")
        (tmp_path / name / "class").write_text(f"{kind}\n")
    assert not presence._on_bus(tmp_path)
    (tmp_path / "0000:3b:00.0").mkdir()
    (tmp_path / "0000:3b:00.0" / "vendor").write_text("0x10de\n")
    (tmp_path / "0000:3b:00.0" / "class").write_text("0x030200\n")
    assert presence._on_bus(tmp_path)


def test_host_memory_adds_up(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       131072 kB\nMemFree:  1 kB\nMemAvailable:   65536 kB\n")
    found = build.host_memory(build.Procfs(tmp_path))
    assert found is not None
    assert (found.total, found.used, found.free) == (131072 * 1024, 65536 * 1024, 65536 * 1024)
