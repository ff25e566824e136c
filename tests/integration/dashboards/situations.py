"""Brings about the situations that panels are for: each is an agent of its own, beside real programs and simulated GPUs."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aie_agent import simulate
from tests.e2e.programs import get
from tests.fakes import hooked_net
from tests.fakes.collector import MetricsCollector, taking_all_but
from tests.fakes.cuda_stand_in import StandIn
from tests.faultlab.clients import Clients
from tests.faultlab.gpu_faults import GPU_FAULTS
from tests.faultlab.programs import Program, free_port
from tests.integration.dashboards import small_model
from tests.integration.dashboards.control_groups import limited
from tests.integration.dashboards.served_page import served

GIB: Final = 1 << 30
PAGES: Final = Path(__file__).parents[2] / "fixtures" / "pages"
TIME_SCALE: Final = 60
"""Of the leak analysis: the forty minutes of its fast lane in as many seconds. Faster, on a busy host, the jitter of its looks at
memory would be noise."""
RISE_BYTES_PER_S: Final = 1_500_000
"""Three times what is a leak at that scale."""

OTHERS: Final = {"vllm": "vllm-0.33-dp2", "sglang": "sglang-0.5.23-dp2-tp2", "tgi": "tgi-2", "llamacpp": "llama.cpp-2026-10"}
"""Pages of engines that are not here: name and file."""

ROOT: Final = Path(__file__).parents[3]
INSIDE: Final = ROOT / "tests" / "faultlab" / "inside"
ANSWERS_PER_S: Final = 30.0
"""Of a small model: a window of a hundred takes seconds."""
_TELLS: Final = ("--sample-outputs", "1", "--canary-every", "1s", "--response-cache-bytes", str(1 << 20))
"""What an engine's hooks tell beside requests, and what they can tell it of."""

_ON_GPUS: Final = frozenset({"thermal", "xid-31", "link-narrow", "xid-79"})
"""Faults of the lab: of GPUs 0, 1, 3 and 4."""

# Three threads compute in Python now and then, at once; and three want a lock in which one of them always sleeps.
FIGHT: Final = """
import threading, time
lock = threading.Lock()
together = threading.Barrier(3)
def compute():
    while True:
        together.wait()
        for _ in range(300):
            sum(range(1000))
        time.sleep(0.1)
def hold():
    while True:
        with lock:
            time.sleep(0.02)
for target in (compute, compute, compute, hold, hold, hold):
    threading.Thread(target=target, daemon=True).start()
input()
"""


# Hooks that cannot read what they should tell: they say that it is lost.
UNREADABLE: Final = """
import time
from aie_hooks import AllocatorHook, Emitter
def read():
    raise RuntimeError("the device is lost")
hook = AllocatorHook(Emitter("unreadable", {target!r}), read)
while True:
    hook.report()
    time.sleep(0.5)
"""


