"""The unit of deploy/systemd: systemd takes it, and it holds what the agent needs, as the DaemonSet does."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from fakes.deploy_files import DEPLOY, daemon_set

from aie_ebpf.prerequisites import KERNEL_SOURCE

UNIT = DEPLOY / "systemd" / "aie-agent.service"


@pytest.fixture
def analyze() -> str:
    found = shutil.which("systemd-analyze")
    if found is None:
        pytest.skip("systemd-analyze is missing: apt-get install systemd")
    return found


def test_systemd_takes_the_unit(analyze: str, tmp_path: Path) -> None:
    """The program has to be there: it is in the unit that this test reads, where the installed one is elsewhere."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/aie/bin/", f"{Path(sys.executable).parent}/"))
    verified = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_the_unit_exposes_little(analyze: str) -> None:
    """systemd's own score, 0 (safe) to 10: "OK" ends at 5."""
    rated = subprocess.run([analyze, "security", "--offline=true", str(UNIT)], capture_output=True, text=True, check=False).stdout
    score = re.search(r"Overall exposure level for \S+: ([\d.]+)", rated)
    assert score is not None, rated
    assert float(score[1]) <= 3.5


def _settings(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), re.MULTILINE)


def test_the_unit_starts_after_the_driver_and_leaves_the_kernel_s_headers_in_sight() -> None:
    """DeviceAllow names the driver's devices, which systemd looks up at the start."""
    (after,) = _settings("After")
    assert {"modprobe@nvidia.service", "nvidia-persistenced.service"} <= set(after.split())
    assert any(each.startswith("char-nvidia") for each in _settings("DeviceAllow"))
    assert not _settings("ProtectKernelModules")
    assert f"BCC_KERNEL_SOURCE={KERNEL_SOURCE}" in _settings("Environment")


def test_unit_and_daemon_set_hold_the_same_capabilities_but_for_the_kernel_s_log() -> None:
    """A container that is not privileged may not open /dev/kmsg, whatever it holds and mounts."""
    (unit,) = _settings("CapabilityBoundingSet")
    assert _settings("AmbientCapabilities") == [unit]
    pod = daemon_set()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert len(unit.split()) == 6
    assert {f"CAP_{each}" for each in security["capabilities"]["add"]} == set(unit.split()) - {"CAP_SYSLOG"}
    assert security["capabilities"]["drop"] == ["ALL"]
    assert "privileged" not in security
    assert not [each for each in pod["volumes"] if each.get("hostPath", {}).get("path", "").startswith("/dev")]
