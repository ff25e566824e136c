"""`aie-agent stacks` as a user runs it, on real processes, beside an agent that answers."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from aie_agent.commands.stacks_native import look
from aie_agent.commands.stacks_text import native
from aie_agent.config_values import Address
from aie_agent.outputs.http import HttpServer
from aie_agent.stacks.native.standing import waiting_now
from aie_agent.store import Store
from aie_ebpf.prerequisites import Prerequisite
from aie_telemetry import api
from tests.fakes import lock_programs
from tests.fakes.stack_programs import HOSTILE_NAME, line_of, running

AIE_AGENT = Path(sys.executable).parent / "aie-agent"
NOBODY_LISTENS = "http://127.0.0.1:9"


def stacks(*arguments: str, agent: str = NOBODY_LISTENS) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [AIE_AGENT, "stacks", "--agent", agent, "--interval", "0.05", *arguments],
        capture_output=True, check=False, timeout=60, text=True,
    )  # fmt: skip
    if "may not be read" in done.stderr:
        pytest.skip(done.stderr)
    return done


@contextmanager
def agent(*engines: api.Engine) -> Iterator[str]:
    """The agent's real HTTP server, with a snapshot that shows these engines."""
    snapshot = api.Snapshot(
        version=api.VERSION,
        time_s=1000.0,
        window_s=60.0,
        agent=api.Agent(version="test", uptime_s=1.0, series=0, series_limit=100),
        host=api.Host(hostname="host", kernel="kernel"),
        engines=engines,
    )
    server = HttpServer(Store(max_series=100, retention_s=300.0), str)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def open_() -> int:
        port = await server.start(Address("127.0.0.1:0"))
        await server.publish(lambda: snapshot)
        return port

    try:
        yield f"http://127.0.0.1:{asyncio.run_coroutine_threadsafe(open_(), loop).result(30)}"
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def engine(*tgids: int, **fields: object) -> api.Engine:
    processes = tuple(api.Process(tgid=tgid, start_time_s=1.0, command="python") for tgid in tgids)
    return msgspec.convert(
        {"name": "chat", "state": "up"} | {name: msgspec.to_builtins(value) for name, value in fields.items()}
        | {"processes": msgspec.to_builtins(processes)},
        api.Engine,
    )  # fmt: skip


def test_threads_that_wait_are_marked_and_nothing_hostile_is_printed() -> None:
    with running("fight") as (process, _):
        done = stacks("--pid", str(process.pid), "--dumps", "5")
    assert done.returncode == 0
    assert done.stderr == ""
    place = f"stack_programs.py:{line_of('wanted')} (work)"
    assert "the agent does not know this process" in done.stdout
    assert f"of process {process.pid} at {place}, on 0x" in done.stdout
    assert "of 5 looks" in done.stdout
    assert f"WAITS FOR A LOCK  process {process.pid}, thread worker-" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert HOSTILE_NAME not in done.stdout