@dataclass(frozen=True)
class Place:
    """Where the agents' files are, and where what is started is ended."""

    directory: Path
    stack: contextlib.ExitStack

    def agent(self, name: str, *sections: str, gpus: simulate.Controller | None = None, bpf: bool = False) -> Program:
        """An agent with these sections in its configuration, and nothing found by itself."""
        config = self.directory / f"{name}.toml"
        config.write_text(
            f'[api]\nlisten = "127.0.0.1:0"\n[statsd]\nunix = "{self.socket(name)}"\nudp = "127.0.0.1:{free_port()}"\n'
            f"[discovery]\nenabled = false\n[findings]\nstacks = false\n[gpu]\nenabled = {str(gpus is not None).lower()}\n"
            + "\n".join(sections)
            + "\n"
        )
        options = () if bpf else ("--no-bpf",)
        environment = simulate.environment(gpus.path) if gpus is not None else {}
        log = self.directory / f"{name}.log"
        agent = Program("aie-agent", ["run", *options, "--config", str(config)], log, environment)
        self.stack.callback(agent.stop)
        return agent

    def socket(self, name: str) -> Path:
        """Where an agent takes StatsD."""
        return self.directory / f"{name}.sock"

    def pid_file(self, name: str, pid: int) -> str:
        """The section of an engine that is a process."""
        path = self.directory / f"{name}.pid"
        path.write_text(f"{pid}\n")
        return f'[[engines]]\nname = "{name}"\npid_file = "{path}"\n'

    def page(self, name: str, url: str) -> str:
        """The section of an engine of which a page is known."""
        return f'[[engines]]\nname = "{name}"\nmetrics_url = "{url}"\n'

    def process(self, code: str) -> subprocess.Popen[bytes]:
        """A Python program that runs until the end."""
        return self.started("-c", code)

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Python with these arguments, until the end."""
        process = subprocess.Popen([sys.executable, *arguments], stdin=subprocess.PIPE, cwd=ROOT)
        self.stack.callback(lambda: (process.kill(), process.communicate()))
        return process

    def engine(self) -> Program:
        """SmolLM2 on one thread, without hooks."""
        arguments = ["serve", "--model", "smollm2", "--name", "smollm2", "--port", str(free_port()), "--threads", "1"]
        engine = Program("aie-engine", arguments, self.directory / "engine.log", {"AIE_STATSD": "off"})
        self.stack.callback(engine.stop)
        return engine

    def gpus(self, name: str, number: int) -> simulate.Controller:
        """Simulated GPUs of a host of their own."""
        return self.stack.enter_context(simulate.Controller.create(self.directory / name, number, "H100"))


def plain(place: Place, engine_url: str) -> Program:
    """Reads the page of an engine, and nothing else."""
    return place.agent("plain", place.page("smollm2", f"{engine_url}/metrics"))


def gpus(place: Place, engine_url: str, engine_pid: int) -> Program:
    """Eight GPUs on which an engine computes, one of them divided."""
    host = place.gpus("eight", 8)
    for gpu in range(8):
        host.set_load(gpu, 0.6)
        host.set_processes(gpu, [simulate.Process(engine_pid, 40 * GIB)])
    host.set_mig(7, [simulate.MigInstance("1g.10gb", 1, 10 * GIB, 16, load_ratio=0.5)])
    return place.agent("gpus", "expected = 8", place.page("smollm2", f"{engine_url}/metrics"), gpus=host)


def limits(place: Place) -> Program | None:
    """An engine that may have little memory and CPU; None where this host lets no such group be made."""
    busy = place.process("while True: pass")
    try:
        place.stack.enter_context(limited(busy.pid))
    except OSError:
        return None
    place.stack.callback(lambda: (busy.kill(), busy.wait()))
    return place.agent("limits", place.pid_file("limited", busy.pid))


class Broken:
    """A host on which much fails, once it is told to."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._host = place.gpus("broken", 8)
        for gpu in range(8):
            self._host.set_load(gpu, 0.6)
        self._host.set_link(2, generation=3)  # from the start: what counts is the best of five minutes
        page = re.sub(r"^(sglang:num_queue_reqs\S*) .*$", r"\1 NaN", (PAGES / "sglang-0.4.prom").read_text(), flags=re.MULTILINE)
        self.agent = place.agent(
            "faults",
            "expected = 8",
            f'[otlp]\nendpoint = "http://127.0.0.1:{free_port()}"\ninterval = "1s"',
            place.page("no-page", f"http://127.0.0.1:{free_port()}/metrics"),
            place.page("no-number", place.stack.enter_context(served(page))),
            gpus=self._host,
        )
        place.process(UNREADABLE.format(target=f"unix://{place.socket('faults')}"))

    def break_it(self) -> None:
        """GPUs are lost, hot, slow; senders send what cannot be taken."""
        self._host.push_xid(1, 143)  # of a number that has no series before
        # A GPU that is lost comes last: the agent then opens NVML anew, and hears no XID while it does.
        for fault in sorted((each for each in GPU_FAULTS if each.name in _ON_GPUS), key=lambda each: each.name == "xid-79"):
            self._place.stack.enter_context(fault.inject(self))  # type: ignore[arg-type]  # of its world they take the GPUs
        self.babble()

    def simulated(self) -> simulate.Controller:
        """The GPUs that are broken."""
        return self._host

    def babble(self) -> None:
        """What is refused: no StatsD, and a name that is not ours to give."""
        lines = (b"no statsd", b"aie_nonsense:1|g")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self._place.socket("faults")))
            for line in lines:
                sender.send(line)


