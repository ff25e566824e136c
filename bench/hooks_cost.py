"""What a call into `aie_hooks` costs the engine: formatting and sending included, against a real Unix socket.

    python bench/hooks_cost.py

Prints microseconds a call, the best and the median of 15 runs, less what the loop itself takes. Budgets: 0.5 us for a call that is
sampled out, 2 us for one that is sent. The socket is emptied between the runs, outside the measurement.
"""

from __future__ import annotations

import socket
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from aie_hooks import Emitter, RequestHooks, annotate

RUNS = 15
CALLS = 20_000
PER_FLUSH = 100
ITL = "aie_engine_inter_token_seconds"


class Bench:
    """An emitter without a thread, and the socket that it sends to."""

    def __init__(self, path: Path) -> None:
        self.receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.receiver.bind(str(path))
        self.receiver.setblocking(False)
        self.emitter = Emitter("bench", f"unix://{path}", flush_interval_s=float("inf"), packets_per_second=float("inf"))

    def flush(self) -> None:
        self.emitter.flush()

    def drain(self) -> None:
        try:
            while True:
                self.receiver.recv(65536)
        except BlockingIOError:
            pass

    def calls(self, call: Callable[[], object]) -> list[float]:
        """Microseconds a call, one number a run; the flush is not part of it."""
        runs = []
        for _ in range(RUNS):
            began = time.perf_counter()
            for _ in range(CALLS):
                call()
            runs.append((time.perf_counter() - began) / CALLS * 1e6)
            self.flush()
            self.drain()
        return runs

    def sent(self, call: Callable[[], object]) -> list[float]:
        """The same with a flush every hundred calls, as an engine's step would do it."""
        runs = []
        for _ in range(RUNS):
            spent = 0.0
            for _ in range(CALLS // PER_FLUSH):
                began = time.perf_counter()
                for _ in range(PER_FLUSH):
                    call()
                self.flush()
                spent += time.perf_counter() - began
                self.drain()
            runs.append(spent / CALLS * 1e6)
        return runs


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "statsd.sock")
        emitter = bench.emitter
        rare, every = emitter.histogram(ITL, 1e-6, model="m"), emitter.histogram(ITL, model="m")
        unsampled, sampled = RequestHooks(emitter, model="m", rate=1e-6).enter(), RequestHooks(emitter, model="m", rate=1.0).enter()
        counter, gauge = emitter.counter("aie_engine_prompt_tokens_total", model="m"), emitter.gauge("depth")

        def marked() -> None:
            with annotate("x"):
                pass

        loop = statistics.median(bench.calls(lambda: None))
        for name, runs in (
            ("histogram.observe, sampled out", bench.calls(lambda: rare.observe(0.0123))),
            ("histogram.observe, sent", bench.sent(lambda: every.observe(0.0123))),
            ("counter.add", bench.calls(lambda: counter.add(1))),
            ("gauge.set", bench.calls(lambda: gauge.set(3.0))),
            ("request.token, sampled out", bench.calls(unsampled.token)),
            ("request.token, sent", bench.sent(sampled.token)),
            ("annotate, no tool attached", bench.calls(marked)),
            ("flush with nothing to send", bench.calls(bench.flush)),
        ):
            print(f"{name:32} best {min(runs) - loop:6.3f} us, median {statistics.median(runs) - loop:6.3f} us")
        dropped = sum(emitter.stats().dropped.values())
        print(f"dropped: {dropped}")
        bench.receiver.close()


if __name__ == "__main__":
    main()
