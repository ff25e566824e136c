"""Hooks in the middle of hooks, on one thread: no call waits for what its own thread holds, and every number stays exact.

What interrupts is a signal's handler, the garbage collector, and, so that no place is left to luck, a trace function that calls
hooks at every single bytecode of our own code. Each runs in a process of its own, which is killed if it hangs.
"""

from __future__ import annotations

import select
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hook_receivers import UnixReceiver, levels, total

_HANGS_AFTER_S = 60

_PRELUDE = """
    import faulthandler, gc, os, signal, sys, threading, time
    from aie_hooks import Emitter, RequestHooks, oom_forensics
    from aie_telemetry.api import Event
    faulthandler.dump_traceback_later(200, exit=True)
    options = dict(packets_per_second=float("inf"), flush_interval_s=float(sys.argv[2]))
    emitter = Emitter("chat", "unix://" + sys.argv[1], **options)

    class Trace:
        def end(self, *_):
            spans.append(1)

    class Tracer:
        def begin(self, headers, operation, *, sampled):
            return Trace()

    spans = []
    hooks = RequestHooks(emitter, model="m", rate=0.01, tracer=Tracer())
    forensics = oom_forensics(emitter, "cpu")
    count = 0

    def life(outcome):
        global count
        request = hooks.enter()
        request.tokenized(5)
        request.admitted()
        request.token()
        request.token(2)
        request.end(outcome)
        count += outcome == "ok"

    def everything():
        life("ok")
        emitter.counter("mine_total", kind="a").add(1)
        emitter.gauge("level").set(1.0)
        emitter.flush()
        emitter.stats()

    def report():
        assert hooks.wait_for_spans(60)
        emitter.flush()
        # The socket may be full: until all sums and levels are through.
        while any(sum._unsent for sum in emitter._counters.values()) or any(level._changed for level in emitter._gauges.values()):
            time.sleep(0.001)
            emitter.flush()
        print(count, interrupts, len(spans), flush=True)
        emitter.close()
        os._exit(0)

    interrupts = 0
"""


def _run(receiver: UnixReceiver, path: Path, body: str, interval_s: str) -> tuple[list[int], dict[str, float]]:
    """What the script printed, and the sums that arrived."""
    command = [sys.executable, "-c", textwrap.dedent(_PRELUDE) + textwrap.dedent(body), str(path), interval_s]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    samples = []
    while process.poll() is None:
        select.select([receiver.socket], [], [], 0.05)
        samples += receiver.samples()
    out, err = process.communicate(timeout=_HANGS_AFTER_S)
    assert process.returncode == 0, err[-3000:]
    samples += receiver.samples()
    names = ("requests_received_total", "requests_total", "generation_tokens_total", "prompt_tokens_total")
    sums = {name: total(samples, f"aie_engine_{name}") for name in names}
    sums |= {name: value for (name, _), value in levels(samples).items() if name.startswith("aie_engine_requests_")}
    return [int(word) for word in out.split()], sums


def _expected(requests: float) -> dict[str, float]:
    """Of requests that all ended, with five tokens of prompt and three of answer."""
    return {
        "requests_received_total": requests,
        "requests_total": requests,
        "generation_tokens_total": 3 * requests,
        "prompt_tokens_total": 5 * requests,
        "aie_engine_requests_waiting": 0.0,
        "aie_engine_requests_running": 0.0,
    }


_AT_EVERY_BYTECODE = """
    inside = False
    been_at = set()

    def trace(frame, what, argument):
        global interrupts, inside
        if "aie_hooks" not in frame.f_code.co_filename or inside or threading.current_thread() is not threading.main_thread():
            return None
        frame.f_trace_opcodes = True
        place = (frame.f_code, frame.f_lasti)
        if what == "opcode" and place not in been_at:
            been_at.add(place)  # once each, or a flush would never get to an end
            inside = True
            everything()
            forensics.__exit__(MemoryError, MemoryError(), None)
            interrupts += 1
            inside = False
        return trace

    before = count
    sys.settrace(trace)
    everything()
    life("ok")
    for _ in range(2):
        forensics.__exit__(MemoryError, MemoryError(), None)
    emitter.event(Event(time_s=0.0, kind="oom", engine="chat", summary="x"))
    emitter.failed("a test", ValueError())
    hooks.step([])
    Emitter("other", "unix://" + sys.argv[1], **options).close()
    sys.settrace(None)
    report()
"""


@pytest.mark.parametrize("interval_s", ["inf", "0.001"])
def test_hooks_at_every_bytecode_of_hooks(receiver: UnixReceiver, socket_path: Path, interval_s: str) -> None:
    (count, interrupts, spans), sums = _run(receiver, socket_path, _AT_EVERY_BYTECODE, interval_s)
    assert interrupts > 1000
    assert count == spans == interrupts + 2
    assert sums == _expected(count)


_SIGNALS = """
    def handler(*_):
        global interrupts
        interrupts += 1
        everything()

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0007)
    ends = time.monotonic() + 3
    main = 0
    while time.monotonic() < ends:
        request = hooks.enter()
        request.tokenized(5)
        request.admitted()
        request.token()
        request.token(2)
        request.end("error")
        main += 1
        if main % 50 == 0:
            emitter.flush()
    signal.setitimer(signal.ITIMER_REAL, 0)
    count += main
    interrupts += main
    report()
"""


@pytest.mark.parametrize("interval_s", ["inf", "0.001"])
def test_hooks_in_the_handler_of_a_signal(receiver: UnixReceiver, socket_path: Path, interval_s: str) -> None:
    (count, interrupts, spans), sums = _run(receiver, socket_path, _SIGNALS, interval_s)
    assert count == interrupts >= spans > 0
    assert sums == _expected(count)


_COLLECTIONS = """
    def generate():
        with hooks.enter() as request:
            request.tokenized(5)
            request.admitted()
            request.token(3)
            yield

    class Left:
        pass

    gc.set_threshold(3)
    ends = time.monotonic() + 3
    while time.monotonic() < ends:
        left = Left()
        left.generator = generate()
        left.me = left
        next(left.generator)
        del left
        interrupts += 1
        if interrupts % 50 == 0:
            emitter.flush()
    gc.collect()
    count = interrupts
    report()
"""


@pytest.mark.parametrize("interval_s", ["inf", "0.001"])
def test_generators_that_the_collector_closes(receiver: UnixReceiver, socket_path: Path, interval_s: str) -> None:
    (count, _, spans), sums = _run(receiver, socket_path, _COLLECTIONS, interval_s)
    assert count >= spans > 0
    assert sums == _expected(count)
