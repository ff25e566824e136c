"""Events that are named in a recording: they take from what is found, and never add to it; what falls with them is another life."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import pytest

from aie_agent.analysis.leaks.events import comes_on_top, restarts_warm_up
from aie_agent.analysis.leaks.lines import Sample
from aie_agent.analysis.leaks.new_life import NewLife
from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge
from tests.fakes.leak_patterns import PATTERNS, Pattern, Trace, trace

ON_TOP: Final = ("lora_load", "graph_capture", "adapter loaded")
ANEW: Final = ("model_load", "engine_restart", "deployed", "reshard")
GRAVE: Final = {"none": 0, "not_enough_data": 0, "suspect": 1, "retention": 2, "fragmentation": 2, "accounting": 2, "leak": 2}
RUNS: Final = 10
NORMAL: Final = [each for each in PATTERNS if not each.is_leak]
LEAKS: Final = [each for each in PATTERNS if each.is_leak]


def _judge(recorded: Trace, events: Mapping[int, str], apart: int = 10) -> WholeVerdict:
    """Of a row in `apart` minutes, and those in which `events` are named."""

    def rows() -> Iterator[Sample]:
        for at in sorted({*range(0, len(recorded.times_s), apart), *events}):
            load = None if recorded.load is None else float(recorded.load[at])
            yield Sample(float(recorded.times_s[at]), float(recorded.size_bytes[at]), load=load, event=events.get(at, ""))

    return judge(rows(), Seen(), LeakSettings())


def _drawn(names: tuple[str, ...], length: int, random: np.random.Generator, most: int = 6) -> dict[int, str]:
    """One to `most` events at random."""
    at = random.integers(0, length, random.integers(1, most + 1))
    return {int(minute): str(random.choice(names)) for minute in at}


@pytest.mark.parametrize("pattern", NORMAL, ids=lambda each: each.name)
def test_events_never_make_anything_of_what_is_normal(pattern: Pattern) -> None:
    """240 runs of 72 h: a `lora_load` once made a leak of a curve that flattens, as yesterday was forgotten."""
    for seed in range(RUNS):
        random = np.random.default_rng(seed)
        recorded = trace(pattern, random)
        without = _judge(recorded, {})
        for names in (ON_TOP, ON_TOP + ANEW):
            events = _drawn(names, len(recorded.times_s), random)
            told = _judge(recorded, events)
            assert GRAVE[told.verdict] <= GRAVE[without.verdict], (seed, events, told)


@pytest.mark.parametrize("pattern", LEAKS, ids=lambda each: each.name)
def test_a_leak_with_events_is_told(pattern: Pattern) -> None:
    """As a leak, where a day of it has no event."""
    for seed in range(2):
        random = np.random.default_rng(seed)
        recorded = trace(pattern, random)
        drawn = _drawn(ON_TOP + ANEW, len(recorded.times_s), random)
        assert _judge(recorded, drawn, 3).verdict in ("leak", "suspect"), seed
        assert _judge(recorded, {600: "lora_load", 800: "engine_restart"}, 3).verdict == "leak", seed


def _life(hours: float, first_gb: float, gb_an_hour: float) -> list[float]:
    return [first_gb + gb_an_hour * minute / 60 for minute in range(0, int(hours * 60), 10)]


def _recorded(*lives: list[float]) -> Trace:
    """Of a row in ten minutes, which stand for ten each."""
    sizes = np.asarray(np.repeat(np.concatenate(lives), 10) * 1e9, dtype=np.float64)
    noise = np.random.default_rng(0).normal(0.0, 20e6, len(sizes))
    return Trace(np.arange(len(sizes), dtype=np.float64) * 60.0, sizes + noise)


def test_memory_that_falls_with_a_restart_is_another_life() -> None:
    """It leaks up to where it was before: without the event that is ground where it has been."""
    recorded = _recorded(_life(30, 20.0, 0.2), _life(28, 20.0, 0.2))
    verdict = _judge(recorded, {1800: "engine_restart"})
    assert verdict.verdict == "leak"
    grown = _recorded(_life(12, 26.0, 0.0), _life(28, 20.0, 0.2))
    assert _judge(grown, {}).verdict == "none"
    assert _judge(grown, {720: "model_load"}).verdict == "leak"
    assert _judge(grown, {720: "lora_load"}).verdict == "none", "an adapter comes on top"
    assert _judge(grown, {600: "model_load"}).verdict == "none", "two hours before"


def _failed(recorded: Trace, minutes: range, size_bytes: float) -> Trace:
    """With readings that failed in between."""
    sizes = recorded.size_bytes.copy()
    sizes[minutes.start : minutes.stop] = size_bytes
    return recorded._replace(size_bytes=sizes)


@pytest.mark.parametrize("failed_bytes", [0.0, 2e9])
def test_a_reading_that_failed_hides_no_other_life(failed_bytes: float) -> None:
    """One row of ten minutes, hours before: it is no least size of the life that ends with the event."""
    again = _recorded(_life(30, 20.0, 0.2), _life(28, 20.0, 0.2))
    grown = _recorded(_life(12, 26.0, 0.0), _life(28, 20.0, 0.2))
    for recorded, events in ((again, {1800: "engine_restart"}), (grown, {720: "model_load"})):
        verdict = _judge(_failed(recorded, range(180, 190), failed_bytes), events)
        assert verdict.verdict == "leak", verdict.evidence


@pytest.mark.parametrize("failed_bytes", [0.0, 2e9])
def test_a_reading_that_failed_beside_what_was_survived_is_no_other_life(failed_bytes: float) -> None:
    """The exporter fails with the probe: each half of the file alone is shorter than a day."""
    recorded = _failed(_recorded(_life(46, 20.0, 0.168)), range(1380, 1390), failed_bytes)
    verdict = _judge(recorded, {1380: "Liveness probe failed: HTTP 503"})
    assert verdict.verdict == "leak", verdict.evidence
    assert not any("restarted" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize("event", ["killed", "Liveness probe failed: HTTP 503", "engine_restart"])
@pytest.mark.parametrize("low_rows", [1, 2, 3])
def test_a_restart_whose_weights_are_loaded_for_some_rows_is_one(low_rows: int, event: str) -> None:
    """Null: 2 GB at first, and then from 20 GB on again, which is more than nine tenths of the 21.5 GB before."""
    recorded = _failed(_recorded(_life(30, 20.0, 0.05), _life(28, 20.0, 0.2)), range(1800, 1800 + 10 * low_rows), 2e9)
    verdict = _judge(recorded, {1800: event})
    assert verdict.verdict == "leak", verdict.evidence
    assert any(sentence.startswith("1 times the engine restarted") for sentence in verdict.evidence), verdict.evidence


@pytest.mark.parametrize(("apart_s", "named"), [(5, ""), (5, "lora_load"), (10, "lora_load")])
def test_readings_that_failed_between_the_looks_hide_no_other_life(apart_s: int, named: str) -> None:
    """Of a row in five seconds one in ten seconds is used, and one of those that are not is of 2 GB: it may name an adapter."""
    lives = [12 * 3600, 28 * 3600]
    failed = 3 * 3600 + apart_s

    def rows() -> Iterator[Sample]:
        for at_s in range(0, sum(lives), 5):
            size = 26e9 if at_s < lives[0] else 20e9 + 0.2e9 * (at_s - lives[0]) / 3600
            event = "model_load" if at_s == lives[0] else named if at_s == failed else ""
            yield Sample(float(at_s), 2e9 if at_s == failed else size, event=event)

    assert judge(rows(), Seen(), LeakSettings()).verdict == "leak"


@pytest.mark.parametrize("at_s", [12 * 3600, 12 * 3600 + 5])
def test_a_load_between_the_looks_is_another_life(at_s: int) -> None:
    """Null: what falls in the row that names it is seen in the next one that is used."""

    def rows() -> Iterator[Sample]:
        for now_s in range(0, 40 * 3600, 5):
            yield Sample(
                float(now_s),
                26e9 if now_s < at_s else 20e9 + 0.2e9 * (now_s - at_s) / 3600,
                event="model_load" if now_s == at_s else "",
            )

    verdict = judge(rows(), Seen(), LeakSettings())
    assert verdict.verdict == "leak"
    assert any(sentence.startswith("1 times the engine restarted") for sentence in verdict.evidence), verdict.evidence


@pytest.mark.parametrize("named", [(1790,), (1800,), (1790, 1800)])
def test_a_restart_is_counted_once(named: tuple[int, ...]) -> None:
    """Memory falls in the row that names it, or in the next one. Two that are named are two."""
    recorded = _recorded(_life(30, 20.0, 0.2), _life(28, 20.0, 0.2))
    verdict = _judge(recorded, dict.fromkeys(named, "engine_restart"))
    assert any(sentence.startswith(f"{len(named)} times the engine restarted") for sentence in verdict.evidence)


def test_what_gave_memory_back_is_not_among_what_it_goes_on_over() -> None:
    """Another model, and three adapters since it leaks."""
    recorded = _recorded(_life(10, 26.0, 0.0), _life(75, 20.0, 0.2))
    verdict = _judge(recorded, {600: "deployed", **dict.fromkeys((1800, 3000, 4200), "lora_load")})
    assert verdict.verdict == "suspect"
    assert any("restarts and loads, of which 3 are named" in sentence for sentence in verdict.evidence), verdict.evidence


def test_a_kill_soon_after_adapters_is_a_restart_of_its_own() -> None:
    recorded = _recorded(_life(30, 20.0, 0.2), _life(28, 20.0, 0.2))
    verdict = _judge(recorded, {1780: "lora_load", 1800: "killed"})
    assert any(sentence.startswith("2 times the engine restarted") for sentence in verdict.evidence)


def test_what_comes_on_top() -> None:
    assert all(map(comes_on_top, ON_TOP))
    assert not any(map(comes_on_top, (*ANEW, "model and lora loaded", "lora server restarted")))
    assert all(map(restarts_warm_up, ON_TOP + ANEW))


def test_another_life_is_told_by_a_fall_soon_after_an_event() -> None:
    def told(named_min: int, sizes: list[float]) -> list[int]:
        life = NewLife(LeakSettings())
        began = []
        for minute, size in enumerate(sizes):
            if minute == named_min:
                life.named(minute * 60.0)
            if life.began(minute * 60.0, size, is_warm=minute >= 5):
                began.append(minute)
            elif minute >= 5:
                life.take(minute * 60.0, size)
        return began

    risen = [20.0 + minute / 60 for minute in range(120)]
    assert told(118, [*risen, 20.0, 20.0]) == [120]
    assert told(112, [*risen, 20.0, 20.0]) == [120]
    assert told(105, [*risen, 20.0, 20.0]) == [], "too long before"
    assert told(118, [*risen, 21.5, 21.5]) == [], "less than half"
    assert told(124, [*risen, *[20.0] * 20]) == [124], "restarted by the time that it is told"
    assert told(2, [20.0, 20.0, 20.0, 10.0, 10.0]) == [], "nothing is known yet"
