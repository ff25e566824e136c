"""Receivers that are absent, slow, restarted or replaced, and a spent budget: nothing raises, everything is accounted for."""

from __future__ import annotations

import logging
import math
import socket
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hook_receivers import Clock, UdpReceiver, UnixReceiver, hellos, levels, manual_emitter, observations, total, totals
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_telemetry.statsd import Sample

ITL = "aie_engine_inter_token_seconds"
TOKENS = "aie_engine_generation_tokens_total"
DROPPED = "aie_hooks_dropped_total"


def test_nobody_listens_yet(socket_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aie_hooks")
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    tokens, gaps = emitter.counter(TOKENS, model="m"), emitter.histogram(ITL, model="m")
    for _ in range(5):
        tokens.add(2)
        gaps.observe(0.1)
        emitter.flush()
        clock.now_s += 2.0
    assert emitter.stats().dropped == {"would_block": 0, "budget": 0, "no_receiver": 5, "invalid": 0}
    assert len([record for record in caplog.records if "no receiver" in record.message]) == 1

    receiver = UnixReceiver(socket_path)
    gaps.observe(0.2)
    emitter.flush()
    samples = receiver.samples()
    assert len(hellos(samples)) == 1
    assert total(samples, TOKENS) == 10
    assert observations(samples, ITL) == [0.2]
    assert totals(samples)[DROPPED, (("engine", "chat"), ("reason", "no_receiver"))] == 5
    assert len([record for record in caplog.records if "again" in record.message]) == 1
    receiver.close()


def test_an_absent_receiver_is_looked_for_once_a_second(socket_path: Path, clock: Clock) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    receiver = UnixReceiver(socket_path)
    clock.now_s += 0.99
    emitter.flush()
    assert receiver.samples() == []
    clock.now_s += 0.01
    emitter.flush()
    assert len(hellos(receiver.samples())) == 1
    receiver.close()


def test_a_restarted_receiver_learns_everything_again(receiver: UnixReceiver, socket_path: Path, clock: Clock) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    tokens = emitter.counter(TOKENS, model="m")
    emitter.gauge("capacity").set(4096)
    tokens.add(1)
    emitter.flush()
    assert total(receiver.samples(), TOKENS) == 1
    receiver.close()

    second = UnixReceiver(socket_path)
    clock.now_s += 0.5
    tokens.add(10)
    emitter.flush()
    clock.now_s += 0.5
    tokens.add(100)
    emitter.flush()
    samples = second.samples()
    assert len(hellos(samples)) == 1
    assert total(samples, TOKENS) == 110
    assert levels(samples)["capacity", (("engine", "chat"),)] == 4096
    second.close()


def test_a_socket_that_was_replaced_is_noticed_though_the_old_one_is_still_open(
    receiver: UnixReceiver, socket_path: Path, clock: Clock
) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    tokens = emitter.counter(TOKENS, model="m")
    receiver.packets()
    second = UnixReceiver(socket_path)
    tokens.add(1)
    emitter.flush()
    clock.now_s += 1.0
    tokens.add(2)
    emitter.flush()
    assert total(receiver.samples(), TOKENS) == 1
    samples = second.samples()
    assert (len(hellos(samples)), total(samples, TOKENS)) == (1, 2)
    second.close()


def test_a_socket_whose_name_is_gone_counts_as_absent(receiver: UnixReceiver, socket_path: Path, clock: Clock) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    receiver.packets()
    socket_path.unlink()
    clock.now_s += 1.0
    emitter.histogram(ITL, model="m").observe(1.0)
    emitter.flush()
    assert receiver.packets() == []
    assert emitter.stats().dropped["no_receiver"] == 1


@pytest.mark.parametrize("what", ["directory", "file", "stream"])
def test_something_else_at_the_path(socket_path: Path, what: str) -> None:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if what == "directory":
        socket_path.mkdir()
    elif what == "file":
        socket_path.touch()
    else:
        stream.bind(str(socket_path))
        stream.listen()
    emitter = manual_emitter(f"unix://{socket_path}")
    emitter.histogram(ITL, model="m").observe(1.0)
    emitter.flush()
    stream.close()
    assert emitter.stats().dropped["no_receiver"] == 1


def test_a_slow_receiver_costs_observations_but_no_totals(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    tokens, gaps, level = emitter.counter(TOKENS, model="m"), emitter.histogram(ITL, model="m"), emitter.gauge("level")
    offered = 0
    while emitter.stats().dropped["would_block"] < 500:
        tokens.add(1)
        level.set(offered)
        gaps.observe(0.5)
        offered += 1
        emitter.flush()
    samples: list[Sample] = []
    while fresh := receiver.samples():
        samples += fresh
        emitter.flush()
    assert total(samples, TOKENS) == offered
    assert levels(samples)["level", (("engine", "chat"),)] == offered - 1
    dropped = emitter.stats().dropped
    assert len(observations(samples, ITL)) + dropped["would_block"] == offered
    assert totals(samples)[DROPPED, (("engine", "chat"), ("reason", "would_block"))] == dropped["would_block"]


def test_the_packet_budget_holds_and_refills(receiver: UnixReceiver, socket_path: Path, clock: Clock) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock, packets_per_second=5)
    tokens, gaps = emitter.counter(TOKENS, model="m"), emitter.histogram(ITL, model="m")
    offered, samples = 0, []
    for _ in range(40):
        for _ in range(1000):
            gaps.observe(0.123456)
        tokens.add(1000)
        offered += 1000
        emitter.flush()
        clock.now_s += 0.1
        samples += receiver.samples()
    # A full bucket at the start, and what came in over four seconds.
    assert emitter.stats().packets_sent <= 5 + 4 * 5
    clock.now_s += 1.0
    emitter.flush()
    while fresh := receiver.samples():
        samples += fresh
        clock.now_s += 1.0
        emitter.flush()
    dropped = emitter.stats().dropped
    assert dropped["budget"] > 0
    assert len(observations(samples, ITL)) + dropped["budget"] == offered
    assert total(samples, TOKENS) == offered


def test_udp_without_a_receiver(clock: Clock) -> None:
    receiver = UdpReceiver()
    port = receiver.port
    receiver.close()
    emitter = manual_emitter(f"udp://127.0.0.1:{port}", clock=clock)
    tokens, gaps = emitter.counter(TOKENS, model="m"), emitter.histogram(ITL, model="m")
    for _ in range(3):
        tokens.add(1)
        gaps.observe(1.0)
        emitter.flush()
        clock.now_s += 1.0
    assert emitter.stats().dropped["no_receiver"] == 3

    back = UdpReceiver(port)
    clock.now_s += 1.0
    emitter.flush()
    samples = back.samples()
    assert len(hellos(samples)) == 1
    assert total(samples, TOKENS) == 3
    back.close()


def test_a_restarted_udp_receiver_is_greeted_again(udp_receiver: UdpReceiver, clock: Clock) -> None:
    emitter = manual_emitter(f"udp://127.0.0.1:{udp_receiver.port}", clock=clock)
    tokens = emitter.counter(TOKENS, model="m")
    udp_receiver.packets()
    port = udp_receiver.port
    udp_receiver.close()
    for _ in range(3):
        tokens.add(1)
        emitter.flush()
    back = UdpReceiver(port)
    clock.now_s += 1.0
    emitter.flush()
    assert len(hellos(back.samples())) == 1
    back.close()


def test_a_host_without_a_name_server_neither_raises_nor_blocks_a_flush(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    lookups = []

    def fail(host: str, *_: object, flags: int = 0, **__: object) -> Any:
        if not flags & socket.AI_NUMERICHOST:
            lookups.append(host)
        raise socket.gaierror(socket.EAI_AGAIN, "no name server")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    emitter = manual_emitter("udp://statsd.example:8125", clock=clock)
    assert lookups == ["statsd.example"]
    for _ in range(3):
        clock.now_s += 2.0
        emitter.flush()
    assert lookups == ["statsd.example"]


class _Hostile:
    def __float__(self) -> float:
        raise RuntimeError("not a number, and not a TypeError either")


VALUES = st.one_of(
    st.floats(),
    st.integers(),
    st.just(10**400),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
    st.lists(st.floats(), max_size=1),
    st.builds(_Hostile),
)


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        return math.nan


@given(st.lists(VALUES, max_size=20))
@settings(deadline=None)
def test_no_value_raises_and_none_is_lost_silently(values: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s"
        receiver = UnixReceiver(path)
        emitter = manual_emitter(f"unix://{path}")
        counter, gauge, histogram = emitter.counter("c"), emitter.gauge("g"), emitter.histogram("h")
        invalid = 0
        for value in values:
            counter.add(value)
            gauge.set(value)
            histogram.observe(value)
            number = _number(value)
            invalid += not 0.0 <= number <= 2.0**53
            invalid += not math.isfinite(number)
            invalid += not 0.0 <= number < math.inf
        emitter.flush()
        samples = receiver.samples()
        assert emitter.stats().dropped["invalid"] == invalid
        assert totals(samples)[DROPPED, (("engine", "chat"), ("reason", "invalid"))] == invalid
        kept = [number for number in map(_number, values) if 0.0 <= number < math.inf]
        assert observations(samples, "h") == pytest.approx(kept, rel=1e-5)
        emitter.close()
        receiver.close()


STEPS = st.lists(
    st.sampled_from(["observe", "observe", "add", "set", "flush", "second", "drain", "up", "down", "replace"]), max_size=60
)


@given(STEPS, st.sampled_from([1.0, 3.0, math.inf]))
@settings(deadline=None, max_examples=200)
def test_whatever_happens_sent_and_dropped_add_up(steps: list[str], packets_per_second: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = _World(Path(folder) / "s", packets_per_second)
        for step in steps:
            getattr(world, step)()
        world.settle()
        dropped = world.emitter.stats().dropped
        assert len(observations(world.samples, ITL)) + sum(dropped.values()) == world.offered
        assert total(world.samples, TOKENS) == world.added
        assert total(world.samples, DROPPED) == sum(dropped.values())
        if world.level is not None:
            assert levels(world.samples)["level", (("engine", "chat"),)] == world.level
        world.close()


class _World:
    """An emitter, a receiver that comes and goes but reads what it was sent, and an account of what was offered."""

    def __init__(self, path: Path, packets_per_second: float) -> None:
        self.path = path
        self.clock = Clock()
        self.emitter = manual_emitter(f"unix://{path}", clock=self.clock, packets_per_second=packets_per_second)
        self.tokens, self.gaps = self.emitter.counter(TOKENS, model="m"), self.emitter.histogram(ITL, model="m")
        self.gauge = self.emitter.gauge("level")
        self.receiver: UnixReceiver | None = None
        self.samples: list[Sample] = []
        self.offered, self.added, self.level = 0, 0, None

    def observe(self) -> None:
        for _ in range(150):
            self.gaps.observe(0.1 + self.offered)
            self.offered += 1

    def add(self) -> None:
        self.tokens.add(3)
        self.added += 3

    def set(self) -> None:
        self.level = self.offered - self.added
        self.gauge.set(self.level)

    def flush(self) -> None:
        self.emitter.flush()

    def second(self) -> None:
        self.clock.now_s += 1.0

    def drain(self) -> None:
        if self.receiver is not None:
            self.samples += self.receiver.samples()

    def up(self) -> None:
        if self.receiver is None:
            self.receiver = UnixReceiver(self.path)

    def down(self) -> None:
        if self.receiver is not None:
            self.drain()
            self.receiver.close()
            self.receiver = None

    def replace(self) -> None:
        self.down()
        self.up()

    def settle(self) -> None:
        """Until everything that waits has been sent."""
        self.up()
        quiet = 0
        while quiet < 3:
            before = len(self.samples)
            self.second()
            self.flush()
            self.drain()
            quiet = quiet + 1 if len(self.samples) == before else 0

    def close(self) -> None:
        self.emitter.close()
        self.down()
