"""Leaks, and what is none, as public issues tell of them: verdict and class."""

from __future__ import annotations

import numpy as np
import pytest

from aie_agent.analysis.leaks.recording import Seen
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import judge
from tests.fakes.leak_scenarios import SCENARIOS, Scenario


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_scenario(scenario: Scenario) -> None:
    verdict = judge(scenario.make(np.random.default_rng(3)).samples(), Seen(), LeakSettings())
    assert (verdict.verdict, verdict.leak_class) == (scenario.verdict, scenario.leak_class), verdict.evidence
    assert verdict.evidence
    if verdict.leak_class is not None:
        assert verdict.since_s is not None
        assert verdict.rate_bytes_per_s is not None
        assert verdict.rate_bytes_per_s > LeakSettings().limit_bytes_per_s


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_same_in_sixty_times_the_speed(scenario: Scenario) -> None:
    """One time scale divides every window: a recording that runs so much faster has the same verdict."""
    rows = scenario.make(np.random.default_rng(3)).samples()
    fast = (row._replace(time_s=row.time_s / 60) for row in rows)
    verdict = judge(fast, Seen(), LeakSettings().scaled(60.0))
    assert (verdict.verdict, verdict.leak_class) == (scenario.verdict, scenario.leak_class), verdict.evidence
