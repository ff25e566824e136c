"""What counts as a change: arguments, settings, versions, neighbours; and what was seen before the agent was restarted."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.cause_world import CauseWorld

from aie_agent.analysis.arguments import different, options
from aie_agent.analysis.changes import Changes
from aie_agent.analysis.diagnose import Diagnosis
from aie_agent.analysis.findings import ProcessState
from aie_agent.analysis.host_causes.cpu import cpu_starved
from aie_agent.config import Config
from aie_agent.neighbour import Neighbour
from aie_agent.own_versions import own_versions
from aie_agent.sources.neighbours import NeighbourSource
from aie_agent.sources.procfs import Procfs
from aie_agent.state import StateFile
from aie_telemetry.api import Finding, Gpu

SERVE = ("python3", "/usr/bin/aie-engine", "serve", "--model", "smollm2", "--kv-tokens", "8192")
KV = "aie_engine_kv_capacity_tokens engine=e model=m"


def _process(tgid: int = 10, arguments: Sequence[str] = SERVE, cpus: int = 4) -> ProcessState:
    return ProcessState(tgid, "S", 0.0, None, frozenset(range(cpus)), tuple(arguments))


def _told(changes: Changes, world: CauseWorld, subject: str = "e") -> list[str]:
    finding = Finding(cause="x", subject=subject, severity="warning", since_s=world.now_s, summary="")
    return [each.partition(": ")[2] for each in changes.before(finding, lambda cause, effect: cause == effect)]


def _seen(changes: Changes, rows: Mapping[str, float] | None = None, after_s: int = 1, **view: Any) -> CauseWorld:
    world = CauseWorld(**view)
    world.now_s += after_s
    world.live(1, rows or {})
    changes.observe(world.view, world.now_s)
    return world


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        (SERVE, SERVE, ""),
        (SERVE, (*SERVE[:-1], "64"), "--kv-tokens 64, before 8192"),
        (SERVE, ("python3.12", "/opt/bin/aie-engine", *SERVE[2:]), ""),
        (SERVE, SERVE[:5], "no --kv-tokens"),
        (SERVE, (*SERVE, "--canary-every=1s", "-v"), "--canary-every 1s, new; -v, new"),
        (("vllm", "serve", "llama-8b"), ("vllm", "serve", "llama-70b"), "what stands by itself changed (its value is not shown)"),
        (("v", "--api-key", "sk-1"), ("v", "--api-key", "sk-2"), "--api-key changed (its value is not shown)"),
        (("v", "--hf-token=a"), ("v", "--hf-token=b"), "--hf-token changed (its value is not shown)"),
        (("v", "--model", "/m/a"), ("v", "--model=/m/b"), "--model /m/b, before /m/a"),
        (("v", "--offset", "-1"), ("v", "--offset", "-2"), "--offset -2, before -1"),
        (("v",), ("v", *(f"-{letter}" for letter in "abcdef")), "-a, new; -b, new; -c, new; -d, new; and 2 more"),
    ],
)
def test_what_is_other_in_arguments(before: Sequence[str], now: Sequence[str], text: str) -> None:
    assert different(before, now) == text


def test_options_of_arguments() -> None:
    assert options(("serve", "--a", "1", "--b=2", "-c", "--d", "x", "y")) == {
        "": "serve y",
        "--a": "1",
        "--b": "2",
        "-c": "",
        "--d": "x",
    }


def test_an_engine_that_is_started_with_other_arguments() -> None:
    changes = Changes()
    _seen(changes, processes=[_process(10)])
    world = CauseWorld(processes=[_process(20, (*SERVE[:-1], "64"))])
    world.now_s += 5
    changes.observe(world.view, world.now_s)
    assert _told(changes, world) == [
        "engine e was started with other arguments: --kv-tokens 64, before 8192",
        "engine e was restarted (process 10 before, 20 now)",
    ]


def test_a_worker_that_is_seen_before_its_engine_is_no_other_start() -> None:
    changes = Changes()
    _seen(changes, processes=[_process(10)])
    worker = _process(5, ("python3", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"))
    for processes in ([worker], [worker, _process(10)], [_process(10)], []):
        world = _seen(changes, processes=processes)
    assert not [each for each in _told(changes, world) if "arguments" in each]


SECRETS: Sequence[Sequence[str]] = (
    ("--api-key", "sk-A", "SECRET"),
    ("--api-key=sk-1", "SECRET"),
    ("--apikey", "SECRET"),
    ("--hf_token", "SECRET"),
    ("--hfToken", "SECRET"),
    ("--api-key", "-sk-SECRET"),
    ("--db-url", "postgres://u:SECRET@db/x"),
    ("--config", '{"api_key":"SECRET"}'),
    ("--pass", "SECRET"),
    ("--pass", "123456789"),
    ("--passphrase", "SECRET"),
    ("--header", "Authorization: Bearer SECRET"),
    ("--bearer", "SECRET"),
    ("API_KEY=SECRET",),
    ("--set", "api_key=SECRET"),
    ("--otlp-headers", "api-key=SECRET"),
    ("-p", "SECRET"),
    ("-pSECRET",),
    ("--ssl-keyfile-password", "SECRET"),
    ("--password:SECRET",),
    ("--password=SECRET",),
    ("--model", "m", "SECRET"),
    ("--model", "https://u:SECRET@hub/m"),
)


@pytest.mark.parametrize("secret", SECRETS, ids=str)
@pytest.mark.parametrize("program", [("python3", "/opt/serve.py"), ("mysqldump",), ("serve", "--port", "8000")])
def test_secrets_are_neither_shown_nor_kept(program: Sequence[str], secret: Sequence[str]) -> None:
    changes = Changes()
    _seen(changes, processes=[_process(10, (*program, "--kv-tokens", "64"))])
    world = _seen(changes, processes=[_process(11, (*program, "--kv-tokens", "64", *secret))])
    told = [each for each in _told(changes, world) if "arguments" in each]
    assert "SECRET" not in repr(told) + json.dumps(changes.dump())
    assert "123456789" not in repr(told) + json.dumps(changes.dump())
    assert len(told) == 1
    assert "its value is not shown" in told[0]
    other = [each.replace("SECRET", "OTHER").replace("123456789", "1") for each in secret]
    world = _seen(changes, processes=[_process(12, (*program, "--kv-tokens", "64", *other))], after_s=2)
    assert len([each for each in _told(changes, world) if "arguments" in each]) == 2, "a hidden value that is another is a change"


def test_a_state_that_older_versions_kept_is_cleared_of_secrets() -> None:
    changes = Changes()
    changes.restore({"arguments": {"e": ["v", "--api-key", "sk-SECRET", "--kv-tokens", "64"]}})
    assert "SECRET" not in json.dumps(changes.dump())
    world = _seen(changes, processes=[_process(10, ("v", "--api-key", "sk-SECRET", "--kv-tokens", "8"))])
    assert _told(changes, world) == ["engine e was started with other arguments: --kv-tokens 8, before 64"]


def test_a_state_is_read_by_its_owner_only(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text("{}")
    file.chmod(0o644)
    StateFile(file).write({"a": 1})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _arguments_told(*looks: Sequence[tuple[int, str]]) -> list[str]:
    """What is told of arguments, the first first, over looks at processes: their tgid and command line."""
    changes, now_s = Changes(), CauseWorld().now_s
    for number, look in enumerate(looks):
        world = CauseWorld(processes=[_process(tgid, tuple(line.split())) for tgid, line in look])
        world.now_s = now_s + number
        changes.observe(world.view, world.now_s)
    return [each.rpartition("arguments: ")[2] for each in _told(changes, world) if "arguments" in each][::-1]


def test_an_engine_that_becomes_another_program_is_followed_from_then_on() -> None:
    assert _arguments_told(
        [(1, "python a.py --max-num-seqs 256")],
        [(2, "vllm serve --max-num-seqs 256")],
        [(3, "vllm serve --max-num-seqs 1")],
        [(4, "python3.12 a.py --max-num-seqs 8")],
    ) == ["--max-num-seqs 1, before 256", "--max-num-seqs 8, before 256"]


def test_a_worker_that_ends_is_no_change() -> None:
    ranks = [(1, "w run --rank 0"), (2, "w run --rank 1")]
    assert _arguments_told(ranks, ranks[1:], [ranks[1], (3, "w run --rank 0")], ranks[:1]) == []
    assert _arguments_told(ranks, ranks[1:], [(5, "w run --rank 0 --x 1"), (6, "w run --rank 1 --x 1")]) == ["--x 1, new"]


def test_an_engines_own_changes_are_told_before_neighbours() -> None:
    changes, now_s = Changes(), CauseWorld().now_s
    busy: list[Neighbour] = []
    for look in range(8):
        world = CauseWorld(
            processes=[_process(10 + (look > 0), SERVE if not look else (*SERVE[:-1], "64"))], neighbours=lambda: tuple(busy)
        )
        world.now_s = now_s + look
        changes.observe(world.view, world.now_s)
        busy.append(Neighbour(900 + look, f"/usr/libexec/cc1plus -quiet file{look}.cc", 1.0, world.now_s))
    assert _told(changes, world) == [
        "engine e was started with other arguments: --kv-tokens 64, before 8192",
        "engine e was restarted (process 10 before, 11 now)",
        "cc1plus (906) began to use 1.0 CPUs",
        "cc1plus (905) began to use 1.0 CPUs",
    ]


def test_settings_that_are_changed() -> None:
    changes = Changes()
    limit = "aie_process_cgroup_memory_limit_bytes engine=e"
    _seen(changes, {KV: 8192.0, limit: float(8 << 30)}, processes=[_process()])
    world = _seen(changes, {KV: 64.0, limit: float(8 << 30) + 4096.0}, processes=[_process(cpus=2)])
    assert _told(changes, world) == [
        "engine e may run on 2 CPUs, 4 before",
        "the KV cache of engine e changed from 8192 to 64 tokens",
    ]


def test_a_power_limit_that_is_changed() -> None:
    changes = Changes()
    for watts in (700.0, 700.0, 350.0):
        world = _seen(changes, gpus=[Gpu(index=0, name="H100", uuid="u", pci_bus_id="b", up=True, power_limit_watts=watts)])
    assert _told(changes, world, "gpu0") == ["the power limit of GPU 0 changed from 700 to 350 W"]


def test_what_goes_and_comes_back_as_it_was_is_no_change() -> None:
    changes = Changes()
    for rows in ({KV: 8192.0}, {}, {KV: 8192.0}):
        world = _seen(changes, rows, processes=[_process()])
    assert _told(changes, world) == []


def test_what_changed_while_the_agent_was_away_is_told_when_it_is_back() -> None:
    before = Changes()
    _seen(before, {KV: 8192.0}, processes=[_process()], drivers=lambda: {"the kernel": "6.1"})
    after = Changes()
    after.restore(json.loads(json.dumps(before.dump())))
    world = _seen(after, {KV: 64.0}, processes=[_process(77, (*SERVE[:-1], "64"))], drivers=lambda: {"the kernel": "6.2"})
    assert _told(after, world) == [
        "the KV cache of engine e changed from 8192 to 64 tokens",
        "engine e was started with other arguments: --kv-tokens 64, before 8192",
        "the kernel changed from 6.1 to 6.2",
    ]
    same = Changes()
    same.restore(json.loads(json.dumps(before.dump())))
    world = _seen(same, {KV: 8192.0}, processes=[_process(77)], drivers=lambda: {"the kernel": "6.1"})
    assert _told(same, world) == []


SPOKEN = [1_000_000.0, "e", "engine e was started with other arguments: --api-key sk-new, before sk-old"]
OLD: dict[str, Any] = {
    "a list": [SPOKEN],
    "parts, with arguments as they were": {
        "noted": [SPOKEN], "levels": {"aie_engine_kv_capacity_tokens e": 8192.0},
        "arguments": {"e": ["serve", "--api-key", "sk-old"]},
    },
}  # fmt: skip


@pytest.mark.parametrize("kept", OLD)
def test_sentences_in_the_state_of_older_versions_are_dropped_and_the_rest_is_read(tmp_path: Path, kept: str) -> None:
    """Those versions told arguments as they were, secrets too."""
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"version": 1, "parts": {"changes": OLD[kept]}}))
    diagnosis = Diagnosis()
    world = CauseWorld()
    diagnosis.restore(StateFile(path).read(), world.now_s)
    StateFile(path).write(diagnosis.dump())
    assert "sk-" not in path.read_text()
    changes = Changes()
    changes.restore(StateFile(path).read()["changes"])
    world = _seen(changes, {KV: 64.0}, processes=[_process()])
    assert _told(changes, world) == ([] if kept == "a list" else ["the KV cache of engine e changed from 8192 to 64 tokens"])


def test_neighbours_that_begin_to_be_busy() -> None:
    changes, now_s = Changes(), CauseWorld().now_s
    old = Neighbour(7, "backup", 0.9, now_s - 100)
    new = Neighbour(8, "train.py", 1.7, now_s + 15)
    for look, busy in enumerate(((old,), (), (new, old), (new,), (old,), (new, old))):
        world = CauseWorld(neighbours=lambda busy=busy: busy)
        world.now_s = now_s + 10 * look
        changes.observe(world.view, world.now_s)
    assert _told(changes, world) == ["train.py (8) began to use 1.7 CPUs"], "not at the first look, and once"


def test_what_was_noted_of_a_neighbour_is_one_after_a_restart() -> None:
    before, now_s = Changes(), CauseWorld().now_s
    for look, busy in enumerate(((), tuple(Neighbour(8 + each, "cc1plus", 1.7, now_s) for each in range(3)))):
        world = CauseWorld(neighbours=lambda busy=busy: busy)
        world.now_s = now_s + look
        before.observe(world.view, world.now_s)
    after = Changes()
    after.restore(json.loads(json.dumps(before.dump())))
    assert _told(after, world) == _told(before, world)
    assert len(_told(after, world)) == 2
    with pytest.raises(ValueError, match="not a list of changes"):
        Changes().restore([["yesterday", "e", "x"]])


def test_neighbours_stand_beside_an_engine_that_lacks_cpu() -> None:
    world = CauseWorld(neighbours=lambda: (Neighbour(8, "train.py", 1.7, 0.0),))
    world.live(20, {"aie_process_run_queue_seconds_total engine=e": 1.5, "aie_process_cpu_seconds_total engine=e mode=user": 0.5})
    found = world.engine(cpu_starved)
    assert found is not None
    assert "processes of no engine used most: train.py (8) 1.7 CPUs" in [each.text for each in found.evidence]


def test_a_configuration_that_is_another_has_another_version_and_shows_nothing() -> None:
    one, two = own_versions(Config()), own_versions(Config(engines=()))
    assert one == two
    assert len(one["the agent's configuration"]) == 8


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def burner() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()


def test_a_process_that_burns_cpu_is_seen_and_one_that_sleeps_or_is_an_engines_is_not(
    burner: subprocess.Popen[bytes], sleeper: subprocess.Popen[bytes]
) -> None:
    """Real processes. How much a busy one gets depends on the host: a little is enough, and is waited for by the kernel's count."""
    engines: set[int] = set()
    source = NeighbourSource(Procfs(), lambda: engines, busy_cores=0.02)
    asyncio.run(source.collect(time.time()))
    assert source.busy() == (), "at the first look nobody knows"
    used = _ticks(burner.pid)
    while _ticks(burner.pid) < used + 10:  # a tenth of a second of CPU, and within five it is above the limit
        time.sleep(0.02)
    now_s = time.time()
    asyncio.run(source.collect(now_s))
    busy = {each.tgid: each for each in source.busy()}
    assert burner.pid in busy
    assert sleeper.pid not in busy
    assert busy[burner.pid].command == os.path.basename(sys.executable), "its arguments are its owner's business"
    assert busy[burner.pid].since_s <= now_s
    engines.add(burner.pid)
    asyncio.run(source.collect(time.time()))
    assert burner.pid not in {each.tgid for each in source.busy()}


def _ticks(pid: int) -> int:
    stat = Procfs().stat(pid)
    assert stat is not None
    return stat.user_ticks + stat.system_ticks
