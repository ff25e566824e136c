"""`aie-agent check` on simulated GPUs, as a user runs it: what is wrong with them is told, with what to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fakes.proc_tree import ProcTree

from aie_agent import simulate
from aie_agent.commands.check_gpu import check_gpus
from aie_agent.config import GpuSection
from aie_agent.sources.procfs import Procfs
from aie_agent.sources.procfs_text import ProcessStat

AIE_AGENT = Path(sys.executable).parent / "aie-agent"

Rows = dict[str, dict[str, Any]]


@pytest.fixture
def gpus(tmp_path: Path) -> simulate.Controller:
    return simulate.Controller.create(tmp_path / "gpus", 4, "H100")


def check(gpus: simulate.Controller, tmp_path: Path, *arguments: str) -> tuple[int, Rows]:
    config = tmp_path / "agent.toml"
    config.write_text(f'[api]\nlisten = "127.0.0.1:1"\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n')
    command = [str(AIE_AGENT), "check", "--json", "--no-discovery", "--no-bpf", "--config", str(config), *arguments]
    environment = os.environ | simulate.environment(gpus.path)
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert done.stderr == b""
    return done.returncode, {row["what"]: row for row in msgspec.json.decode(done.stdout)}


def wrong(rows: Rows) -> dict[str, str]:
    return {what: row["remedy"] for what, row in rows.items() if row["wrong"]}


def test_gpus_that_are_well_have_nothing_wrong(gpus: simulate.Controller, tmp_path: Path) -> None:
    _, rows = check(gpus, tmp_path)
    assert wrong(rows) == {}
    assert rows["GPUs"]["found"].startswith("4 simulated, driver ")
    assert "(simulated)" in rows["GPU 3"]["found"]
    assert "16 of 16 lanes" in rows["GPU 0: link"]["found"]
    assert rows["GPU 0: NVLink"]["found"] == "18 of 18 links active"
    assert rows["GPUs to each other"]["found"] == "6 pairs joined by 18 NVLinks (NV18)"


def test_nvlinks_that_are_not_active_are_told_and_count_in_the_topology(gpus: simulate.Controller, tmp_path: Path) -> None:
    with gpus.edit() as state:
        for link in (3, 7):
            state.gpus[0].links[link].active = 0
        for link in range(18):
            state.gpus[3].links[link].active = 0  # as if the fabric manager had not come to it
    _, rows = check(gpus, tmp_path)
    assert "2 of 18 NVLinks are not active" in wrong(rows)["GPU 0: NVLink"]
    assert rows["GPU 3: NVLink"]["found"] == "0 of 18 links active"
    assert "none of 18 NVLinks is active, and another NVIDIA H100 80GB HBM3 has 18" in wrong(rows)["GPU 3: NVLink"]
    found = rows["GPUs to each other"]["found"]
    assert found.startswith("1 pair joined by 18 NVLinks (NV18); 2 pairs joined by 16 NVLinks (NV16); ")


def test_errors_of_nvlink_5_are_told_as_the_source_reads_them(tmp_path: Path) -> None:
    """Its links count packets, each link apart, in fields of their own."""
    blackwell = simulate.Controller.create(tmp_path / "gpus", 1, "B200")
    with blackwell.edit() as state:
        state.gpus[0].links[2].packet_errors[0] = 3
        state.gpus[0].links[7].packet_errors[0] = 4
        state.gpus[0].links[7].packet_errors[8] = 1
    _, rows = check(blackwell, tmp_path)
    assert "malformed packet 7, recovery failed 1 (" in rows["GPU 0: NVLink"]["found"]


def test_errors_of_older_links_are_told_once(gpus: simulate.Controller, tmp_path: Path) -> None:
    with gpus.edit() as state:
        state.gpus[0].links[2].replay_errors = 5
    _, rows = check(gpus, tmp_path)
    assert ": replay 5 (" in rows["GPU 0: NVLink"]["found"]


def test_nvlinks_from_card_to_card_are_counted_by_bus_id(gpus: simulate.Controller, tmp_path: Path) -> None:
    with gpus.edit() as state:
        for gpu in range(4):
            state.gpus[gpu].link_count = 4
            for link in range(4):
                state.gpus[gpu].links[link].remote_type = 0
                state.gpus[gpu].links[link].remote_bus = state.gpus[gpu ^ 1].pci_bus
    _, rows = check(gpus, tmp_path)
    assert rows["GPUs to each other"]["found"].startswith("2 pairs joined by 4 NVLinks (NV4); ")


def test_application_clocks_that_somebody_set_are_told_and_not_wrong(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.throttle(1, 0x2)
    _, rows = check(gpus, tmp_path)
    assert wrong(rows) == {}
    assert "app_clocks" in rows["GPU 1: clocks"]["found"]


def test_heat_near_the_limit_is_wrong_where_it_costs_much_of_the_clock_of_a_gpu_at_work(
    gpus: simulate.Controller, tmp_path: Path
) -> None:
    for gpu, load in ((1, 0.9), (2, 0.2), (3, 0.9)):
        gpus.set_load(gpu, load)
        gpus.throttle(gpu, 0x20)  # to 70 % of the clock
    gpus.fix(3, "sm_mhz", 1_950)
    _, rows = check(gpus, tmp_path)
    assert set(wrong(rows)) == {"GPU 1: clocks"}
    for gpu in (1, 2, 3):
        assert "held down by: sw_thermal (near its heat limit" in rows[f"GPU {gpu}: clocks"]["found"]


def test_what_is_wrong_is_told_of_the_gpu_that_has_it(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.set_link(1, width=8)
    gpus.set(2, persistence_mode=0, power_limit_mw=400_000)
    gpus.throttle(3, 0x40)
    _, rows = check(gpus, tmp_path)
    found = wrong(rows)
    assert set(found) == {"GPU 1: link", "GPU 2: persistence mode", "GPU 2: power", "GPU 3: clocks"}
    assert "8 lanes of 16" in found["GPU 1: link"]
    assert "fans, air flow" in found["GPU 3: clocks"]


def test_a_lost_gpu_is_missing_and_the_others_are_checked(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.lose(1)
    status, rows = check(gpus, tmp_path)
    assert status == 1
    assert not rows["GPU 1"]["visible"]
    assert "lost" in rows["GPU 1"]["found"]
    assert rows["GPU 2: link"]["visible"]


@pytest.mark.parametrize(("code", "words"), [(9, "not loaded"), (18, "different versions"), (4, "no permission"), (999, "unknown")])
def test_a_driver_that_does_not_work_is_one_line(gpus: simulate.Controller, tmp_path: Path, code: int, words: str) -> None:
    gpus.fail_init(code)
    _, rows = check(gpus, tmp_path)
    assert words in rows["GPUs"]["found"]
    assert "\n" not in rows["GPUs"]["found"]


def test_a_process_on_a_gpu_is_looked_at(gpus: simulate.Controller, tmp_path: Path) -> None:
    """Its libraries are real files that a real process has mapped, under the names that CUDA's have."""
    libraries = tmp_path / "cuda"
    libraries.mkdir()
    for name in ("libcudart.so.99.1.2", "libcuda.so.1.2.3"):
        (libraries / name).write_bytes(b"\0" * 4096)
    code = (
        "import mmap, sys\n"
        f"files = [open(path, 'rb') for path in {[str(path) for path in libraries.iterdir()]!r}]\n"
        "maps = [mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for file in files]\n"
        "print('mapped', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        gpus.set_processes(0, [simulate.Process(process.pid, 1 << 30), simulate.Process(4_000_000, 1 << 30)])
        _, rows = check(gpus, tmp_path)
        process.communicate()
    found = wrong(rows)
    assert "too old" in found[f"process {process.pid}: CUDA runtime"]
    assert "restart" in found[f"process {process.pid}: driver library"]
    assert "driver hangs on to it" in found["process 4000000"]


def test_gpus_that_the_configuration_expects_are_missing(gpus: simulate.Controller, tmp_path: Path) -> None:
    gpus.remove(3)
    config = tmp_path / "expect.toml"
    config.write_text(f'[gpu]\nexpected = 4\n[statsd]\nunix = "{tmp_path}/statsd.sock"\nudp = "off"\n')
    status, rows = check(gpus, tmp_path, "--config", str(config))
    assert status == 1
    assert not rows["GPUs"]["visible"]
    assert "4 are expected" in rows["GPUs"]["remedy"]


def test_the_switch_and_the_command_line(tmp_path: Path) -> None:
    assert [row.found for row in check_gpus(GpuSection(enabled=False)) if row.what == "GPUs"] == ["switched off: gpu.enabled"]


@pytest.fixture
def here(tmp_path: Path) -> Iterator[simulate.Controller]:
    """Four GPUs in this process."""
    with simulate.install(4, "H100", state_file=tmp_path / "here") as controller:
        yield controller
        simulate.uninstall()


def test_a_gpu_that_hangs_is_a_row_by_its_name_and_the_others_are_checked(here: simulate.Controller) -> None:
    here.delay("nvmlDeviceGetCpuAffinity", 3600.0, gpu=1)
    here.set_link(3, width=8)
    began_s = time.monotonic()
    rows = {row.what: row for row in check_gpus(GpuSection(), patience_s=0.5)}
    here.delay("nvmlDeviceGetCpuAffinity", 0.0, gpu=1)
    assert time.monotonic() - began_s < 60
    assert not rows["GPU 1"].visible
    assert "NVIDIA H100" in rows["GPU 1"].found
    assert "does not answer" in rows["GPU 1"].found
    assert all(rows[f"GPU {other}: link"].visible for other in (0, 2, 3))
    assert not rows["GPU 3: link"].ok, "also those behind it"
    assert rows["GPUs to each other"].found == "3 pairs joined by 18 NVLinks (NV18)"


def test_nvml_that_hangs_while_it_is_opened_is_a_row_and_check_ends(
    here: simulate.Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("aie_agent.commands.check_gpu_read.SESSION_PATIENCE_S", 0.5)
    here.delay("nvmlInitWithFlags", 3600.0)
    rows = {row.what: row for row in check_gpus(GpuSection(), patience_s=0.5)}
    here.delay("nvmlInitWithFlags", 0.0)
    assert "NVML hangs while it is opened" in rows["GPUs"].found
    assert not rows["GPUs"].visible


def test_a_process_that_ends_between_two_looks_is_nothing(here: simulate.Controller) -> None:
    """The null: a process had just ended, and the driver had not noticed at the first look."""
    here.set_processes(0, [simulate.Process(4_000_000, 1 << 30)])
    proc = Procfs()

    class Noticing(Procfs):
        """/proc; the driver notices once the process has been asked for."""

        def stat(self, tgid: int) -> ProcessStat | None:
            if tgid == 4_000_000:
                here.set_processes(0, [])
            return proc.stat(tgid)

    rows = check_gpus(GpuSection(), second_look_s=0.0, procfs=Noticing())
    assert [row.what for row in rows if row.what.startswith("process")] == []


def test_a_process_that_ended_and_stays_in_the_list_is_held_and_a_zombie_is_its_parents(here: simulate.Controller) -> None:
    with subprocess.Popen(["true"]) as zombie:
        while Procfs().stat(zombie.pid).state != "Z":  # type: ignore[union-attr]
            time.sleep(0.01)
        here.set_processes(0, [simulate.Process(4_000_000, 1 << 30), simulate.Process(zombie.pid, 1 << 30)])
        rows = {row.what: row for row in check_gpus(GpuSection(), second_look_s=0.0)}
    assert "driver hangs on to it" in rows["process 4000000"].remedy
    assert rows[f"process {zombie.pid}"].remedy == f"end its parent, process {os.getpid()}"


def test_where_processes_are_hidden_nothing_is_claimed_of_them(here: simulate.Controller, tmp_path: Path) -> None:
    """A mount with hidepid: not even pid 1 is there."""
    tree = ProcTree(tmp_path / "proc")
    tree.end(1)
    here.set_processes(0, [simulate.Process(4_000_000, 1 << 30)])
    rows = {row.what: row for row in check_gpus(GpuSection(), second_look_s=0.0, procfs=Procfs(tree.root))}
    assert (rows["process 4000000"].visible, rows["process 4000000"].ok) == (False, True)
    assert "hidepid" in rows["process 4000000"].found


def test_processes_of_mig_are_found_where_the_gpu_as_a_whole_tells_of_none(here: simulate.Controller) -> None:
    """As it is for a user without the privilege."""
    here.set_mig(0, [simulate.MigInstance("1g.10gb", number, 9728 * simulate.MIB, 16) for number in (7, 8)])
    here.set_processes(
        0, [simulate.Process(4_000_000 + number, 1 << 30, gpu_instance=number, compute_instance=0) for number in (7, 8)]
    )
    here.set(0, mig_hides_processes=1)
    rows = {row.what: row for row in check_gpus(GpuSection(), second_look_s=0.0)}
    assert [what for what in rows if what.startswith("process 4")] == ["process 4000007", "process 4000008"]
