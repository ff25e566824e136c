"""Events on their way: which are taken, which are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aie_agent.events import MAX_EVENTS, EventLog
from aie_agent.sources.statsd_events import PER_ENGINE, PER_MINUTE, EventIntake
from aie_agent.sources.statsd_reasons import Reason
from aie_telemetry.api import Event
from aie_telemetry.events import MAX_DETAILS, MAX_EVENT_BYTES, MAX_NAME_CHARS, MAX_SUMMARY_CHARS, MAX_WORD_CHARS, encode_event
from aie_telemetry.statsd import Parser


def oom(engine: str = "chat", time_s: float = 1000.0, **details: float) -> Event:
    return Event(time_s=time_s, kind="oom", engine=engine, summary="out of memory", details=details)


class TestOnTheWire:
    def test_read_in_either_dialect(self) -> None:
        line = encode_event(oom(asked_bytes=1.0))
        for datadog in (True, False):
            parsed = Parser(datadog=datadog).line(line)
            assert (parsed.event, parsed.ignored, parsed.samples, parsed.refusals) == (oom(asked_bytes=1.0), None, [], [])

    def test_line_breaks_and_other_alphabets(self) -> None:
        event = Event(time_s=1.0, kind="oom", engine="chat", summary="a\nb|c:d # äé", details={"where": "päge\n2"})
        (parsed,) = Parser().packet(encode_event(event) + b"\n")
        assert parsed.event == event

    def test_with_fields_behind_it(self) -> None:
        assert Parser().line(encode_event(oom()) + b"|t:error|#a:b").event == oom()

    def test_another_programs_is_passed_over(self) -> None:
        parsed = Parser().line(b"_e{5,4}:title|text")
        assert (parsed.event, parsed.ignored) == (None, "event")

    def test_malformed_ones_of_ours(self) -> None:
        good = encode_event(oom())
        lines = [
            good[:-1],
            good.replace(b'"kind":"oom"', b'"kind":"xxx"'),
            good.replace(b'"engine":"chat"', b'"engine":" "   '),
            b"_e{7,2}:aie.oom|{}",
            b"_e{9,2}:aie.party|{}",
            b"_e{7,3}:aie.oom|\xc3\xa9{",
        ]
        for line in lines:
            for datadog in (True, False):
                parsed = Parser(datadog=datadog).line(line)
                assert parsed.event is None, line
                assert [refusal.reason for refusal in parsed.refusals] == ["bad_event"], line

    @pytest.mark.parametrize(
        "more",
        [
            {"summary": "x" * (MAX_SUMMARY_CHARS + 1)},
            {"details": {f"k{at}": at for at in range(MAX_DETAILS + 1)}},
            {"details": {"k" * (MAX_NAME_CHARS + 1): 1}},
            {"details": {"where": "v" * (MAX_WORD_CHARS + 1)}},
            {"summary": "é" * 300, "details": {f"k{at}": "v" * 100 for at in range(9)}},
            {"unknown": "x" * 8000},
        ],
        ids=["summary", "details", "name", "word", "bytes", "a field that nobody reads"],
    )
    def test_larger_than_hooks_make_them(self, more: dict[str, object]) -> None:
        """Anybody can send them, and the agent keeps and shows them: 400 details were 8 kB a line of aie-top."""
        body = {"time_s": 1.0, "kind": "oom", "engine": "chat", "summary": "boom", "details": {}} | more
        text = json.dumps(body, ensure_ascii=False).encode()
        line = b"_e{7,%d}:aie.oom|%s" % (len(text), text)
        for datadog in (True, False):
            parsed = Parser(datadog=datadog).line(line)
            assert (parsed.event, [refusal.reason for refusal in parsed.refusals]) == (None, ["bad_event"])

    def test_what_hooks_make_is_never_too_large(self) -> None:
        details: dict[str, float | str] = {"n" * 100: "v" * 1000} | {f"k{at}": float(at) for at in range(100)}
        line = encode_event(Event(time_s=1.0, kind="oom", engine="chat", summary="s" * 1000, details=details))
        event = Parser().line(line).event
        assert event is not None
        assert len(line) <= MAX_EVENT_BYTES
        assert event.summary == "s" * MAX_SUMMARY_CHARS
        assert event.details["n" * MAX_NAME_CHARS] == "v" * MAX_WORD_CHARS

    def test_the_line_in_the_document(self) -> None:
        document = (Path(__file__).parents[3] / "docs/statsd.md").read_text()
        (line,) = [line.strip() for line in document.splitlines() if line.startswith("    _e{")]
        event = Parser().line(line.encode()).event
        assert event is not None
        assert event.details == {"asked_bytes": 1e9}


class TestIntake:
    def test_a_flood_of_one_leaves_room_for_others(self) -> None:
        intake = EventIntake()
        taken = sum(intake.add(oom("loud")) for _ in range(1000))
        assert taken == PER_ENGINE
        assert intake.add(oom("quiet"))
        assert [event.engine for event in intake.take(0.0)] == ["loud"] * PER_ENGINE + ["quiet"]
        assert not intake.add(oom("loud")), "the minute is not over"
        assert intake.take(61.0) == []
        assert intake.add(oom("loud"))
        assert intake.refused == {Reason.EVENT_LIMIT: 1000 - PER_ENGINE + 1}
        assert intake.taken == {"oom": PER_ENGINE + 2}

    def test_a_flood_of_names(self) -> None:
        intake = EventIntake()
        assert sum(intake.add(oom(f"e{at}")) for at in range(1000)) == PER_MINUTE

    def test_a_clock_that_goes_back_does_not_close_it(self) -> None:
        intake = EventIntake()
        for _ in range(PER_ENGINE):
            intake.add(oom())
        intake.take(1000.0)
        intake.take(10.0)
        assert intake.add(oom())


class TestLog:
    def test_the_newest_first_and_not_without_end(self) -> None:
        log = EventLog()
        for at in range(MAX_EVENTS + 50):
            log.add(oom(time_s=1000.0 + at), 1000.0 + at)
        times = [event.time_s for event in log.newest()]
        assert len(times) == MAX_EVENTS
        assert times[:2] == [1249.0, 1248.0]
        assert [event.time_s for event in log.newest(1)] == [1249.0]

    def test_a_sender_with_another_clock(self) -> None:
        log = EventLog()
        for claimed in (1e12, 5.0, 1030.0, 990.0):
            log.add(oom(time_s=claimed), 1000.0)
        assert [event.time_s for event in log.newest()] == [990.0, 1000.0, 1000.0, 1000.0]

    def test_under_the_name_that_the_engine_goes_by_now(self) -> None:
        names = {"vllm-8000": "chat"}
        log = EventLog(lambda name: names.get(name, name))
        log.add(oom("vllm-8000"), 1000.0)
        assert log.newest()[0].engine == "chat"


def test_nobody_may_send_the_agents_own_kind() -> None:
    event = Event(time_s=1.0, kind="finding", engine="chat", summary="x")
    with pytest.raises(ValueError, match="finding"):
        encode_event(event)
    text = json.dumps({"time_s": 1.0, "kind": "finding", "engine": "chat", "summary": "x"})
    parsed = Parser().line(f"_e{{11,{len(text)}}}:aie.finding|{text}".encode())
    assert parsed.event is None
    assert parsed.refusals
