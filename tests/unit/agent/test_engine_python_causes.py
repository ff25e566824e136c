"""When tokenising or collecting garbage is what an engine waits for, and all that looks like it and is not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import pytest
from fakes.engine_world import EngineWorld

from aie_agent.analysis.engine_causes.python_gc import python_gc
from aie_agent.analysis.engine_causes.tokenizer_bound import tokenizer_bound
from aie_agent.analysis.findings import EngineCause
from aie_agent.progress import RUNNING
from aie_agent.samples import Batch, HistogramPoint
from aie_telemetry.catalogue import CATALOGUE

LOADED_S = 0.6
PROBED = CATALOGUE["aie_process_gc_seconds"]
YOUNG = {"gc_pause_seconds generation=0": {0.0002: 50}, "gc_pause_seconds generation=1": {0.001: 5}}


def found_at(cause: EngineCause, seconds: int, world: EngineWorld | None = None, **kwargs: Any) -> int | None:
    """After how many such seconds a cause is found."""
    world = world or EngineWorld()
    for second in range(1, seconds + 1):
        world.serve(1, **kwargs)
        if world.engine(cause):
            return second
    return None


def test_a_tokenizer_that_backtracks_is_found_within_ten_seconds() -> None:
    world = EngineWorld()
    world.serve(60, observes={"tokenize_seconds": {0.002: 5}, "time_to_first_token_seconds": {0.08: 5}})
    slow = {
        "tokenize_seconds": {1.2: 2},
        "time_to_first_token_seconds": {1.4: 2},
        "event_loop_lag_seconds": {0.4: 3},
    }
    after = found_at(tokenizer_bound, 20, world, observes=slow)
    assert after is not None
    assert after <= 9
    finding = world.engine(tokenizer_bound)
    assert finding is not None
    assert (finding.cause, finding.severity) == ("tokenizer_bound", "warning")
    slow_text, share_text, lag_text = [evidence.text for evidence in finding.evidence]
    assert "limit 200 ms" in slow_text
    assert "limit 40%" in share_text
    assert "event loop" in lag_text
    assert "aie-agent stacks --engine e" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_a_tenth_of_prompts_that_are_slow_is_enough_where_they_are_most_of_the_time() -> None:
    few = {"tokenize_seconds": {0.002: 7, 3.0: 3}, "time_to_first_token_seconds": {0.08: 7, 3.2: 3}}
    assert found_at(tokenizer_bound, 30, observes=few) is not None


def test_few_prompts_that_are_all_slow_are_found_within_ten_seconds() -> None:
    """One request in two seconds, as the fault lab has it on a slow host."""
    world = EngineWorld()
    rare = lambda values: lambda second: values if second % 2 else {}  # noqa: E731
    world.serve(60, observes={"tokenize_seconds": rare({0.002: 1}), "time_to_first_token_seconds": rare({0.3: 1})})
    slow = {"tokenize_seconds": rare({0.7: 1}), "time_to_first_token_seconds": rare({1.0: 1})}
    after = found_at(tokenizer_bound, 20, world, observes=slow)
    assert after is not None
    assert after <= 9


@pytest.mark.parametrize("requests", [3, 8, 40])
def test_one_moment_in_which_the_whole_process_stood_still_is_none(requests: int) -> None:
    world = EngineWorld()
    for second in range(120):
        took = {"tokenize_seconds": {0.9: requests}, "time_to_first_token_seconds": {1.0: requests}}
        world.serve(1, observes=took if second == 60 else {name: {0.002: 1} for name in took})
        assert world.engine(tokenizer_bound) is None


def test_no_first_token_at_all_and_prompts_that_take_for_ever() -> None:
    world = EngineWorld()
    world.serve(30, observes={"tokenize_seconds": {9.0: 1}})
    finding = world.engine(tokenizer_bound)
    assert finding is not None
    assert "none got a first token" in finding.evidence[1].text


def _prefills(world: EngineWorld, running: float | None) -> list[bool]:
    """Three prompts a minute, each slow to tokenise, and seconds of prefill before their first tokens come."""
    said = []
    for second in range(180):
        at = second % 60
        took = {
            "tokenize_seconds": {0.3: 1} if at in (0, 2, 4) else {},
            "time_to_first_token_seconds": {8.0: 1} if at in (8, 10, 12) else {},
        }
        world.serve(1, observes=took, more={} if running is None else {f"{RUNNING} engine=e model=m": running})
        said.append(world.engine(tokenizer_bound) is not None)
    return said


@pytest.mark.parametrize("running", [3.0, None])
def test_first_tokens_that_have_not_come_yet_are_the_models(running: float | None) -> None:
    assert not any(_prefills(EngineWorld(), running))


def test_no_first_token_while_nothing_runs_is_the_tokenizers() -> None:
    assert any(_prefills(EngineWorld(), 0.0))


TOKENIZING: dict[str, dict[str, dict[float, float]]] = {
    "native code": {"tokenize_seconds": {0.002: 20}, "time_to_first_token_seconds": {0.01: 20}},
    "long prompts, and a model that takes far longer": {"tokenize_seconds": {0.4: 5}, "time_to_first_token_seconds": {3.0: 5}},
    "a queue, which is the model's": {"tokenize_seconds": {0.01: 5}, "time_to_first_token_seconds": {20.0: 5}},
    "as slow as the model, and not slow": {"tokenize_seconds": {0.15: 5}, "time_to_first_token_seconds": {0.3: 5}},
    "one slow prompt in a hundred": {"tokenize_seconds": {0.002: 99, 5.0: 1}, "time_to_first_token_seconds": {0.08: 100}},
    "nothing to tokenise": {"tokenize_seconds": {}},
}


@pytest.mark.parametrize("name", TOKENIZING)
def test_tokenising_that_is_normal(name: str) -> None:
    assert found_at(tokenizer_bound, 120, observes=TOKENIZING[name]) is None


def test_storms_of_collections_are_found_within_ten_seconds() -> None:
    world = EngineWorld()
    world.serve(60, observes=YOUNG, requests_running=3)
    after = found_at(python_gc, 20, world, observes={"gc_pause_seconds generation=2": {0.03: 10}}, requests_running=3)
    assert after is not None
    assert after <= 5
    finding = world.engine(python_gc)
    assert finding is not None
    assert (finding.cause, finding.severity) == ("python_gc", "warning")
    assert "limit 500 ms" in finding.evidence[0].text
    assert "gc.freeze()" in finding.advice
    assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()


def test_long_pauses_that_come_back_are_found_though_they_are_rare() -> None:
    world = EngineWorld()
    long = {"gc_pause_seconds generation=2": lambda second: {0.4: float(second % 25 == 0)}}
    world.serve(70, observes=long, requests_running=1)
    finding = world.engine(python_gc)
    assert finding is not None
    assert "took 250 ms or longer" in finding.evidence[-1].text


def test_what_a_probe_sees_of_collections_counts_too() -> None:
    world = EngineWorld()
    metric = CATALOGUE["aie_process_gc_seconds"]
    for second in range(20):
        world.serve(1, requests_running=1)
        counts = [0.0] * (len(metric.buckets) + 1)
        counts[-8] = float(second)
        point = HistogramPoint(metric.name, (("engine", "e"),), metric.buckets, tuple(counts), 0.0)
        world.store.apply(Batch("bpf", world.now_s, histograms=[point]))
    assert world.engine(python_gc)


COLLECTING: dict[str, dict[str, Any]] = {
    "the youngest generations, all the time": {"observes": YOUNG, "requests_running": 4},
    "collections of 4 % of the time": {"observes": {"gc_pause_seconds generation=2": {0.04: 1}}, "requests_running": 4},
    "one long collection": {
        "observes": {"gc_pause_seconds generation=2": lambda second: {0.4: float(second == 50)}},
        "requests_running": 4,
    },
    "a model that is loaded, and no request": {
        "observes": {"gc_pause_seconds generation=2": {0.2: 5}},
        "requests_running": 0,
    },
    "nothing is known of requests": {"observes": {"gc_pause_seconds generation=2": {0.2: 5}}},
    "nothing is known of collections": {"requests_running": 4},
}


@pytest.mark.parametrize("name", COLLECTING)
def test_collections_that_are_normal(name: str) -> None:
    assert found_at(python_gc, 120, **COLLECTING[name]) is None


@pytest.mark.parametrize("cause", [python_gc, tokenizer_bound])
def test_what_is_old_says_nothing(cause: EngineCause) -> None:
    world = EngineWorld()
    assert world.engine(cause) is None
    world.serve(30, observes={"gc_pause_seconds generation=2": {0.2: 5}, "tokenize_seconds": {3.0: 3}}, requests_running=1)
    assert world.engine(cause)
    world.live(10, {})
    assert world.engine(cause) is None


@pytest.mark.parametrize(("goes_on", "is_found"), [(False, False), (True, True)])
def test_what_a_new_process_collected_while_it_loaded_stops_no_request(goes_on: bool, is_found: bool) -> None:
    """Its page begins with what it did before it served: three long collections."""
    world, after = EngineWorld(), EngineWorld()
    world.serve(100, observes={"gc_pause_seconds generation=2": {0.001: 1}}, requests_running=1)
    metric = CATALOGUE["aie_engine_gc_pause_seconds"]
    (series,) = world.store.histograms(metric.name)
    counts = [0.0] * (len(metric.buckets) + 1)
    counts[next(at for at, bound in enumerate(metric.buckets) if bound >= LOADED_S)] = 3.0
    after.store, after.now_s = world.store, world.now_s + 1.0
    point = HistogramPoint(metric.name, series.tags, metric.buckets, tuple(counts), 3 * LOADED_S)
    after.store.apply(Batch("scrape:e", after.now_s, histograms=[point]))
    pauses = {LOADED_S: 1} if goes_on else {0.001: 1}
    after.serve(5, observes={"gc_pause_seconds generation=2": pauses}, requests_running=1)
    assert (after.engine(python_gc) is not None) == is_found


def test_what_a_probe_saw_a_new_process_collect_while_it_loaded_stops_no_request() -> None:
    """What a probe counts goes on over a restart. Requests ran before it, and what they say of that is no more so."""
    world, counts = EngineWorld(), [0.0] * (len(PROBED.buckets) + 1)

    def found(seconds: int, running: int | None, collects: Callable[[int], bool]) -> bool:
        told = []
        for second in range(seconds):
            world.live(1, {} if running is None else {f"{RUNNING} engine=e model=m": running})
            counts[bisect_left(PROBED.buckets, LOADED_S)] += collects(second)
            point = HistogramPoint(PROBED.name, (("engine", "e"),), PROBED.buckets, tuple(counts), 0.0)
            world.store.apply(Batch("bpf", world.now_s, histograms=[point]))
            told.append(world.engine(python_gc) is not None)
        return any(told)

    never, twice = lambda _: False, lambda second: second in (80, 84)
    assert not found(60, 8, never)
    assert not found(90, None, twice), "it loads"
    assert not found(5, 0, never), "it is idle"
    assert not found(30, 1, never), "its first request"
    assert found(10, 1, lambda second: second in (2, 6)), "what it collects then"


def _stopped_again_and_again(pause_s: int, probed_s: int | None) -> list[bool]:
    """Eight times the collector stops for so long whoever tells what runs, and ten seconds pass in which it does not: whether it is
    found at the end of these. A probe tells it after so many seconds, or the page does."""
    world, counts, told = EngineWorld(), [0.0] * (len(PROBED.buckets) + 1), []
    world.serve(70, observes={"gc_pause_seconds generation=2": {}} if probed_s is None else {}, requests_running=8)
    for _ in range(8):
        world.live(pause_s, {})
        for second in range(10):
            collected = {"gc_pause_seconds generation=2": {float(pause_s): float(second == 0)}}
            world.serve(1, observes=collected if probed_s is None else {}, requests_running=8)
            counts[bisect_left(PROBED.buckets, pause_s)] += second == probed_s
            point = HistogramPoint(PROBED.name, (("engine", "e"),), PROBED.buckets, tuple(counts), 0.0)
            world.store.apply(Batch("bpf", world.now_s, histograms=[] if probed_s is None else [point]))
        told.append(world.engine(python_gc) is not None)
    return told


@pytest.mark.parametrize("probed_s", [None, 0, 1])
@pytest.mark.parametrize("pause_s", [5, 14, 16, 20, 29])
def test_a_collector_that_stops_whoever_tells_what_runs_is_no_load(pause_s: int, probed_s: int | None) -> None:
    assert all(_stopped_again_and_again(pause_s, probed_s)[1:])


@pytest.mark.parametrize("load_s", [16, 20, 45, 90])
@pytest.mark.parametrize("share", [0.1, 0.3])
def test_a_process_that_loads_again_and_again_and_collects_for_a_part_of_that_is_not_stopped(load_s: int, share: float) -> None:
    """The null: it restarts after each half minute, and collects for a second at a time while it loads. Only a probe counts on."""
    world, counts, found = EngineWorld(), [0.0] * (len(PROBED.buckets) + 1), []
    for _ in range(4):
        for second in range(load_s + 30):
            loads = second < load_s
            world.live(1, {} if loads else {f"{RUNNING} engine=e model=m": 8})
            counts[bisect_left(PROBED.buckets, 1.0)] += loads and int((second + 1) * share) > int(second * share)
            point = HistogramPoint(PROBED.name, (("engine", "e"),), PROBED.buckets, tuple(counts), 0.0)
            world.store.apply(Batch("bpf", world.now_s, histograms=[point]))
            found.append(not loads and world.engine(python_gc) is not None)
    assert counts[bisect_left(PROBED.buckets, 1.0)] >= 1
    assert not any(found)
