"""The agent with its real child and real probes: what is seen of an engine, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from aie_telemetry import api
from tests.e2e.programs import BIN, Program, Start, engine_view, eventually, get, snapshot
from tests.fakes.bpf_programs import all_programs, programs_of

pytestmark = pytest.mark.usefixtures("bpf")

SYSTEM_PYTHON: Final = "/usr/bin/python3"

# Three threads compute in Python, and three want a lock in which one of them always sleeps.
FIGHT: Final = """
import threading, time
lock = threading.Lock()
def compute():
    while True:
        sum(range(1000))
def hold():
    while True:
        with lock:
            time.sleep(0.02)
        time.sleep(0.02)  # so that the next one has it, however long that one waits for a CPU
for target in (compute, compute, compute, hold, hold, hold, hold):
    threading.Thread(target=target, daemon=True).start()
print("runs", flush=True)
time.sleep(600)
"""

COLLECT: Final = """
import gc, time
print("runs", flush=True)
while True:
    gc.collect()
    time.sleep(0.01)
"""


def program(interpreter: str, code: str) -> Iterator[int]:
    process = subprocess.Popen([interpreter, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    yield process.pid
    process.kill()
    process.wait()


@pytest.fixture
def fight() -> Iterator[int]:
    yield from program(sys.executable, FIGHT)


@pytest.fixture
def collector() -> Iterator[int]:
    if not Path(SYSTEM_PYTHON).exists():
        pytest.skip(f"no {SYSTEM_PYTHON}")
    yield from program(SYSTEM_PYTHON, COLLECT)


@pytest.fixture
def config(tmp_path: Path, fight: int) -> Path:
    (tmp_path / "fight.pid").write_text(f"{fight}\n")
    config = tmp_path / "agent.toml"
    config.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{tmp_path}/s.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[gpu]\nenabled = false\n[findings]\nstacks = false\n[[engines]]\nname = "fight"\npid_file = "{tmp_path}/fight.pid"\n'
    )
    return config


@pytest.fixture
def agent(config: Path, start: Start) -> Program:
    return start("aie-agent", "run", "--config", str(config))


def child_of(agent: Program) -> int | None:
    children = Path(f"/proc/{agent.process.pid}/task/{agent.process.pid}/children").read_text().split()
    return int(children[0]) if children else None


def source(url: str) -> api.Source | None:
    found = snapshot(url)
    return next((each for each in found.sources if each.name == "bpf"), None) if found else None


def seen(url: str) -> api.Engine | None:
    """The engine, once probes see both of its fights."""
    engine = engine_view(url, "fight")
    return engine if engine is not None and {lock.kind for lock in engine.locks} == {"lock", "gil"} else None


def test_what_threads_wait_for_is_on_the_page_and_in_the_api(agent: Program) -> None:
    url = agent.url()
    engine = eventually(lambda: seen(url), agent)
    assert engine.waits.gil > 0
    assert engine.waits.lock > 0
    assert engine.waits.gpu_sync is None, "no CUDA here: absent, not 0"
    assert engine.cuda is None
    states = {each.set: each.state for each in engine.coverage}
    assert (states["locks"], states["sched"], states["cuda_memory"]) == ("on", "on", "none")
    assert engine.probe_overhead_ratio > 0
    page = get(f"{url}/metrics")[1].decode()
    for reason in ("lock", "gil"):
        value = re.search(rf'^aie_process_wait_seconds_total{{engine="fight",reason="{reason}"}} (\S+)$', page, re.MULTILINE)
        assert value is not None
        assert float(value[1]) > 0
    assert re.search(r'^aie_process_off_cpu_seconds_count{engine="fight"} [1-9]', page, re.MULTILINE)
    assert "aie_cuda_" not in page


def test_a_killed_agent_leaves_no_child_and_no_probe(agent: Program) -> None:
    eventually(lambda: seen(agent.url()), agent)
    child = child_of(agent)
    assert child is not None
    programs = programs_of(child)
    assert programs
    assert programs <= all_programs()
    agent.process.kill()
    agent.process.wait()
    eventually(lambda: not Path(f"/proc/{child}").exists())
    eventually(lambda: not programs & all_programs())


def test_a_stopped_agent_leaves_nothing_either(agent: Program) -> None:
    eventually(lambda: seen(agent.url()), agent)
    child = child_of(agent)
    assert child is not None
    programs = programs_of(child)
    assert agent.stop() == 0
    assert not Path(f"/proc/{child}").exists()
    eventually(lambda: not programs & all_programs())
    assert "Traceback" not in agent.text()


def test_a_killed_child_is_told_and_replaced(agent: Program) -> None:
    url = agent.url()
    eventually(lambda: seen(url), agent)
    first = child_of(agent)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: "BPF child ended: signal 9 (SIGKILL)" in agent.text(), agent)
    eventually(lambda: child_of(agent) not in (None, first) and (found := source(url)) and found.state == "up", agent)
    waits = engine_view(url, "fight")
    assert waits is not None
    eventually(lambda: (now := seen(url)) and now.coverage and now.coverage[0].set != "ebpf", agent)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, in whichever version of the hierarchy there is."""
    v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (v1, "memory.limit_in_bytes") if v1.is_dir() else (v2, "memory.max")
    group = root / f"aie-e2e-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no control group with a memory limit can be made here: {error}")
    yield group
    eventually(lambda: _removed(group))


