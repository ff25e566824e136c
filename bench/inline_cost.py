"""What observing costs a step of the engine: every call of a hook and of the page's instruments, times what such a call costs.

    python bench/inline_cost.py [--requests 24] [--tokens 32] [--limit 0.01]

Runs the real engine (SmolLM2, its HTTP server, everything at its default) in this process under 8 clients, and counts the calls by
wrapping what the engine calls; nothing is assumed about its code. What a call costs comes from `bench/hooks_cost.py` in the same
run, before the engine starts. Prints a line each: calls a step, microseconds a call, microseconds a step, and the share of the time
that the engine's steps took. Exits with 1 when the sum is beyond the limit, 1 % by default: a ratio of two times of the same run,
so that a slow machine has little part in it. Every ninth request is sampled, where one in ten is the default, so that two runs
agree.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import aie_engine.loop
import aie_engine.runner
import aie_engine.sampling
from aie_engine.config import EngineConfig
from aie_engine.metrics import EngineMetrics
from aie_engine.serve import serve
from aie_hooks import AllocatorHook, Emitter, OomForensics, RequestHook
from aie_hooks.logits import LogitsHook, LogitsHooks
from aie_telemetry.instruments import Distribution, Value
from hooks_cost import Cost, measure

CLIENTS: Final = 8
SAMPLED_EVERY: Final = 9
"""Odd, because requests and logits take turns at the dice."""

_LOOP_RUNS: Final = 20_000


class Row(NamedTuple):
    """What is counted under `key`, and by which of `hooks_cost`'s names its cost goes."""

    key: str
    cost: str


# A request is counted once, with all the calls of its life but its tokens after the first.
ROWS: Final = (
    Row("token, not sampled", "request.token, sampled out"),
    Row("token, sampled", "request.token, sent"),
    Row("request, not sampled", "request from enter to end, sampled out"),
    Row("request, sampled", "request from enter to end, sent"),
    Row("logits of a request", "logits of a request, enter to end"),
    Row("logits of a token", "logits.add, wanted"),
    Row("row of token_stats", "token_stats, a row of 49152 (1 at once)"),
    Row("range", "annotate, no tool attached"),
    Row("out-of-memory guard", "oom_forensics, nothing failed"),
    Row("allocator report", "allocator.report, eight numbers"),
    Row("flush", "flush with nothing to send"),
    Row("page: observe", "page: observe"),
    Row("page: add or set", "page: add or set"),
)


class Counts:
    """Calls by key, and the time that the engine's steps took. Wraps methods for the life of this process."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.steps = 0
        self.step_s = 0.0
        self.counting = False
        self._lock = threading.Lock()

    def add(self, key: str, number: int = 1) -> None:
        if self.counting:
            with self._lock:
                self.calls[key] += number

    def watch(self, owner: Any, name: str, note: Callable[..., None]) -> None:
        """Calls `note` with the arguments of every call of `owner.name`, before it."""
        real = getattr(owner, name)

        @functools.wraps(real)
        def watched(*args: Any, **kwargs: Any) -> Any:
            note(*args, **kwargs)
            return real(*args, **kwargs)

        setattr(owner, name, watched)

    def watch_all(self) -> None:
        """Everything that the engine calls. To be done before it makes its objects: they keep bound methods."""
        self.watch(RequestHook, "token", self._token)
        self.watch(RequestHook, "end", self._end)
        self.watch(LogitsHooks, "enter", lambda *_: self.add("logits of a request"))
        self.watch(LogitsHook, "add", lambda *_: self.add("logits of a token"))
        self.watch(aie_engine.sampling, "token_stats", lambda logits, _: self.add("row of token_stats", len(logits)))
        for module in (aie_engine.loop, aie_engine.runner):
            self.watch(module, "annotate", lambda _: self.add("range"))
        self.watch(OomForensics, "__enter__", lambda _: self.add("out-of-memory guard"))
        self.watch(AllocatorHook, "report", lambda _: self.add("allocator report"))
        self.watch(Emitter, "_flush", lambda *_, **__: self.add("flush"))
        self.watch(Distribution, "observe", lambda *_: self.add("page: observe"))
        for name in ("add", "set"):
            self.watch(Value, name, lambda *_: self.add("page: add or set"))
        self.watch(EngineMetrics, "step", self._step)
        turns = itertools.count()
        setattr(Emitter, "sampled", lambda *_: next(turns) % SAMPLED_EVERY == 0)  # noqa: B010 - as `watch` does

    def _token(self, hook: RequestHook, n: int = 1) -> None:
        self.add("token, sampled" if hook._watched else "token, not sampled")

    def _end(self, hook: RequestHook, *_: Any, **__: Any) -> None:
        self.add("request, sampled" if hook._watched else "request, not sampled")

    def _step(self, _: EngineMetrics, result: Any, duration_s: float, *__: Any) -> None:
        if self.counting:
            self.steps += 1
            self.step_s += duration_s


def drain(path: Path) -> None:
    """A receiver that takes what comes, as an agent does."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listening.bind(str(path))

    def read() -> None:
        while True:
            listening.recv(65536)

    threading.Thread(target=read, daemon=True).start()


