"""What is broken: an engine with SmolLM2, its clients, and the agent as shipped; on simulated GPUs where a fault needs them."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import urllib3
from msgspec.structs import replace

from aie_agent import simulate
from aie_telemetry import api
from tests.faultlab.clients import SHARE, Body, Clients, short_chat
from tests.faultlab.host_load import HostLoad
from tests.faultlab.judge import ENGINE, SILENT
from tests.faultlab.programs import LabError, Program, SilentError, free_port, until
from tests.faultlab.subjects import ENGINE_NAME, counts, lacking, still_lacking

MODEL: Final = "smollm2"
TIME_SCALE: Final = 240
"""How fast the time of the leak analysis runs, for all faults alike: a day in six minutes. A cell of five minutes is then still
longer than the second between two readings of memory."""

SILENT_S: Final = 60.0
"""An agent that has not answered for so long is silent. On a busy host it, or the lab that asks, may get no CPU for seconds."""
GIB: Final = 1 << 30
_HTTP: Final = urllib3.PoolManager(retries=False, timeout=5)
_INSIDE: Final = Path(__file__).with_name("inside")


@dataclass(frozen=True, slots=True)
class Setup:
    """Faults with equal setups share a world. `body` is what its clients ask, and `share` how much, of what the engine takes;
    `reference`: all of its answers are compared with this one; `record`: they are written to this directory."""

    name: str
    engine_options: tuple[str, ...] = ()
    gpus: int = 0
    body: Body = short_chat
    share: float = SHARE
    reference: Path | None = None
    record: Path | None = None


class World:
    """One engine, one agent, and clients. Use it as a context."""

    def __init__(self, setup: Setup, directory: Path, load: float | None = None) -> None:
        """`load` in requests a second: None measures what the engine takes, and sends a share of that. `host` is what others take
        meanwhile, `sources` are the agent's, `lacks` is what the host does not let any agent see, and why."""
        self.setup = setup
        self.load = load or 0.0
        self.agents = 0
        self._directory = directory
        self._stack = contextlib.ExitStack()
        self._port = free_port()
        self.engine_url = f"http://127.0.0.1:{self._port}"
        self.statsd = f"unix://{directory}/statsd.sock"
        self.engine: Program
        self.agent: Program
        self.agent_url = ""
        self.clients = Clients(self.engine_url, setup.body)
        self.gpus: simulate.Controller | None = None
        self.host = HostLoad()
        self.lacks: dict[str, str] = {}
        self.sources: frozenset[str] = frozenset()

    def __enter__(self) -> World:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        self._stack.enter_context(self.host)
        if self.setup.gpus:
            self.gpus = self._stack.enter_context(simulate.Controller.create(self._directory / "gpus", self.setup.gpus, "H100"))
        self._stack.callback(lambda: self.engine.stop())
        self.start_engine()
        self._stack.enter_context(self.clients)
        if not self.load:
            self.load = self.setup.share * self.clients.capacity()
        self.clients.send(self.load)
        self._stack.callback(lambda: self.agent.stop())
        self.start_agent()

    # -- programs ----------------------------------------------------------------------------------------------------------------

    def start_engine(self, *options: str) -> None:
        """The engine, ready. `options` come after those of the setup, and win."""
        arguments = [
            "serve",
            "--model",
            MODEL,
            "--name",
            ENGINE_NAME,
            "--port",
            str(self._port),
            *self.setup.engine_options,
            *options,
        ]
        environment = {
            "PYTHONPATH": str(_INSIDE),
            "AIE_FAULTLAB_SOCKET": str(self._directory / "inside.sock"),
            "AIE_STATSD": self.statsd,
        }
        self.engine = Program("aie-engine", arguments, self._directory / "engine.log", environment)
        with self.clients.held():
            until(self._is_ready, "aie-engine is not ready", self.engine)
        self._place_on_gpus([simulate.Process(self.engine.pid, 40 * GIB)])

    def kill_engine(self) -> None:
        """Ends it at once, as a crash or an impatient operator does; the driver frees what it had."""
        self.engine.process.kill()
        self.engine.process.wait()
        self._place_on_gpus([])

    def restart_engine(self, *options: str) -> None:
        """Ends it at once, and starts it again."""
        self.kill_engine()
        self.start_engine(*options)

    def _place_on_gpus(self, processes: list[simulate.Process]) -> None:
        if self.gpus is not None:
            for gpu in range(self.setup.gpus):
                self.gpus.set_load(gpu, 0.6 if processes else 0.0)
                self.gpus.set_processes(gpu, processes)

    def start_agent(self) -> None:
        """The agent with its defaults: all that is given is where to listen, the engine, how fast time runs for leaks, and what the
        setup has: how many GPUs there should be, and the reference."""
        self.agents += 1
        config = self._directory / "agent.toml"
        config.write_text(
            f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{self._directory}/statsd.sock"\nudp = "off"\n'
            f"[leaks]\ntime_scale = {TIME_SCALE}\n"
            + self._drift()
            + (f"[gpu]\nexpected = {self.setup.gpus}\n" if self.setup.gpus else "")
            + f'[[engines]]\nname = "{ENGINE_NAME}"\nmetrics_url = "{self.engine_url}/metrics"\n'
        )
        environment = simulate.environment(self.gpus.path) if self.gpus is not None else {}
        log = self._directory / f"agent-{self.agents}.log"
        self.agent = Program("aie-agent", ["run", "--config", str(config)], log, environment)
        self.agent_url = self.agent.url()
        seen = until(self._watched, "the agent does not see everything", self.agent)
        self.sources = frozenset(each.name for each in seen.sources)
        if self.agents == 1:
            self.lacks = lacking(seen.sources, (each for engine in _ours(seen) for each in engine.coverage))

    def _drift(self) -> str:
        reference, record = self.setup.reference, self.setup.record
        lines = [f'references = ["{reference}"]' if reference else "", f'record = "{record}"' if record else ""]
        return "[drift]\n" + "\n".join(lines) + "\n" if any(lines) else ""

    def restart_agent(self) -> None:
        """A new one, that remembers nothing."""
        self.agent.stop()
        self.start_agent()

    def _is_ready(self) -> bool:
        try:
            return bool(_HTTP.request("GET", f"{self.engine_url}/health/ready").status == 200)
        except urllib3.exceptions.HTTPError:
            return False

    def _watched(self) -> api.Snapshot | None:
        """A snapshot in which the engine is up and its page is read, GPUs are there, and every source has had its first look,
        probes among them."""
        snapshot = self.snapshot()
        if snapshot is None or any(source.state == "waiting" for source in snapshot.sources):
            return None
        engines = _ours(snapshot)
        probes = any(source.name == "bpf" and source.state == "up" for source in snapshot.sources)
        is_whole = (
            len(engines) == 1
            and engines[0].state == "up"
            and bool(engines[0].metrics_from)
            and len(snapshot.gpus) == self.setup.gpus
            and (not probes or any(each.state == "on" for each in engines[0].coverage))
        )
        return snapshot if is_whole else None

    def running(self) -> float:
        """How many requests run in the engine, as the agent knows it; 0 where it does not."""
        snapshot = self.snapshot()
        return 0.0 if snapshot is None else sum(each.running or 0.0 for each in _ours(snapshot))

    # -- what is seen ------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> api.Snapshot | None:
        """The agent's snapshot, once it has one. What works in it is lacking no more, whatever comes of it later."""
        body = self._get("snapshot")
        if body is None:
            return None
        snapshot = msgspec.json.decode(body, type=api.Snapshot)
        self.lacks = still_lacking(self.lacks, snapshot)
        return snapshot

    def findings(self) -> tuple[api.Finding, ...]:
        """What the agent says is wrong now with what is ours, of our engine as `judge.ENGINE`. Raises SilentError when it has
        ended, or does not answer however often it is asked for `SILENT_S`."""
        if self.lacks:
            self.snapshot()
        try:
            body = until(lambda: self._get("findings"), SILENT, self.agent, SILENT_S)
        except LabError as error:
            raise SilentError(str(error)) from None
        found = msgspec.json.decode(body, type=api.Findings).findings
        return tuple(_of_engine(each) for each in found if counts(each, self.sources, self.lacks))

    def _get(self, what: str) -> bytes | None:
        try:
            answer = _HTTP.request("GET", f"{self.agent_url}/api/v1/{what}")
        except urllib3.exceptions.HTTPError:
            return None
        return answer.data if answer.status == 200 else None

    # -- what is done to it ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self, fault: str, **arguments: Any) -> Iterator[None]:
        """A fault inside the engine's process (`inside/breakage.py`)."""
        self._tell({"fault": fault, "begins": True, **arguments})
        try:
            yield
        finally:
            self._tell({"fault": fault, "begins": False})

    def _tell(self, command: dict[str, Any]) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(120.0)
            connection.connect(str(self._directory / "inside.sock"))
            connection.sendall(json.dumps(command).encode() + b"\n")
            answer = connection.makefile().readline().strip()
        if answer != "done":
            raise LabError(f"{command['fault']}: {answer}")

    @contextlib.contextmanager
    def signalled(self, begin: signal.Signals, end: signal.Signals) -> Iterator[None]:
        """A signal to the engine, and another when it is over."""
        self.engine.process.send_signal(begin)
        try:
            yield
        finally:
            self.engine.process.send_signal(end)

    def simulated(self) -> simulate.Controller:
        """Drives the GPUs. Raises LabError where the setup has none."""
        if self.gpus is None:
            raise LabError(f"setup {self.setup.name} has no GPUs")
        return self.gpus


def _ours(snapshot: api.Snapshot) -> list[api.Engine]:
    return [each for each in snapshot.engines if each.name == ENGINE_NAME]


def _of_engine(finding: api.Finding) -> api.Finding:
    names = {ENGINE_NAME: ENGINE}
    subject, by = finding.subject, finding.explained_by_subject
    return replace(finding, subject=names.get(subject, subject), explained_by_subject=names.get(by, by))


@contextlib.contextmanager
def stranger(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of that name that belongs to nobody here, and sleeps."""
    process = subprocess.Popen([name, "86400"], executable=shutil.which("sleep"), stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