class Hooked:
    """Two engines that tell through hooks: aie-engine with a small model, a layer of which is damaged once its canary is known,
    and whose spans a collector takes, but for one of each batch; and a net of torch's modules that keeps tensors."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._host = place.gpus("one", 1)
        self._inside = place.directory / "inside.sock"
        self._damaged = False
        folder, reference = small_model.write(place.directory)
        self._engine = self._start_engine(folder, port := free_port())
        target = f"unix://{place.socket('hooks')}"
        net = place.started("-m", hooked_net.__name__, target, str(self._host.path), str(RISE_BYTES_PER_S), small_model.NAME)
        self.agent = place.agent(
            "hooks",
            place.page("chat", f"http://127.0.0.1:{port}/metrics"),
            place.pid_file(hooked_net.NAME, net.pid),
            f'[leaks]\ntime_scale = {TIME_SCALE}\nwarm_up = "5m"\nwarm_up_requests = 1\n',
            f'[drift]\nreferences = ["{reference}"]\n',
            gpus=self._host,
        )

    def _start_engine(self, folder: Path, port: int) -> Program:
        collector = MetricsCollector(kind=ExportTraceServiceRequest)
        self._place.stack.callback(collector.close)
        collector.answer = taking_all_but(1, "too long")
        arguments = ["serve", "--model", str(folder), "--name", "chat", "--port", str(port), "--threads", "1", *_TELLS]
        arguments += ["--otlp-endpoint", collector.url]
        environment = {
            "AIE_STATSD": f"unix://{self._place.socket('hooks')}",
            "AIE_FAULTLAB_SOCKET": str(self._inside),
            "PYTHONPATH": str(INSIDE),
        }
        engine = Program("aie-engine", arguments, self._place.directory / "hooked.log", environment)
        self._place.stack.callback(engine.stop)
        return engine

    def ask(self) -> None:
        """Begins to ask the engine, once there is somebody whom its hooks can tell."""
        self.agent.url()
        self._place.stack.enter_context(Clients(self._engine.url(), small_model.small_chat)).send(ANSWERS_PER_S)

    def damage(self) -> None:
        """The lab's fault of a layer: once, and not before the agent has learnt what the canary gives."""
        if self._damaged or b"aie_drift_canary_level_nats{" not in get(f"{self.agent.url()}/metrics")[1]:
            return
        command = {"fault": "layer_scaled", "begins": True, "layer": small_model.LAYERS - 1, "factor": 8.0}
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(self._inside))
            connection.sendall(json.dumps(command).encode() + b"\n")
            assert connection.makefile().readline() == "done\n"
        self._damaged = True


class Probed:
    """A host with probes: Python that fights for locks, and a program that calls CUDA."""

    def __init__(self, place: Place, stand_in: StandIn) -> None:
        self.cuda = place.stack.enter_context(stand_in.start("works"))
        fight = place.process(FIGHT)
        self.agent = place.agent("probes", place.pid_file("fight", fight.pid), place.pid_file("cuda", self.cuda.tgid), bpf=True)


def others(place: Place, pages: dict[str, str]) -> Program:
    """An agent that reads pages of other engines: name and file of each."""
    sections = [place.page(name, place.stack.enter_context(served(PAGES / f"{file}.prom"))) for name, file in pages.items()]
    return place.agent("others", *sections)
