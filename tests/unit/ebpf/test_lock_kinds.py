"""Who fights for a lock, and who only waits for work."""

from __future__ import annotations

from aie_ebpf.lock_kinds import IDLE, LOCK, LockKinds, Seen

AT = (10, 0x7F00)


def test_those_that_hand_on_what_they_held() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=100, handoffs=100, timed=100, wait_s=3.0, held_s=0.95, period_s=1.0))
    assert kinds.kind(AT) == LOCK


def test_a_lock_that_is_fought_for_now_and_then() -> None:
    """One waits while one holds, for a tenth of the time."""
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=10, handoffs=9, timed=9, wait_s=0.1, held_s=0.09, period_s=1.0))
    assert kinds.kind(AT) == LOCK


def test_a_lock_that_is_held_for_seconds() -> None:
    """Each reading of a second sees a hand-off every fourth time: with the second of them it is a lock."""
    kinds = LockKinds()
    for _ in range(4):
        kinds.note(AT, Seen(wait_s=3.0, period_s=1.0))
    kinds.note(AT, Seen(waits=1, handoffs=1, timed=1, wait_s=3.0, held_s=4.0, period_s=1.0))
    for _ in range(3):
        kinds.note(AT, Seen(wait_s=3.0, period_s=1.0))
    assert kinds.note(AT, Seen(waits=1, handoffs=1, timed=1, wait_s=3.0, held_s=4.0, period_s=1.0)) == LOCK


def test_workers_that_others_wake() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=100, handoffs=0, timed=0, wait_s=8.0, held_s=0.0, period_s=1.0))
    assert kinds.kind(AT) == IDLE


def test_workers_that_pass_their_queues_lock_on_at_once() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=1000, handoffs=900, timed=900, wait_s=25.0, held_s=0.02, period_s=1.0))
    assert kinds.kind(AT) == IDLE


def test_a_lock_that_others_take_ahead_of_those_that_wait() -> None:
    """As seen: five threads, of which two pass it to each other; 5 ms each time, and one time in eight after a wait."""
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=390, handoffs=389, timed=50, wait_s=6.0, held_s=0.25, period_s=2.2))
    assert kinds.kind(AT) == LOCK


def test_workers_that_take_from_their_queue_what_they_have_put_there_themselves() -> None:
    """As seen: a task that submits the next one, in a pool of sixteen. Who is woken finds nothing to do."""
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=318, handoffs=316, timed=3, wait_s=29.0, held_s=0.01, period_s=2.0))
    assert kinds.kind(AT) == IDLE


def test_a_single_hand_off_is_no_fight() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=1, handoffs=1, timed=1, wait_s=0.5, held_s=0.5, period_s=1.0))
    assert kinds.kind(AT) == IDLE


def test_what_was_long_ago_counts_little() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=10, handoffs=10, timed=10, wait_s=3.0, held_s=1.0, period_s=1.0))
    for _ in range(60):
        kinds.note(AT, Seen(waits=10, handoffs=0, timed=0, wait_s=8.0, held_s=0.0, period_s=1.0))
    assert kinds.kind(AT) == IDLE


def test_an_address_that_was_never_seen_and_one_that_is_forgotten() -> None:
    kinds = LockKinds()
    kinds.note(AT, Seen(waits=10, handoffs=10, timed=10, wait_s=3.0, held_s=1.0, period_s=1.0))
    assert kinds.kind((11, AT[1])) == IDLE
    kinds.forget(AT[0])
    assert kinds.kind(AT) == IDLE


def test_memory_is_bounded() -> None:
    kinds = LockKinds()
    for address in range(20_000):
        kinds.note((10, address), Seen(waits=10, handoffs=10, timed=10, wait_s=1.0, held_s=1.0, period_s=1.0))
    assert kinds.kind((10, 0)) == IDLE, "the oldest gave way"
    assert kinds.kind((10, 19_999)) == LOCK
