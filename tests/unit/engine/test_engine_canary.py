"""The engine's canary: it runs beside requests, is in none of their numbers, and steps back where there is no place."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest
from engine_fixtures import new_metrics, new_request
from fakes.fake_model import EOS, ByteTokenizer, FakeRunner

from aie_engine.canary import Canary, Prompt
from aie_engine.kv_arena import KvArena
from aie_engine.loop import ModelLoop
from aie_engine.metrics import EngineMetrics
from aie_engine.request import Update
from aie_engine.scheduler import Limits, Scheduler
from aie_telemetry.exposition import PageParser

WAIT_S = 60.0  # a bound; no test that passes waits for it
PLACES = 2


class Loop:
    """A model loop with a canary that is due at once and always, and a step runner that can be held."""

    def __init__(self, logprob: float = -1.0) -> None:
        self.metrics: EngineMetrics = new_metrics()
        self.told = threading.Semaphore(0)
        self.outcomes: list[str] = []
        limits = Limits(max_running=PLACES, max_waiting=4, max_step_tokens=16, context_tokens=100, eos_ids=frozenset({EOS}))
        self.runner = FakeRunner(100, 16)
        arena = KvArena(100)
        canary = Canary(1e-3, lambda: logprob, self._tell)
        self.loop = ModelLoop(self.runner, Scheduler(limits, arena), arena, self.metrics, _deliver, aside=canary)
        self.thread = threading.Thread(target=self.loop.run)

    def _tell(self, outcome: str, logprob: float | None) -> None:
        self.metrics.canary(outcome, logprob)
        self.outcomes.append(outcome)
        self.told.release()

    def told_times(self, count: int) -> None:
        for _ in range(count):
            assert self.told.acquire(timeout=WAIT_S)

    def page(self) -> dict[str, float]:
        sums: dict[str, float] = {}
        for sample in PageParser().parse(self.metrics.page()).samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
        return sums

    def close(self) -> None:
        self.runner.release()
        self.loop.stop()
        self.thread.join(WAIT_S)
        assert not self.thread.is_alive()


def _deliver(news: list[tuple[object, Update]]) -> None:
    for request, update in news:
        request.deliver(update)  # type: ignore[attr-defined]


@pytest.fixture
def rig() -> Iterator[Loop]:
    rig = Loop()
    rig.thread.start()
    yield rig
    rig.close()


def test_it_runs_while_nobody_asks_and_stands_in_no_number_of_requests(rig: Loop) -> None:
    rig.told_times(3)
    page = rig.page()
    assert page["aie_engine_canary_logprob_nats"] == -1.0
    assert page["aie_engine_canary_runs_total"] >= 3
    counted = {name: value for name, value in page.items() if name.endswith(("_total", "_count")) and "canary" not in name}
    assert counted
    assert set(counted.values()) == {0.0}


def test_it_runs_between_the_steps_of_a_request(rig: Loop) -> None:
    rig.runner.hold()
    ended = threading.Event()
    rig.loop.submit(
        new_request(b"x", 3, ticket=rig.metrics.enter(0.0), deliver=lambda update: ended.set() if update.outcome else None)
    )
    rig.runner.wait_until_held()
    before = len(rig.outcomes)
    rig.runner.release()
    assert ended.wait(WAIT_S)
    rig.told_times(before + 1)
    assert rig.page()["aie_engine_requests_total"] == 1


def test_without_a_place_it_is_skipped_and_comes_again(rig: Loop) -> None:
    rig.runner.hold()
    ended = threading.Semaphore(0)
    for prompt in b"abc":  # two run, and one waits
        ticket = rig.metrics.enter(0.0)
        rig.loop.submit(
            new_request([prompt], 40, ticket=ticket, deliver=lambda update: ended.release() if update.outcome else None)
        )
    rig.runner.wait_until_held()
    rig.runner.release()
    for _ in b"abc":
        assert ended.acquire(timeout=WAIT_S)
    assert set(rig.outcomes) <= {"ok", "skipped"}
    rig.told_times(len(rig.outcomes) + 1)
    assert rig.outcomes[-1] == "ok"


def test_what_is_no_number_is_told_and_keeps_the_level_off_the_page() -> None:
    rig = Loop(math.nan)
    rig.thread.start()
    try:
        rig.told_times(1)
        runs = [s for s in PageParser().parse(rig.metrics.page()).samples if s.name == "aie_engine_canary_runs_total"]
        assert [dict(run.tags)["outcome"] for run in runs] == ["nonfinite"]
        assert "aie_engine_canary_logprob_nats" not in rig.page()
    finally:
        rig.close()


def test_one_that_fails_is_told_and_comes_again_in_time() -> None:
    told: list[tuple[str, float | None]] = []

    def broken() -> float:
        raise RuntimeError("no such kernel")

    canary = Canary(10.0, broken, lambda outcome, logprob: told.append((outcome, logprob)))
    assert canary.due_in_s(5.0) == 0.0
    canary.run(5.0)
    assert told == [("failed", None)]
    assert canary.due_in_s(6.0) == 9.0


def test_it_is_skipped_once_a_period() -> None:
    told: list[str] = []
    canary = Canary(10.0, lambda: -1.0, lambda outcome, _: told.append(outcome))
    for now in range(35):
        canary.passed_over(float(now))
    assert told == ["skipped"] * 3
    assert canary.due_in_s(35.0) == 0.0


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="canary takes"):
        Prompt(ByteTokenizer(), longest=8, step_tokens=256)
