"""What observing costs a step of the engine, in the case where it weighs most: eight requests that only decode.

    python bench/inline_cost.py [--requests 24] [--tokens 128] [--limit 0.01]

Runs the real engine (SmolLM2, its HTTP server, everything at its default) in this process under 8 clients with prompts of a few
tokens, while somebody scrapes its page once a second. What observes is timed whole, where it runs, by the CPU time of its thread:
the page's instruments (`EngineMetrics`), the hooks that they tell, the emitter's flushes with all that is sent, the page itself,
the reports of the allocator. Nothing is assumed about how many calls there are within. What lies inside the step is counted, and
its cost measured apart, before the engine starts: ranges, the guard for memory errors, observations outside these, and what
`sample()` does for the rows whose distribution the hooks want (the difference between eight rows with one wanted and eight
without).

Prints a line each: calls a step, microseconds a call, microseconds a step, and the share of the time that the engine's steps
took. Exits with 1 when the sum is beyond the limit, 1 % by default: a ratio of two times of the same run, so that a slow machine
has little part in it. Every ninth request is sampled, where one in ten is the default, so that two runs agree.

Not included: what waiting for the interpreter's lock adds while another thread observes (its CPU time is), what caches lose,
spans (there are none by default), HTTP for the scrape, and the agent, which `bench/agent_cost.py` measures. Steps are timed as
the engine times them, observing of other threads included.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import signal
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

import aie_engine.loop
import aie_engine.runner
from aie_engine.config import EngineConfig
from aie_engine.metrics import EngineMetrics
from aie_engine.plan import SamplingParams
from aie_engine.sampling import sample
from aie_engine.serve import serve
from aie_hooks import AllocatorHook, Emitter, OomForensics
from aie_hooks.logits import LogitsHooks
from aie_telemetry.instruments import Distribution
from hooks_cost import VOCABULARY, measure, of_the_rest

CLIENTS: Final = 8
SAMPLED_EVERY: Final = 9
"""Odd, because requests and logits take turns at the dice."""

SCRAPE_PERIOD_S: Final = 1.0
_LOOP_RUNS: Final = 20_000
_SAMPLE_RUNS: Final = 60


class Timed(NamedTuple):
    """Methods whose calls are timed whole, under the name of their row."""

    row: str
    owner: type
    methods: tuple[str, ...]


TIMED: Final = (
    Timed("page: a step", EngineMetrics, ("step", "step_failed")),
    Timed("page: the life of a request", EngineMetrics, ("enter", "tokenized", "queued", "admitted", "replayed", "ended")),
    Timed("hooks, told", EngineMetrics, ("tell_hooks",)),
    Timed("flush, sending included", Emitter, ("_flush",)),
    Timed("the page, once a second", EngineMetrics, ("page",)),
    Timed("allocator report", AllocatorHook, ("report",)),
)
RANGE, GUARD, OBSERVATION, WANTED = "range", "out-of-memory guard", "observation elsewhere", "wanted row of sample()"


class Counts:
    """Calls by row, and the time that the engine's steps took. Wraps methods for the life of this process."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.spent_s: defaultdict[str, float] = defaultdict(float)
        self.steps = self.tokens = self.prompt_tokens = 0
        self.step_s = 0.0
        self.counting = False
        self._lock = threading.Lock()
        self._thread = threading.local()

    def add(self, row: str, number: int = 1, spent_s: float = 0.0) -> None:
        if self.counting:
            with self._lock:
                self.calls[row] += number
                self.spent_s[row] += spent_s

    def watch(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Calls `note` with the arguments of every call of `owner.name`, before it."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, watched)

    def time(self, owner: Any, name: str, row: str) -> None:
        """Adds up the CPU time of every call of `owner.name`. What it calls that is timed too is part of it."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if getattr(self._thread, "inside", False):
                return real(*args, **kwargs)
            self._thread.inside = True
            began = time.thread_time()
            try:
                return real(*args, **kwargs)
            finally:
                spent_s = time.thread_time() - began
                self._thread.inside = False
                self.add(row, spent_s=spent_s)

        setattr(owner, name, timed)

    def watch_all(self) -> None:
        """Everything that the engine calls. To be done before it makes its objects: they keep bound methods."""
        for timed in TIMED:
            for name in timed.methods:
                self.time(timed.owner, name, timed.row)
        self.time(LogitsHooks, "enter", "page: the life of a request")
        for module in (aie_engine.loop, aie_engine.runner):
            self.watch(module, "annotate", lambda _: self.add(RANGE))
        self.watch(OomForensics, "__enter__", lambda _: self.add(GUARD))
        self.watch(Distribution, "observe", self._observe)
        self.watch(aie_engine.runner, "sample", self._sample)
        self.watch(EngineMetrics, "step", self._step)
        turns = itertools.count()
        setattr(Emitter, "sampled", lambda *_: next(turns) % SAMPLED_EVERY == 0)  # noqa: B010 - as `watch` does

    def _observe(self, *_: Any) -> None:
        if not getattr(self._thread, "inside", False):
            self.add(OBSERVATION)

    def _sample(self, _: Any, params: list[SamplingParams], *__: Any) -> None:
        self.add(WANTED, sum(one.detail is not None for one in params))

    def _step(self, _: EngineMetrics, result: Any, duration_s: float, *__: Any) -> None:
        if self.counting:
            self.steps += 1
            self.step_s += duration_s
            self.tokens += result.prompt_tokens + result.decode_tokens
            self.prompt_tokens += result.prompt_tokens


def drain(path: Path) -> None:
    """A receiver that takes what comes, as an agent does."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))

    def read() -> None:
        while True:
            listening.recv(65536)

    threading.Thread(target=read, daemon=True).start()


def load(url: str, counts: Counts, requests: int, tokens: int) -> None:
    """Waits until the engine is ready, keeps 8 clients and a scraper busy, and ends the engine by a signal, as people do."""
    try:
        while not _answers(f"{url}/health/ready"):
            time.sleep(0.1)

        def ask(number: int) -> None:
            body = json.dumps({"model": "smollm2", "prompt": f"{number} is", "max_tokens": tokens, "seed": number})
            request = urllib.request.Request(f"{url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()

        over = threading.Event()
        scraper = threading.Thread(target=_scrape, args=(f"{url}/metrics", over))
        counts.counting = True
        scraper.start()
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(ask, range(requests)))
        counts.counting = False
        over.set()
        scraper.join()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _scrape(url: str, over: threading.Event) -> None:
    while not over.wait(SCRAPE_PERIOD_S):
        _answers(url)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            answer.read()
            return bool(answer.status == 200)
    except OSError:
        return False


def count(requests: int, tokens: int) -> Counts:
    """Runs the engine in this thread, which a signal handler needs, and counts."""
    counts = Counts()
    counts.watch_all()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        drain(Path(folder) / "statsd.sock")
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        config = EngineConfig(model="smollm2", port=port, statsd=f"unix://{folder}/statsd.sock")
        clients = threading.Thread(target=load, args=(f"http://127.0.0.1:{port}", counts, requests, tokens))
        clients.start()
        status = serve(config)
        clients.join()
    if status or not counts.steps:
        sys.exit(f"the engine ended with {status} after {counts.steps} steps")
    return counts


def costs_apart() -> dict[str, float]:
    """Microseconds of what is counted, by row. torch is left with one thread."""
    hooks = {cost.name: cost.median_us for cost in measure((of_the_rest,))}
    distribution = Distribution(tuple(float(n) for n in range(20)))
    began = time.perf_counter()
    for _ in range(_LOOP_RUNS):
        distribution.observe(7.5, 3)
    return {
        RANGE: hooks["annotate, no tool attached"],
        GUARD: hooks["oom_forensics, nothing failed"],
        OBSERVATION: (time.perf_counter() - began) / _LOOP_RUNS * 1e6,
        WANTED: _wanted_row_us(),
    }


def _wanted_row_us() -> float:
    """What one wanted row of eight adds to `sample()`, each run with and without in turn."""
    logits = torch.randn(CLIENTS, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
    plain = [SamplingParams(temperature=0.0)] * CLIENTS
    wanted = [SamplingParams(temperature=0.0, detail=0), *plain[1:]]
    positions = list(range(CLIENTS))

    def timed_us(params: list[SamplingParams]) -> float:
        began = time.perf_counter()
        sample(logits, params, positions)
        return (time.perf_counter() - began) * 1e6

    with torch.inference_mode():
        return statistics.median(timed_us(wanted) - timed_us(plain) for _ in range(_SAMPLE_RUNS))


def table(counts: Counts, costs: dict[str, float]) -> float:
    """Prints a line for each row; returns the share of all together."""
    step_us = counts.step_s / counts.steps * 1e6
    rows = {timed.row: counts.spent_s[timed.row] * 1e6 for timed in TIMED}
    rows |= {row: counts.calls[row] * each_us for row, each_us in costs.items()}
    tokens, prompts = counts.tokens / counts.steps, counts.prompt_tokens / counts.tokens
    print(f"{counts.steps} steps of {step_us / 1000:.1f} ms and {tokens:.1f} tokens ({prompts:.0%} of prompts)\n")
    print(f"{'':28} {'calls a step':>13} {'us a call':>10} {'us a step':>10} {'share':>8}")
    for row, spent_us in rows.items():
        calls = counts.calls[row]
        each_us = spent_us / calls if calls else 0.0
        a_step_us = spent_us / counts.steps
        print(f"{row:28} {calls / counts.steps:13.3f} {each_us:10.3f} {a_step_us:10.2f} {a_step_us / step_us:8.3%}")
    whole_us = sum(rows.values()) / counts.steps
    print(f"{'together':28} {'':13} {'':10} {whole_us:10.2f} {whole_us / step_us:8.3%}")
    return whole_us / step_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--limit", type=float, default=0.01, help="the largest share that is no failure")
    arguments = parser.parse_args()
    # Costs first: what is wrapped below stays wrapped.
    costs = costs_apart()
    share = table(count(arguments.requests, arguments.tokens), costs)
    if share > arguments.limit:
        sys.exit(f"observing takes {share:.2%} of a step, beyond {arguments.limit:.0%}")


if __name__ == "__main__":
    main()