def test_folded_stacks() -> None:
    with running("fight") as (process, _):
        done = stacks("--pid", str(process.pid), "--dumps", "2", "--folded")
    counts = [int(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert sum(counts) == 2 * 6, "every thread once a dump"
    assert all(line.startswith(f"process {process.pid};") for line in done.stdout.splitlines())


def test_all_dumps_as_json() -> None:
    with running("fight") as (process, _):
        done = stacks("--pid", str(process.pid), "--dumps", "2", "--json")
    output = msgspec.json.decode(done.stdout)
    dumps = msgspec.convert(output["dumps"], tuple[api.StackDump, ...])
    assert [len(each.threads) for each in dumps] == [6, 6]
    assert dumps[1].time_s > dumps[0].time_s
    assert output["problems"] == []


def test_the_engines_processes_and_locks_are_the_agents() -> None:
    lock = api.Lock(
        tgid=1, address="0x7f00", kind="lock", waiting_threads=2.5, waits_per_second=40.0, longest_seconds=0.25, waiters=3
    )
    with running("spin") as (first, _), running("spin") as (second, _):
        known = engine(first.pid, second.pid, locks=(lock,))
        with agent(known) as url:
            done = stacks("--engine", "chat", "--dumps", "1", agent=url)
            unknown = stacks("--engine", "other", agent=url)
            not_its = stacks("--pid", "1", "--kind", "memory", agent=url)
    assert done.returncode == 0
    assert "lock 0x7f00 of process 1: 2.50 threads wait on average, 40 waits a second, the longest 0.250 s" in done.stdout
    assert f"process {first.pid}, thread MainThread" in done.stdout
    assert f"process {second.pid}, thread MainThread" in done.stdout
    assert unknown.returncode == 1
    assert "does not know engine other: it knows chat" in unknown.stderr
    assert not_its.returncode == 1
    assert "does not know process 1" in not_its.stderr


def test_what_grows_stands_beside_the_stacks() -> None:
    use = api.CudaUse(
        outstanding_bytes={"device": 3.0 * 2**30},
        by_module={"libtorch_cuda.so": 2.0 * 2**30, "evil\x1b[31m.so": 2.0**30},
        by_size_class_bytes={"2 MiB": 3.0 * 2**30},
    )
    with running("spin") as (process, _):
        with agent(engine(process.pid, cuda=use)) as url:
            done = stacks("--engine", "chat", "--kind", "memory", "--dumps", "1", agent=url)
        with agent(engine(process.pid, coverage=(api.Coverage(set="cuda", state="off", reason="no CUDA driver mapped"),))) as url:
            unseen = stacks("--engine", "chat", "--kind", "memory", "--dumps", "1", agent=url)
    assert done.returncode == 0
    assert "libtorch_cuda.so: 2048.0 MiB, +0.0 MiB meanwhile" in done.stdout
    assert all(line.isprintable() for line in done.stdout.splitlines())
    assert "thread MainThread" in done.stdout
    assert unseen.returncode == 1
    assert "GPU memory: not seen (cuda: no CUDA driver mapped)" in unseen.stdout
    assert "thread MainThread" in unseen.stdout


def test_what_cannot_be_read_is_said() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            with agent(engine(process.pid)) as url:
                done = stacks("--engine", "chat", "--dumps", "1", agent=url)
        finally:
            process.kill()
    assert done.returncode == 1
    assert "is no Python process" in done.stderr
    with agent(engine()) as url:
        done = stacks("--engine", "chat", agent=url)
    assert done.returncode == 1
    assert "no process of it is known" in done.stderr
    done = stacks("--engine", "chat")
    assert done.returncode == 1
    assert "no agent answers at http://127.0.0.1:9" in done.stderr
    assert stacks("--engine", "chat", agent="file:///etc/passwd").returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [[], ["--pid", "1", "--engine", "e"], ["--pid", "x"], ["--pid", "1", "--dumps", "0"], ["--pid", "1", "--interval", "2days"]],
)
def test_bad_arguments(arguments: list[str]) -> None:
    assert stacks(*arguments).returncode == 2


@pytest.fixture(scope="module")
def native_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lock_programs.build(tmp_path_factory.mktemp("waiting"))


@pytest.mark.usefixtures("bpf")
def test_native_code_that_waits_for_locks_is_told_from_workers_without_work(native_program: Path, tmp_path: Path) -> None:
    """The null beside the positive: one process fights, two stand still since before anybody looked, the last one's threads wait
    for work at one condition; and one of Python."""
    own_lock = lock_programs.build(tmp_path, *lock_programs.OPTIMISED, "-DOWN_LOCK")
    with ExitStack() as started:
        fights, stuck, idle = (
            started.enter_context(lock_programs.running(native_program, mode, threads))
            for mode, threads in (("fight", 4), ("stuck", 1), ("idle", 8))
        )
        unnamed = started.enter_context(lock_programs.running(own_lock, "stuck", 3))
        python, _ = started.enter_context(running("fight"))
        url = started.enter_context(agent(engine(fights, stuck, idle, unnamed, python.pid)))
        done = stacks("--engine", "chat", "--kind", "locks", "--dumps", "2", agent=url)
    assert done.returncode == 0
    assert "is no Python process" in done.stderr
    native = done.stdout[: done.stdout.index("\nlocks, as the agent sees engine chat")].splitlines()
    assert native[0] == "threads that wait for locks, by native code:"
    told = [native[at : at + 2] for at, line in enumerate(native) if re.match("    (lock|place) 0x", line)]
    of_c, of_python, of_stuck, of_unnamed = (
        next(each for each in told if f"of process {tgid}" in each[0]) for tgid in (fights, python.pid, stuck, unnamed)
    )
    assert re.fullmatch(r" +4 threads wait in pthread_mutex_lock, called by libworks.so \(hold\+0x\w+\), .*", of_c[1])
    assert f", at stack_programs.py:{line_of('wanted')} (work): " in of_python[0]
    assert of_python[1].endswith("called by Python's interpreter")
    assert re.fullmatch(r"    lock 0x\w+ of process \d+: 1 thread stands still", of_stuck[0])
    assert re.fullmatch(r"    place 0x\w+ of process \d+: 3 threads stand still, for a lock or for work", of_unnamed[0])
    assert re.fullmatch(r" +3 threads wait in syscall, called by libworks.so \(hold\+0x\w+\), .*", of_unnamed[1])
    assert len(told) == 4, native
    assert re.fullmatch(r"    and \d places where they wait for work, or one thread by itself", native[-1])


def test_native_code_where_nothing_may_be_probed(native_program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in /proc is told all the same, and why that is all."""
    refused = Prerequisite("BCC", False, "not installed", "install it")
    monkeypatch.setattr("aie_agent.commands.stacks_native.prerequisites.check", lambda: [refused])
    with lock_programs.running(native_program, "stuck", 3) as tgid:
        deadline_s = time.monotonic() + 60
        while len(waiting_now("", tgid).stacks) < 3:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        seen = look([tgid])
    assert seen.problems == ("BCC: not installed (install it)",)
    assert seen.window_s == 0.0
    assert [each.waiting_threads for each in seen.locks] == [None]
    assert seen.locks[0].threads[0].startswith("3 threads wait in pthread_mutex_lock, called by libworks.so (hold+")
    lines = list(native(seen, ()))
    assert lines[0] == "threads that wait at one place, for a lock or for work, by native code:"
    assert lines[-1] == "    not seen: BCC: not installed (install it)"
