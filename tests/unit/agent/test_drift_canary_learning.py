"""A model that is changed while its canary is learnt: the later one is learnt, and it is told; noise is no change."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pytest
from fakes.canary_world import LEVEL, CanaryWorld

from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, FLOOR_NATS, LEARNT, CanaryWatch
from aie_agent.analysis.drift.canary_learning import LATER, may_step, step_in
from aie_telemetry.drift_words import of_canary

OTHER = LEVEL - 0.15
FLOOR = 0.02


def learnt_of(*runs: float, floor: float = FLOOR) -> CanaryWatch:
    watch = CanaryWatch(0.0, floor)
    for at, run in enumerate(runs):
        watch.take(run, float(at))
    return watch


@pytest.mark.parametrize("before", range(1, LEARNT))
def test_a_model_that_is_changed_while_it_is_learnt_is_learnt_as_it_is_then(before: int) -> None:
    rng = random.Random(before)
    runs = [level + rng.uniform(-1e-3, 1e-3) for level in [LEVEL] * before + [OTHER] * LEARNT]
    watch = learnt_of(*runs)
    assert watch.level == pytest.approx(OTHER, abs=1e-3)
    assert watch.limit == FLOOR
    assert watch.anew.startswith("its runs went from -4.87")
    assert watch.anew_s == before + LATER - 1
    found = [watch.take(LEVEL, 100.0) for _ in range(CONSECUTIVE_RUNS)]
    assert found[-1], "and a step back of that size is found"


def test_a_change_at_the_end_of_learning_is_waited_for() -> None:
    watch = learnt_of(*[LEVEL] * (LEARNT - 1), OTHER)
    assert watch.level is None
    watch.take(LEVEL, 50.0)
    assert watch.level == LEVEL, "it was one run"
    assert watch.anew == ""


def test_two_changes_are_two() -> None:
    watch = learnt_of(*[LEVEL] * 8, *[OTHER] * 2, *[-3.0] * 12, *[-2.0] * LEARNT)
    assert (watch.level, watch.limit) == (-2.0, FLOOR)
    assert watch.anew == "its runs went from -3 to -2"


def test_it_is_told_for_a_day_and_kept_over_a_restart_of_the_agent() -> None:
    world = CanaryWorld()
    assert world.runs(*[LEVEL] * 9, *[OTHER] * LATER) == []
    told = "(learnt anew: its runs went from -4.875 to -5.025)"
    assert of_canary(world.canary()) == f"default is learnt: {LATER} of {LEARNT} runs {told}"
    assert world.runs(*[OTHER] * LEARNT) == []
    assert of_canary(world.canary()) == f"default gives -5.025 as at first {told}"
    state = json.loads(json.dumps(world.analyser.dump()))
    world.analyser.restore(state, world.now_s)
    assert world.canary().learnt_anew == told[len("(learnt anew: ") : -1]
    assert world.runs(*[OTHER] * (24 * 60)) == []
    assert of_canary(world.canary()) == "default gives -5.025 as at first"


def restart(world: CanaryWorld) -> None:
    world.tgids = (8,)


def restart_that_only_its_count_tells(world: CanaryWorld) -> None:
    world.ran = dict.fromkeys(world.ran, 0)


def another_dtype(world: CanaryWorld) -> None:
    world.dtype = "bfloat16"


CHANGES: dict[Callable[[CanaryWorld], None], str] = {
    restart: "its engine was restarted",
    restart_that_only_its_count_tells: "its engine was restarted",
    another_dtype: "the dtype of its engine changed from float32 to bfloat16",
}


@pytest.mark.parametrize(("change", "why"), CHANGES.items(), ids=[change.__name__ for change in CHANGES])
def test_what_says_that_the_model_may_be_another_begins_learning_anew(change: Callable[[CanaryWorld], None], why: str) -> None:
    world = CanaryWorld()
    world.runs(*[LEVEL] * 12)
    change(world)
    assert world.runs(*[LEVEL + 0.015] * (LEARNT - 1)) == []
    assert (world.canary().level_nats, world.canary().learnt_anew) == (None, why)
    world.runs(LEVEL + 0.015)
    assert world.canary().level_nats == LEVEL + 0.015, "though a step so small is none by itself"


@pytest.mark.parametrize("change", CHANGES, ids=[change.__name__ for change in CHANGES])
def test_a_level_that_is_known_outlives_it(change: Callable[[CanaryWorld], None]) -> None:
    world = CanaryWorld()
    world.runs(*[LEVEL] * LEARNT)
    change(world)
    assert world.runs(LEVEL) == []
    assert (world.canary().level_nats, world.canary().learnt_anew) == (LEVEL, "")
    assert world.runs(*[OTHER] * CONSECUTIVE_RUNS) != []


def test_one_process_of_several_that_goes_is_no_restart() -> None:
    world = CanaryWorld()
    world.tgids = (7, 8)
    world.runs(*[LEVEL] * 12)
    world.tgids = (8, 9)
    world.runs(*[LEVEL] * (LEARNT - 12))
    assert (world.canary().level_nats, world.canary().learnt_anew) == (LEVEL, "")


Noise = Callable[[random.Random, int], float]
WITHIN: dict[str, tuple[float, Noise]] = {
    "the last bits of float32": (FLOOR, lambda rng, run: rng.uniform(-1e-3, 1e-3)),
    "steps of bfloat16 by the shape of the batch": (FLOOR_NATS, lambda rng, run: rng.choice((-0.125, 0.0, 0.0, 0.125))),
    "the same in spells": (FLOOR_NATS, lambda rng, run: (-0.125, 0.125)[run // 6 % 2]),
    "two kernels in spells": (FLOOR, lambda rng, run: 0.02 * (run // 8 % 2)),
}


@pytest.mark.parametrize("name", WITHIN)
def test_noise_within_the_floor_is_no_change(name: str) -> None:
    floor, noise = WITHIN[name]
    for seed in range(200):
        rng = random.Random(seed)
        runs = [noise(rng, run) for run in range(LEARNT)]
        watch = learnt_of(*runs, floor=floor)
        assert watch.level is not None
        assert watch.limit == max(floor, 3.0 * max(abs(each - watch.level) for each in runs))
        assert watch.anew == ""


@pytest.mark.parametrize(
    ("draw", "most"),
    [(lambda rng: rng.gauss(LEVEL, 0.05), 0.002), (lambda rng: LEVEL + 0.05 * (rng.random() < 0.5), 0.1)],
    ids=["normal", "two values by turns"],
)
def test_noise_beyond_the_floor_is_seldom_taken_for_a_change(draw: Callable[[random.Random], float], most: float) -> None:
    rng = random.Random(5)
    watches = [learnt_of(*(draw(rng) for _ in range(LEARNT + LATER))) for _ in range(1000)]
    assert sum(bool(watch.anew) for watch in watches) <= most * len(watches)


def test_a_step_is_where_the_later_level_begins() -> None:
    assert step_in([LEVEL] * 3 + [OTHER] * LATER, FLOOR) == 3
    assert step_in([LEVEL] * 3 + [OTHER] * (LATER - 1), FLOOR) is None
    assert step_in([OTHER] * LATER, FLOOR) is None
    assert may_step([LEVEL] * 9 + [OTHER], FLOOR)
    assert not may_step([LEVEL] * 9 + [LEVEL + FLOOR], FLOOR)
    assert not may_step([], FLOOR)


def test_what_earlier_versions_kept_of_one_that_learns_is_read() -> None:
    state = json.loads(json.dumps(learnt_of(*[LEVEL] * 12).dump()))
    for field in ("anew", "anew_s", "taken_s", "beyond"):
        del state[field]
    watch = CanaryWatch.restored(state)
    assert (watch.learnt, watch.anew, watch.anew_s) == ([LEVEL] * 12, "", None)
