"""What a call into `aie_hooks` costs the engine: formatting and sending included, against a real Unix socket.

    python bench/hooks_cost.py

Prints microseconds a call, the best and the median of 15 runs, less what the loop itself takes. Budgets: 0.5 us for a call that
is sampled out, 2 us for one that is sent. A host with neighbours is noisy, so a median beyond its budget is marked, and only one
beyond twice its budget is a failure (exit status 1). The socket is emptied between the runs, outside the measurement. What is no
call on the path of every token (a whole request, a span, a sampled step of a model) stands beside it without a budget, and torch
computes with one thread.
"""

from __future__ import annotations

import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from opentelemetry.sdk.trace import TracerProvider

from aie_hooks import (
    AllocatorHook,
    AllocatorStats,
    Emitter,
    LogitsHooks,
    MemoryProbe,
    ModuleHooks,
    RequestHooks,
    annotate,
    oom_forensics,
    span_tracer,
    token_stats,
)
from aie_hooks.process_memory import malloc_bytes, python_blocks
from aie_telemetry.api import Event

RUNS = 15
CALLS = 20_000
PER_FLUSH = 100
NEVER = 1e-6
SAMPLED_OUT_US = 0.5
SENT_US = 2.0
FAILS_BEYOND = 2.0
"""Times its budget."""
ITL = "aie_engine_inter_token_seconds"
VOCABULARY = 49152
LAYERS = 30
BATCH = 8
HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "host": "x", "user-agent": "y"}


class Cost(NamedTuple):
    """Microseconds a call in each run, less the loop's own; `budget_us` None where there is none."""

    name: str
    runs_us: tuple[float, ...]
    budget_us: float | None = None

    @property
    def median_us(self) -> float:
        """The median of the runs."""
        return statistics.median(self.runs_us)


