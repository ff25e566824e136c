"""A library that complains at every try is heard once a period; everybody else always."""

from __future__ import annotations

import logging

from aie_engine.log_limits import Rarely


def record(name: str, message: str, created_s: float, *arguments: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, __file__, 1, message, arguments, None)
    made.created = created_s
    return made


def test_the_same_message_is_let_through_once_a_period() -> None:
    rarely = Rarely("opentelemetry", 60)
    passed = [rarely.filter(record("opentelemetry.exporter", "failed: %s", 1000 + second, second)) for second in range(0, 200, 5)]
    assert [5 * index for index, through in enumerate(passed) if through] == [0, 60, 120, 180]


def test_other_messages_and_other_loggers_are_not_held_back() -> None:
    rarely = Rarely("opentelemetry", 60)
    for second in range(3):
        assert rarely.filter(record("opentelemetry.exporter", f"message {second}", 1000.0))
        assert rarely.filter(record("opentelemetry_other", "same", 1000.0))
        assert rarely.filter(record("aie_engine.loop", "same", 1000.0))


def test_what_it_remembers_is_bounded() -> None:
    rarely = Rarely("a", 60)
    for number in range(1_000):
        assert rarely.filter(record("a", f"message {number}", 1000.0))
    assert len(rarely._next_s) == 100