def load(url: str, counts: Counts, requests: int, tokens: int) -> None:
    """Waits until the engine is ready, keeps 8 clients busy, and ends the engine by a signal, as people do."""
    try:
        while not _answers(f"{url}/health/ready"):
            time.sleep(0.1)

        def ask(number: int) -> None:
            prompt = " ".join(str(n) for n in range(number, number + 40))
            body = json.dumps({"model": "smollm2", "prompt": prompt, "max_tokens": tokens, "seed": number})
            request = urllib.request.Request(f"{url}/v1/completions", body.encode(), {"Content-Type": "application/json"})
            with urllib.request.urlopen(request, timeout=300) as answer:
                answer.read()

        counts.counting = True
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(ask, range(requests)))
        counts.counting = False
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
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


def page_costs() -> dict[str, float]:
    """Microseconds a call of the page's instruments, which are no hooks but are on the same path."""
    distribution, value = Distribution(tuple(float(n) for n in range(20))), Value()
    return {
        "page: observe": _timed(lambda: distribution.observe(7.5, 3)),
        "page: add or set": max(_timed(lambda: value.add(1)), _timed(lambda: value.set(1))),
    }


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(_LOOP_RUNS):
        call()
    return (time.perf_counter() - began) / _LOOP_RUNS * 1e6


def table(counts: Counts, costs: dict[str, float]) -> float:
    """Prints a line for each row; returns the share of all together."""
    step_us = counts.step_s / counts.steps * 1e6
    print(f"{counts.steps} steps of {step_us / 1000:.1f} ms\n")
    print(f"{'':28} {'calls a step':>13} {'us a call':>10} {'us a step':>10} {'share':>8}")
    whole_us = 0.0
    for row in ROWS:
        calls = counts.calls[row.key] / counts.steps
        each_us = costs[row.cost]
        whole_us += calls * each_us
        print(f"{row.key:28} {calls:13.3f} {each_us:10.3f} {calls * each_us:10.2f} {calls * each_us / step_us:8.3%}")
    print(f"{'together':28} {'':13} {'':10} {whole_us:10.2f} {whole_us / step_us:8.3%}")
    return whole_us / step_us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--limit", type=float, default=0.01, help="the largest share that is no failure")
    arguments = parser.parse_args()
    # Costs first: what is wrapped below stays wrapped.
    costs = {cost.name: cost.median_us for cost in _kept(measure())} | page_costs()
    share = table(count(arguments.requests, arguments.tokens), costs)
    if share > arguments.limit:
        sys.exit(f"observing takes {share:.2%} of a step, beyond {arguments.limit:.0%}")


def _kept(costs: Any) -> list[Cost]:
    wanted = {row.cost for row in ROWS}
    return [cost for cost in costs if cost.name in wanted]


if __name__ == "__main__":
    main()
