"""Events through the emitter: one packet, at once, and never an error."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hook_receivers import Clock, UnixReceiver, events, hellos, manual_emitter

from aie_hooks import Emitter
from aie_telemetry.api import Event


def _event(**details: float | str) -> Event:
    return Event(time_s=1.0, kind="oom", engine="chat", summary="s", details=details)


def test_a_receiver_that_is_full_is_not_waited_for(receiver: UnixReceiver, emitter: Emitter) -> None:
    sent = 0
    while emitter.event(_event()):  # a Unix socket holds some ten packets
        sent += 1
    assert emitter.stats().dropped["would_block"] == 1
    assert len(events(receiver)) == sent


def test_the_engine_says_who_it_is_before_its_first_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    receiver.packets()
    emitter._greeted_generation = 0  # as after a restart of the agent
    assert emitter.event(_event())
    packets = receiver.packets()
    assert [packet[:3] for packet in packets] == [b"aie", b"_e{"]


def test_an_event_takes_from_the_budget(receiver: UnixReceiver, socket_path: Path) -> None:
    clock = Clock()
    emitter = manual_emitter(f"unix://{socket_path}", packets_per_second=3.0, clock=clock)
    # Two packets are spent: the hello line, and the counters that are announced.
    assert [emitter.event(_event()) for _ in range(3)] == [True, False, False]
    assert emitter.stats().dropped["budget"] == 2
    clock.now_s += 1.0
    assert emitter.event(_event())
    assert len(events(receiver)) == 2


@pytest.mark.parametrize("kind", ["nonsense", "oom"])
def test_an_event_that_cannot_be_said_is_counted(receiver: UnixReceiver, emitter: Emitter, kind: str) -> None:
    details: dict[str, Any] = {} if kind != "oom" else {"set": {object()}}
    event = Event(time_s=1.0, kind=kind, engine="chat", summary="s", details=details)
    assert not emitter.event(event)
    assert emitter.stats().dropped["invalid"] == 1
    assert events(receiver) == []


def test_without_a_receiver_an_event_is_dropped_and_counted(tmp_path: Path) -> None:
    emitter = manual_emitter(f"unix://{tmp_path}/nobody.sock")
    assert not emitter.event(_event())
    assert emitter.stats().dropped["no_receiver"] == 1


def test_an_emitter_that_is_off_or_closed_sends_no_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    assert not manual_emitter("off").event(_event())
    emitter.close()
    assert not emitter.event(_event())
    assert events(receiver) == []


def test_a_flush_that_hangs_does_not_hang_the_event(receiver: UnixReceiver, emitter: Emitter) -> None:
    hanging = threading.Thread(target=emitter._flushing.take)  # and the thread's end does not free it
    hanging.start()
    hanging.join()
    assert not emitter.event(_event())
    emitter._flushing.leave()
    assert emitter.stats().dropped["would_block"] == 1
    assert emitter.event(_event())


def test_hello_lines_and_events_do_not_disturb_each_other(receiver: UnixReceiver, emitter: Emitter) -> None:
    assert len(hellos(receiver.samples())) == 1
    emitter.event(_event(x=1.0))
    emitter.flush()
    assert hellos(receiver.samples()) == []