class Bench:
    """An emitter without a thread, and the socket that it sends to."""

    def __init__(self, path: Path) -> None:
        self.receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.receiver.bind(str(path))
        self.receiver.setblocking(False)
        self.emitter = Emitter("bench", f"unix://{path}", flush_interval_s=float("inf"), packets_per_second=float("inf"))
        self.loop_us = 0.0
        self.loop_us = statistics.median(self.calls("", lambda: None).runs_us)

    def flush(self) -> None:
        self.emitter.flush()

    def drain(self) -> None:
        try:
            while True:
                self.receiver.recv(65536)
        except BlockingIOError:
            pass

    def calls(self, name: str, call: Callable[[], object], budget_us: float | None = None, calls: int = CALLS) -> Cost:
        """The flush is not part of it."""
        runs = []
        for _ in range(RUNS):
            runs.append(self.timed(call, calls) - self.loop_us)
            self.flush()
            self.drain()
        return Cost(name, tuple(runs), budget_us)

    def timed(self, call: Callable[[], object], calls: int) -> float:
        """Microseconds a call, the loop's own included."""
        began = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - began) / calls * 1e6

    def sent(self, name: str, call: Callable[[], object], budget_us: float | None = SENT_US, calls: int = CALLS) -> Cost:
        """The same with a flush every hundred calls, as an engine's step would do it."""
        runs = []
        for _ in range(RUNS):
            spent = 0.0
            for _ in range(calls // PER_FLUSH):
                began = time.perf_counter()
                for _ in range(PER_FLUSH):
                    call()
                self.flush()
                spent += time.perf_counter() - began
                self.drain()
            runs.append(spent / calls * 1e6 - self.loop_us)
        return Cost(name, tuple(runs), budget_us)


class Spans:
    """Waits at each flush until the spans are made, so that their cost is in the measurement, though no request waits for it."""

    def __init__(self, hooks: RequestHooks) -> None:
        self._hooks = hooks

    def collect(self) -> None:
        self._hooks.wait_for_spans(30.0)

    def forget(self) -> None:
        """Nothing is kept."""


def of_handles(bench: Bench) -> Iterator[Cost]:
    """The emitter's own."""
    emitter = bench.emitter
    rare, every = emitter.histogram(ITL, NEVER, model="m"), emitter.histogram(ITL, model="m")
    counter, gauge = emitter.counter("aie_engine_prompt_tokens_total", model="m"), emitter.gauge("depth")
    yield bench.calls("histogram.observe, sampled out", lambda: rare.observe(0.0123), SAMPLED_OUT_US)
    yield bench.sent("histogram.observe, sent", lambda: every.observe(0.0123))
    yield bench.calls("counter.add", lambda: counter.add(1), SENT_US)
    yield bench.calls("gauge.set", lambda: gauge.set(3.0), SENT_US)
    yield bench.calls("flush with nothing to send", bench.flush)
    event = Event(time_s=0.0, kind="oom", engine="bench", summary="x" * 100, details={f"number_{i}": float(i) for i in range(12)})

    def tell() -> None:
        emitter.event(event)
        bench.drain()

    yield bench.calls("event, and the reading of it", tell, calls=CALLS // 20)


def of_requests(bench: Bench) -> Iterator[Cost]:
    """Requests: the token path, and a whole request of one token."""

    def life(hooks: RequestHooks, headers: dict[str, str] | None = None) -> Callable[[], None]:
        def whole() -> None:
            request = hooks.enter(headers)
            request.tokenized(17)
            request.queued()
            request.admitted()
            request.token()
            request.end("ok", finish_reason="stop")

        return whole

    rare, every = (RequestHooks(bench.emitter, model="m", rate=rate) for rate in (NEVER, 1.0))
    yield bench.calls("request.token, sampled out", rare.enter().token, SAMPLED_OUT_US)
    yield bench.sent("request.token, sent", every.enter().token)
    batch = [rare.enter() for _ in range(BATCH)]
    cost = bench.calls("", lambda: rare.step(batch), calls=CALLS // BATCH)
    yield Cost(f"hooks.step, {BATCH} not sampled, a token", tuple(run / BATCH for run in cost.runs_us), SAMPLED_OUT_US)
    yield bench.sent("request from enter to end, sampled out", life(rare), None)
    yield bench.sent("request from enter to end, sent", life(every), None)
    provider = TracerProvider(shutdown_on_exit=False)
    tracer = span_tracer("bench", model="m", provider=provider)
    without = span_tracer("bench", model="m")
    yield bench.calls("no SDK: whether to trace", lambda: without.begin(HEADERS, None, sampled=True), SAMPLED_OUT_US)
    traced = RequestHooks(bench.emitter, model="m", rate=NEVER, tracer=tracer)
    bench.emitter.at_flush(Spans(traced))
    yield bench.sent("request with a span, the making of it included", life(traced, HEADERS), None, calls=CALLS // 20)


def of_logits(bench: Bench) -> Iterator[Cost]:
    """Numbers of answers, and what computes them."""
    unwanted, wanted = (LogitsHooks(bench.emitter, model="m", rate=rate).enter() for rate in (NEVER, 1.0))
    yield bench.calls("logits.add, not wanted", lambda: unwanted.add(-1.0, 2.0, 20.0), SAMPLED_OUT_US)
    yield bench.calls("logits.add, wanted", lambda: wanted.add(-1.0, 2.0, 20.0), SENT_US)
    every = LogitsHooks(bench.emitter, model="m", rate=1.0)

    def answer() -> None:
        hook = every.enter()
        hook.add(-1.0, 2.0, 20.0)
        hook.end()

    yield bench.sent("logits of a request, enter to end", answer, None)
    generator = torch.Generator().manual_seed(0)
    for rows in (1, 8):
        logits = torch.randn(rows, VOCABULARY, generator=generator) * 3
        chosen = logits.argmax(-1)

        def compute(logits: torch.Tensor = logits, chosen: torch.Tensor = chosen) -> None:
            token_stats(logits, chosen)

        cost = bench.calls("", compute, calls=50)
        yield Cost(f"token_stats, a row of {VOCABULARY} ({rows} at once)", tuple(run / rows for run in cost.runs_us))


def of_modules(bench: Bench) -> Iterator[Cost]:
    """What hooks add to a step that is not looked at, and to one that is, by layer: 30 small layers, decoding 8 rows."""
    x = torch.randn(8, 576)
    with torch.inference_mode():
        small = torch.nn.Sequential(torch.nn.Identity())
        yield _added(bench, "modules, a step not looked at", small, x, every=10**9, calls=2000)
        layers = (torch.nn.Linear(576, 16) if i % 2 == 0 else torch.nn.Linear(16, 576) for i in range(LAYERS))
        cost = _added(bench, "modules, a step looked at, a layer", torch.nn.Sequential(*layers), x, every=1, calls=50)
        yield Cost(cost.name, tuple(run / LAYERS for run in cost.runs_us))


def _added(bench: Bench, name: str, net: torch.nn.Module, x: torch.Tensor, every: int, calls: int) -> Cost:
    """With hooks and without in turn, so that a busy moment of the host falls on both."""
    differences = []
    for _ in range(RUNS):
        plain = bench.timed(lambda: net(x), calls)
        hooks = ModuleHooks(bench.emitter, net, model="m", layers="*", every=every)
        net(x)  # the first is always looked at
        differences.append(bench.timed(lambda: net(x), calls) - plain)
        hooks.remove()
        bench.flush()
        bench.drain()
    return Cost(name, tuple(differences))


def of_the_rest(bench: Bench) -> Iterator[Cost]:
    """Ranges, memory."""

    def marked() -> None:
        with annotate("x"):
            pass

    forensics = oom_forensics(bench.emitter, "cpu")

    def guarded() -> None:
        with forensics:
            pass

    hook = AllocatorHook(bench.emitter, lambda: AllocatorStats("cuda0", 1, 2, 3, 4, 5, 6, 7, 8))
    yield bench.calls("annotate, no tool attached", marked, SAMPLED_OUT_US)
    yield bench.calls("oom_forensics, nothing failed", guarded, SAMPLED_OUT_US)
    probe = MemoryProbe(bench.emitter)
    yield bench.sent("allocator.report, eight numbers", hook.report, None, calls=CALLS // 20)
    yield bench.calls("of it once a second: malloc and Python", lambda: (malloc_bytes(), python_blocks()), None, calls=CALLS // 100)
    yield bench.calls("probe.look, nobody asks", probe.look, None, calls=CALLS // 20)


GROUPS = (of_handles, of_requests, of_logits, of_modules, of_the_rest)


def measure(groups: Sequence[Callable[[Bench], Iterator[Cost]]] = GROUPS) -> Iterator[Cost]:
    """Every cost of these groups, as it is measured. torch is left with one thread."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "statsd.sock")
        for group in groups:
            yield from group(bench)
        yield Cost("dropped", (float(sum(bench.emitter.stats().dropped.values())),))
        bench.receiver.close()


def main() -> None:
    failed = []
    print(f"{'':50} {'best':>9} {'median':>9} {'budget':>8}   us a call")
    for cost in measure():
        if cost.name == "dropped":
            print(f"dropped: {cost.median_us:.0f}")
            continue
        budget = "" if cost.budget_us is None else f"{cost.budget_us:8.1f}"
        of_budget = 0.0 if cost.budget_us is None else cost.median_us / cost.budget_us
        over = "  over budget" if of_budget > 1 else ""
        print(f"{cost.name:50} {min(cost.runs_us):9.3f} {cost.median_us:9.3f} {budget:>8}{over}")
        if of_budget > FAILS_BEYOND:
            failed.append(cost.name)
    if failed:
        sys.exit(f"beyond {FAILS_BEYOND:g} times the budget: {', '.join(failed)}")


if __name__ == "__main__":
    main()
