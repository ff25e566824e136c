"""Every cause has a page that says what to do, every page a cause, and what the pages say is what the rules do."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from aie_agent.analysis import hung
from aie_agent.analysis.causes import ENGINE_CAUSES, EXPLAINS, OF_SUBJECTS, STEADINESS, WITH_STACKS
from aie_agent.analysis.engine_causes import (
    arrivals,
    cache,
    cpu_fallback,
    gone,
    kv_full,
    kv_preemption,
    last_heard,
    out_of_memory,
    outcomes,
    prefill_interference,
    python_gc,
    queue_saturation,
    tokenizer_bound,
)
from aie_agent.analysis.stopped import STOPPED_S
from aie_agent.analysis.sustained import ENDS_AT
from aie_telemetry.catalogue import CATALOGUE

FOLDER = Path(__file__).parents[3] / "docs" / "runbooks"
PAGES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.md"))}
CAUSES = {cause.__name__ for cause in ENGINE_CAUSES} | OF_SUBJECTS

HEADINGS = ("## How aie knows", "## First checks", "## What to do", "## When it is a false alarm")
METRIC = re.compile(r"`(aie_(?:agent|cuda|drift|engine|gpu|host|kernel|leak|process)_[a-z0-9_]+)")
"""What a page calls a metric: packages of ours have such names as well, but go on with a dot."""

FIGURES = {
    "cache_hit_collapse": (
        f"at most {cache.LOW} times",
        f"at least {cache.HIGH:.0%}",
        f"{cache.BEFORE_LEAST * cache.BLOCK_S:g} s",
        f"for the first {cache.HELD_S:g} s",
        f"{cache.MIX:g} times as long",
        f"at least {cache.STILL:.0%} as often a second",
    ),
    "client_flood": (
        f"At least {outcomes.LEAST} requests",
        f"at least {outcomes.FULL_QUEUE} waited",
        *(f"{window.share:.0%}" for window in outcomes.REJECTED_WINDOWS),
        f"at least {arrivals.GREW:g} times as many",
        f"{arrivals.LEAST_BEFORE_S:g} s at least",
        f"by {arrivals.BEYOND:g} standard deviations",
        f"{arrivals.GOES_ON:g} times as many come",
    ),
    "cpu_fallback": (f"for {cpu_fallback.HELD_S:g} s", f"less than {cpu_fallback.IDLE:.0%} busy"),
    "cuda_oom": (f"for {out_of_memory.TOLD_S / 60:g} minutes".replace("5", "five"),),
    "engine_down": (
        f"After {gone.OLD_NEWS_S / 60:g} minutes".replace("10", "ten"),
        f"{gone.RESTART_S / 60:g} minutes to come back".replace("3", "three"),
        f"more than {hung.FRESH_S:g} s before",
        f"{last_heard.HOOKS_S:g} s, where hooks tell it",
        f"at least {last_heard.AT_ONCE_S:g} s before the last",
    ),
    "engine_stopped": (f"the last {STOPPED_S:g} s",),
    "error_rate": (
        *(f"{window.share:.0%} in the last {window.seconds:g} s" for window in outcomes.ERROR_WINDOWS),
        f"two minutes after it where {ENDS_AT * outcomes.ERROR_WINDOWS[-1].share:.0%} failed",
    ),
    "kv_full": (f"{kv_full.FULL:.0%} taken", f"every look of the last {queue_saturation.HELD_S:g} s"),
    "kv_preemption": (f"At least {kv_preemption.LEAST} preemptions within {kv_preemption.WINDOW_S:g} s",),
    "oom_killed": (f"for {gone.TOLD_S / 60:g} minutes".replace("10", "ten"), f"{gone.NEAR_S:g} seconds".replace("10", "ten")),
    "prefill_interference": (
        f"at least {prefill_interference.LEAST} gaps",
        f"at least {prefill_interference.RATIO:g} times the median and at least {prefill_interference.STUTTER_S * 1000:g} ms",
        f"at least {prefill_interference.STEP_RATIO:g} times as many tokens",
    ),
    "python_gc": (
        f"at least {python_gc.SHARE:.0%} of the last {python_gc.WINDOW_S:g} s",
        f"at least {python_gc.LONG_LEAST} collections of the last {python_gc.LONG_WINDOW_S:g} s",
        f"took {python_gc.LONG_S * 1000:g} ms",
    ),
    "queue_saturation": (
        f"every look of the last {queue_saturation.HELD_S:g} s",
        f"had waited {queue_saturation.WAIT_S:g} s",
        f"for {queue_saturation.UNMEASURED_S:g} s no fewer",
        f"empty within {queue_saturation.WORKED_OFF_S:g} s",
        f"at most {arrivals.FELL:.0%} of what was served",
    ),
    "tokenizer_bound": (f"a tenth took {tokenizer_bound.SLOW_S * 1000:g} ms", f"at least {tokenizer_bound.SHARE:.0%} of all time"),
}
"""What pages say of thresholds, written with those of the rules."""


def test_every_cause_has_a_page_and_every_page_a_cause() -> None:
    assert set(PAGES) == CAUSES


def test_the_tables_speak_of_causes_that_there_are() -> None:
    named = {*EXPLAINS, *STEADINESS, *WITH_STACKS, *(effect for effects in EXPLAINS.values() for effect in effects)}
    assert named <= CAUSES


@pytest.mark.parametrize("cause", sorted(PAGES))
def test_a_page_says_what_one_needs_at_night(cause: str) -> None:
    page = PAGES[cause]
    lines = page.splitlines()
    assert lines[0] == f"# {cause}"
    at = [page.find(f"{heading}\n") for heading in HEADINGS]
    assert all(place > 0 for place in at), [heading for heading, place in zip(HEADINGS, at, strict=True) if place < 0]
    assert at == sorted(at)
    assert 15 <= len(lines) <= 45
    assert set(METRIC.findall(page)) <= CATALOGUE.keys()


@pytest.mark.parametrize("cause", sorted(FIGURES))
def test_the_figures_of_a_page_are_those_of_its_rule(cause: str) -> None:
    text = " ".join(PAGES[cause].split()).replace(" %", "%")
    assert [figure for figure in FIGURES[cause] if figure not in text] == []
