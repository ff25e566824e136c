"""Brings about the situations that panels are for: each is an agent of its own, beside real programs and simulated GPUs."""

from __future__ import annotations

import contextlib
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aie_agent import simulate
from aie_hooks import Emitter, LogitsHooks
from tests.fakes.cuda_stand_in import StandIn
from tests.faultlab.programs import Program, free_port
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

MODEL: Final = "smollm2"
"""Of which a reference ships."""

_HW_SLOWDOWN: Final = 0x8
_HW_THERMAL: Final = 0x40

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

    def process(self, code: str = "input()") -> subprocess.Popen[bytes]:
        """A Python program that runs until the end."""
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)
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
        self._host.set_link(3, generation=3)  # from the start: what counts is the best of five minutes
        page = re.sub(r"^(sglang:num_queue_reqs\S*) .*$", r"\1 NaN", (PAGES / "sglang-0.4.prom").read_text(), flags=re.MULTILINE)
        self.agent = place.agent(
            "faults",
            "expected = 8",
            f'[otlp]\nendpoint = "http://127.0.0.1:{free_port()}"\ninterval = "1s"',
            place.page("no-page", f"http://127.0.0.1:{free_port()}/metrics"),
            place.page("no-number", place.stack.enter_context(served(page))),
            gpus=self._host,
        )

    def break_it(self) -> None:
        """GPUs are lost, hot, slow; senders send what cannot be taken."""
        host = self._host
        host.throttle(0, _HW_SLOWDOWN | _HW_THERMAL)
        host.push_xid(1, 31)
        host.push_xid(1, 143)  # of a number that has no series before
        host.set_link(2, width=8)
        host.push_xid(4, 79)
        host.lose(4)
        self.babble()

    def babble(self) -> None:
        """What is refused: no StatsD, a name that is not ours to give; and hooks that dropped something."""
        lines = (b"no statsd", b"aie_nonsense:1|g", b"aie_hooks_dropped_total,engine=chat,reason=budget:3|c")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self._place.socket("faults")))
            for line in lines:
                sender.send(line)


def _answer(rng: random.Random) -> tuple[float, float, float, int]:
    """Entropy, surprisal, log-sum-exp of the first token, and length, of an answer; none as in the reference of `MODEL`."""
    return rng.gauss(2, 0.4), abs(rng.gauss(1.5, 0.3)), rng.gauss(20, 2), rng.randint(2, 40)


class Hooked:
    """An engine that tells through hooks; its memory grows, and its answers are not those of its reference."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._host = place.gpus("one", 1)
        self._engine = place.process()
        self.agent = place.agent(
            "hooks",
            place.pid_file("chat", self._engine.pid),
            f'[leaks]\ntime_scale = {TIME_SCALE}\nwarm_up = "5m"\nwarm_up_requests = 1\n',
            '[drift]\nreferences = ["demo"]\n',
            gpus=self._host,
        )

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Tells ten times a second, from a thread, once there is somebody to tell."""
        self.agent.url()
        over = threading.Event()
        thread = threading.Thread(target=self._tell, args=(over,), name="hooks")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _tell(self, over: threading.Event) -> None:
        rng = random.Random(2)
        target = f"unix://{self._place.socket('hooks')}"
        emitter = Emitter("chat", target, packets_per_second=1e9, flush_interval_s=float("inf"))
        hooks = LogitsHooks(emitter, model=MODEL, rate=1.0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.connect(str(self._place.socket("hooks")))
            tick, began = 0, time.monotonic()
            while not over.wait(0.1):
                tick += 1
                for _ in range(5):
                    entropy, surprisal, logsumexp, length = _answer(rng)
                    with hooks.enter() as hook:
                        for _ in range(length):
                            hook.add(-surprisal, entropy, logsumexp)
                emitter.flush()
                sender.send("\n".join(self._lines(tick, time.monotonic() - began)).encode())
        emitter.close()

    def _lines(self, tick: int, after_s: float) -> Iterator[str]:
        """Memory that rises evenly, and the other things that hooks tell."""
        allocated = 10 * GIB + round(after_s * RISE_BYTES_PER_S)
        self._host.set_processes(0, [simulate.Process(self._engine.pid, allocated + 2 * GIB)])
        of, by = "engine=chat,device=cuda0", f"engine=chat,model={MODEL}"
        allocator = {
            "allocated": allocated,
            "reserved": allocated + GIB,
            "inactive_split": GIB // 4,
            "private_pool": 0,
            "pinned": GIB,
        }
        yield from (f"aie_engine_allocator_{name}_bytes,{of}:{value}|g" for name, value in allocator.items())
        yield from (f"aie_engine_allocator_{name}_total,{of}:1|c" for name in ("retries", "ooms"))
        yield f"aie_engine_requests_total,{by},outcome=ok:10|c"
        yield f"aie_engine_requests_running,{by}:3|g"
        yield f"aie_engine_requests_waiting,{by}:0|g"
        canary = f"{by},canary=fixed"
        yield f"aie_engine_canary_runs_total,{canary},outcome=ok:1|c"
        # In StatsD a level below 0 is one that falls from 0.
        yield from (f"aie_engine_canary_logprob_nats,{canary}:{value}|g" for value in (0, -3 - tick % 3 / 1000))
        yield "aie_engine_malloc_used_bytes,engine=chat:5000000|g"
        yield "aie_engine_malloc_held_bytes,engine=chat:6000000|g"
        for cache in ("prefix", "response"):
            yield f"aie_engine_{cache}_cache_queries_total,{by}:10|c"
            yield f"aie_engine_{cache}_cache_hits_total,{by}:4|c"
        yield f"aie_engine_activation_max_abs,{by},layer=0:{tick % 7}|g"
        yield f"aie_engine_activation_std,{by},layer=0:{1 + tick % 3}|g"
        yield f"aie_engine_activation_nonfinite_total,{by},layer=0:0|c"


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
