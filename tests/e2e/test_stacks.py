"""Something goes wrong with an engine's threads, and the agent says at which line: found, and asked for."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
import pytest

from aie_agent.stacks.py_spy import StacksError, dump
from aie_telemetry import api
from tests.e2e.programs import BIN, Program, Start, engine_view, eventually, get
from tests.fakes import lock_programs
from tests.fakes.stack_programs import line_of, running

FILE: Final = "stack_programs.py"
HUNG_AFTER: Final = "6s"


@pytest.fixture(autouse=True)
def _may_read_memory() -> None:
    with running("spin") as (process, _):
        try:
            dump(process.pid, 0.0)
        except StacksError as error:
            if error.reason == "no_privilege":
                pytest.skip(str(error))
            raise


def configured(directory: Path, engine: str) -> str:
    """A configuration that watches one engine; the file's path."""
    path = directory / "agent.toml"
    path.write_text(
        f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{directory}/statsd.sock"\nudp = "off"\n[discovery]\nenabled = false\n'
        f'[gpu]\nenabled = false\n[findings]\nhung_after = "{HUNG_AFTER}"\n[[engines]]\nname = "chat"\n{engine}\n'
    )
    return str(path)


def finding(url: str, cause: str) -> api.Finding | None:
    status, body = get(f"{url}/api/v1/findings")
    found = msgspec.json.decode(body, type=api.Findings).findings if status == 200 else ()
    return next((each for each in found if each.cause == cause), None)


def sentence(url: str, cause: str, pattern: str) -> Callable[[], str | None]:
    """The evidence of a finding that fits, once there is some."""

    def look() -> str | None:
        found = finding(url, cause)
        texts = [each.text for each in found.evidence] if found is not None else []
        return next((text for text in texts if re.search(pattern, text)), None)

    return look


def stacks_of(url: str) -> api.StacksPage:
    status, body = get(f"{url}/api/v1/stacks?engine=chat")
    assert status == 200, body
    return msgspec.json.decode(body, type=api.StacksPage)


def test_an_engine_that_hangs_is_found_with_the_line_at_which_it_does(start: Start, tmp_path: Path) -> None:
    with running("hang") as (process, (port,)):
        page = f'metrics_url = "http://127.0.0.1:{port}/metrics"'
        agent = start("aie-agent", "run", "--no-bpf", "--config", configured(tmp_path, page))
        url = agent.url()
        eventually(lambda: (view := engine_view(url, "chat")) is not None and view.state == "up" and view.processes, alive=agent)
        assert get(f"{url}/api/v1/stacks?engine=chat")[0] == 404, "nothing was wrong yet"
        assert get(f"{url}/api/v1/stacks")[0] == 400
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        stuck = rf"thread MainThread waits at {FILE}:{line_of('stuck')} \(encode\) in both dumps, \d+ s apart"
        told = eventually(sentence(url, "engine_hung", stuck), alive=agent)
        waiting = rf"threads wait at {FILE}:{line_of('page')} \(Page.do_GET|do_GET\)"
        eventually(sentence(url, "engine_hung", waiting), alive=agent)
        dumps = stacks_of(url).dumps
        assert [each.tgid for each in dumps] == [process.pid, process.pid]
        apart_s = dumps[1].time_s - dumps[0].time_s
        assert apart_s >= 6
        assert f" {apart_s:.0f} s apart" in told
        assert "MainThread" in {thread.name for thread in dumps[0].threads}


@pytest.mark.usefixtures("bpf")
def test_threads_that_fight_for_a_lock_are_found_with_its_line(start: Start, tmp_path: Path) -> None:
    with running("fight") as (process, _):
        (tmp_path / "chat.pid").write_text(f"{process.pid}\n")
        agent = start("aie-agent", "run", "--config", configured(tmp_path, f'pid_file = "{tmp_path}/chat.pid"'))
        url = agent.url()
        wanted = rf"{FILE}:{line_of('wanted')} \(work\)"
        eventually(sentence(url, "lock_contention", rf"lock 0x[0-9a-f]+, {wanted} of process {process.pid}: [23]\."), alive=agent)
        found = finding(url, "lock_contention")
        assert found is not None
        assert found.severity == "warning"
        assert finding(url, "gil_contention") is None, "they sleep while they wait"
        lock = eventually(lambda: held_lock(url), alive=agent)
        assert re.fullmatch(wanted, lock.line or "")
        eventually(sentence(url, "lock_contention", rf"threads wait at {wanted}, thread worker-\d .*\(critical\)"), alive=agent)
        assert len(stacks_of(url).dumps) == 2
        asked = asked_for(agent, url)
        assert f"lock {lock.address} of process {process.pid} at {lock.line}" in asked
        assert "WAITS FOR A LOCK" in asked


@pytest.mark.usefixtures("bpf")
def test_a_lock_that_is_not_pythons_is_found_with_its_callers(start: Start, tmp_path: Path) -> None:
    with lock_programs.running(lock_programs.build(tmp_path), "fight", 4) as tgid:
        (tmp_path / "chat.pid").write_text(f"{tgid}\n")
        agent = start("aie-agent", "run", "--config", configured(tmp_path, f'pid_file = "{tmp_path}/chat.pid"'))
        url = agent.url()
        called = r"threads wait in pthread_mutex_lock, called by libworks\.so \(hold\+0x\w+\), libworks\.so \(work\+0x\w+\)"
        text = eventually(sentence(url, "lock_contention", rf"at lock 0x\w+ [234] {called}, waiting \(busy\+0x\w+\)"), alive=agent)
        engine = engine_view(url, "chat")
        assert engine is not None
        (lock,) = engine.locks
        assert lock.address in text
        assert re.match(rf"[234] {called}", lock.native[0])


def held_lock(url: str) -> api.Lock | None:
    """The one that the engine's threads waited for most lately, as far as a line is known."""
    engine = engine_view(url, "chat")
    return next((each for each in engine.locks if each.kind == "lock" and each.line), None) if engine is not None else None


def asked_for(agent: Program, url: str) -> str:
    done = subprocess.run(
        [BIN / "aie-agent", "stacks", "--engine", "chat", "--agent", url, "--interval", "0.1"],
        capture_output=True, check=False, timeout=60, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), agent.text()
    return done.stdout