def _removed(group: Path) -> bool:
    """The kernel lets a group go when the last process has."""
    try:
        group.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.xdist_group("e2e")  # never while an agent of another test watches this host
def test_a_process_that_the_kernel_killed_is_an_event(agent: Program, fight: int, small_group: Path) -> None:
    url = agent.url()
    eventually(lambda: seen(url), agent)
    code = f"open({str(small_group / 'cgroup.procs')!r}, 'w').write('0'); x = bytearray(256 << 20)"
    with subprocess.Popen([sys.executable, "-c", code]) as victim:
        assert victim.wait(timeout=60) == -signal.SIGKILL

    def killed() -> list[api.Event]:
        events = msgspec.json.decode(get(f"{url}/api/v1/events")[1], type=api.Events).events
        return [event for event in events if event.kind == "oom_kill" and event.details["pid"] == str(victim.pid)]

    (event,) = eventually(killed, agent)
    assert event.engine == "", "it was no engine's"
    assert f"(pid {victim.pid}) for lack of memory" in event.summary
    os.kill(fight, 0)  # the engine lives
    eventually(lambda: (found := snapshot(url)) and "oom_kill" in {each.kind for each in found.events}, agent)


def test_check_says_what_is_seen(agent: Program, tmp_path: Path) -> None:
    url = agent.url()
    eventually(lambda: seen(url), agent)
    command = [BIN / "aie-agent", "check", "--config", tmp_path / "agent.toml", "--listen", url.removeprefix("http://"), "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=60)
    rows = {row["what"]: row for row in msgspec.json.decode(done.stdout)}
    assert rows["eBPF: child process"]["visible"]
    assert rows["engine fight: probes locks"]["visible"]
    assert rows["engine fight: probes cuda_memory"]["visible"], "there is nothing to see, and so nothing is missed"
    assert "libcuda.so.1" in rows["engine fight: probes cuda_memory"]["found"]
    assert "of one CPU" in rows["engine fight: cost of probes"]["found"]


def test_check_without_an_agent_looks_itself(config: Path) -> None:
    """At the engine of a pid file, as the agent would."""
    command = [BIN / "aie-agent", "check", "--config", config, "--listen", "127.0.0.1:1", "--json"]
    done = subprocess.run(command, capture_output=True, check=False, timeout=120)
    rows = {row["what"]: row for row in msgspec.json.decode(done.stdout)}
    assert rows["eBPF: child process"]["visible"], rows
    assert rows["engine fight: probes locks"]["visible"]
    assert rows["eBPF: bpf(2)"]["found"] == rows["eBPF: perf_event_open(2)"]["found"] == "works"


def test_probe_shows_collections_and_what_it_took(collector: int) -> None:
    command = [BIN / "aie-agent", "probe", "--pid", str(collector), "--set", "gc", "--seconds", "1", "--json"]

    def answered() -> dict[str, Any]:
        """What it says once the process had a CPU while it looked."""
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = msgspec.json.decode(done.stdout)
        if answer["reason"]:
            pytest.skip(answer["reason"])
        return answer if answer["seen"] else {}

    answer = eventually(answered)
    (collections,) = answer["seen"]
    assert collections["metric"] == "aie_process_gc_seconds"
    assert collections["times"] > 0
    assert collections["total_seconds"] > 0
    assert answer["hits"] >= 2 * collections["times"]
    assert answer["stolen_s"] > 0


def test_a_set_that_cannot_be_opened_says_why(fight: int) -> None:
    command = [BIN / "aie-agent", "probe", "--pid", str(fight), "--set", "cuda_launch", "--seconds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    assert "libcuda.so.1" in done.stdout + done.stderr
