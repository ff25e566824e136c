"""Threads, the emitter's own thread, forks, and the end of a process."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

from hook_receivers import UnixReceiver, hellos, manual_emitter, observations, total

from aie_hooks import Emitter
from aie_hooks.ticker import Ticker
from aie_telemetry.statsd import Sample

ITL = "aie_engine_inter_token_seconds"
TOKENS = "aie_engine_generation_tokens_total"


def _run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A process of its own, since a fork within pytest would have pytest's threads and buffers in it."""
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def test_threads_lose_nothing(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = Emitter("chat", f"unix://{socket_path}", flush_interval_s=0.001, packets_per_second=float("inf"))
    tokens, gaps = emitter.counter(TOKENS, model="m"), emitter.histogram(ITL, model="m")
    threads, each = 6, 3000

    def work() -> None:
        for number in range(each):
            tokens.add(2)
            gaps.observe(0.5)
            if number % 50 == 0:
                emitter.flush()

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    samples: list[Sample] = []
    while any(worker.is_alive() for worker in workers):
        samples += receiver.samples()
    for worker in workers:
        worker.join()

    def accounted() -> tuple[float, int]:
        return total(samples, TOKENS), len(observations(samples, ITL)) + sum(emitter.stats().dropped.values())

    deadline = time.monotonic() + 60
    while accounted() != (2 * threads * each, threads * each) and time.monotonic() < deadline:
        emitter.flush()
        samples += receiver.samples()
    assert accounted() == (2 * threads * each, threads * each)
    emitter.close()


def test_the_thread_sends_without_a_flush(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = Emitter("chat", f"unix://{socket_path}", flush_interval_s=0.001)
    receiver.packets()
    tokens = emitter.counter(TOKENS, model="m")
    for _ in range(5):
        tokens.add(7)
        samples: list[Sample] = []
        while total(samples, TOKENS) < 7:
            samples += receiver.wait_for_samples()
        assert total(samples, TOKENS) == 7
    emitter.close()


def test_a_full_socket_is_tried_again_without_new_input(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = Emitter("chat", f"unix://{socket_path}", flush_interval_s=0.001, packets_per_second=float("inf"))
    gaps, tokens = emitter.histogram(ITL, model="m"), emitter.counter(TOKENS, model="m")
    while not emitter.stats().dropped["would_block"]:
        gaps.observe(0.5)
        emitter.flush()
    tokens.add(5)
    samples: list[Sample] = []
    while total(samples, TOKENS) < 5:
        samples += receiver.wait_for_samples()
    emitter.close()


def test_no_ring_is_missed() -> None:
    waiting: list[int] = []
    taken: list[int] = []
    done = threading.Event()

    def beat() -> None:
        taken.extend(waiting[len(taken) :])
        done.set()

    ticker = Ticker(beat, 1e-6)
    for number in range(2000):
        waiting.append(number)
        if ticker.asleep:
            ticker.ring()
        while len(taken) <= number:
            assert done.wait(60), f"the beat for {number} never came"
            done.clear()
    ticker.stop()
    assert taken == waiting


def test_an_infinite_interval_means_no_thread(receiver: UnixReceiver, socket_path: Path) -> None:
    before = set(threading.enumerate())  # threads of tests before may still be ending
    emitter = manual_emitter(f"unix://{socket_path}")
    emitter.counter(TOKENS, model="m").add()
    assert set(threading.enumerate()) <= before


def test_what_is_left_is_sent_at_exit(receiver: UnixReceiver, socket_path: Path) -> None:
    _run(
        """
        import sys
        from aie_hooks import Emitter
        emitter = Emitter("chat", "unix://" + sys.argv[1], flush_interval_s=1000)
        emitter.counter("aie_engine_generation_tokens_total", model="m").add(3)
        """,
        str(socket_path),
    )
    assert total(receiver.samples(), TOKENS) == 3


def test_parent_and_child_emit_each_for_itself(receiver: UnixReceiver, socket_path: Path) -> None:
    done = _run(
        """
        import os, sys
        from aie_hooks import Emitter
        emitter = Emitter("chat", "unix://" + sys.argv[1], flush_interval_s=1000)
        tokens = emitter.counter("aie_engine_generation_tokens_total", model="m")
        gaps = emitter.histogram("aie_engine_inter_token_seconds", model="m")
        level = emitter.gauge("level")
        tokens.add(5); gaps.observe(5); level.set(5)
        pid = os.fork()
        if pid == 0:
            tokens.add(7); gaps.observe(7)
            emitter.flush()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        emitter.flush()
        print(pid, os.getpid())
        """,
        str(socket_path),
    )
    child, parent = done.stdout.split()
    samples = receiver.samples()
    assert sorted(hellos(samples)) == sorted([parent, child])
    assert set(receiver.pids) == {int(parent), int(child)}
    assert total(samples, TOKENS) == 12
    assert sorted(observations(samples, ITL)) == [5, 7]
    assert [sample.value for sample in samples if sample.name == "level"] == [5]


def test_a_child_gets_a_thread_of_its_own_and_no_lock_of_the_parents(receiver: UnixReceiver, socket_path: Path) -> None:
    """Forks while other threads are in the middle of everything; a lock that stayed taken would hang a child."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(_FORK_IN_A_STORM), str(socket_path)], stderr=subprocess.PIPE, text=True
    )
    samples: list[Sample] = []
    while process.poll() is None:
        samples += receiver.samples()
    assert process.stderr is not None
    assert (process.wait(), process.stderr.read()) == (0, "")
    process.stderr.close()
    samples += receiver.samples()
    assert total(samples, "child_total") == 30


_FORK_IN_A_STORM = """
    import os, sys, threading, time
    from aie_hooks import Emitter
    emitter = Emitter("chat", "unix://" + sys.argv[1], flush_interval_s=0.001, packets_per_second=1000)
    mine, children = emitter.counter("parent_total"), emitter.counter("child_total")
    gaps = emitter.histogram("gap_seconds")
    stop = threading.Event()
    def storm():
        while not stop.is_set():
            mine.add(); gaps.observe(1.0); emitter.flush(); emitter.counter("parent_total")
    threads = [threading.Thread(target=storm) for _ in range(3)]
    for thread in threads: thread.start()
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            children.add()
            # A child announces its counters: four of what was dropped and these two, in one packet.
            deadline = time.monotonic() + 60
            while emitter.stats().values_sent < 6 and time.monotonic() < deadline:
                time.sleep(0.001)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    stop.set()
    for thread in threads: thread.join()
"""
