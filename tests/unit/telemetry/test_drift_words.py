"""How far a comparison is, in words."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from aie_telemetry import drift_words
from aie_telemetry.api import Drift, Snapshot

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "fakes"))

import agent_drift

CASES = [
    (
        agent_drift.STEADY,
        "smollm2, smollm2: compared with chat.aieref 9b1f02c4d7e8, 3 of 4 statistics, 1230 requests so far; nearest is"
        " first_token_logsumexp, 0.102 where 0.169 is too far, 0 windows in a row too far or with too many values outside (5 are an"
        " alarm); a false alarm in 90 days at the present rate; canary default gives -4.8752 as at first",
    ),
    (
        agent_drift.ALARM,
        "llama-70b, llama-3.1-70b-instruct: compared with chat.aieref 9b1f02c4d7e8, 4 of 4 statistics, 1230 requests so far;"
        " nearest is entropy, 0.312 where 0.169 is too far, 7 windows in a row too far or with too many values outside (5 are an"
        " alarm); a false alarm in 4 days at the present rate, not 30 days as it was made for (1 requests/s, now 8); canary"
        " default gives -5.0261, and gave -4.8752: the model is another",
    ),
    (
        agent_drift.BEGINNING,
        "reranker, reranker-base: compared with chat.aieref 9b1f02c4d7e8, 1 of 1 statistics, 37 requests so far; no window of 100"
        " is complete",
    ),
    (
        agent_drift.CANARY_ALONE,
        "embedder, bge-small: not compared: no reference for the model 'bge-small' (there is one for: smollm2); canary default is"
        " learnt: 7 of 20 runs",
    ),
    (
        agent_drift.SILENT,
        "plain: not compared: no numbers of single requests: its hooks send none (docs/instrument-your-engine.md)",
    ),
]


@pytest.mark.parametrize(("drift", "expected"), CASES, ids=[drift.engine for drift, _ in CASES])
def test_a_sentence_says_all_of_it(drift: Drift, expected: str) -> None:
    assert drift_words.told(drift) == expected


def test_only_an_alarm_is_one() -> None:
    assert [drift_words.is_alarm(drift) for drift, _ in CASES] == [False, True, False, False, False]
    assert [drift_words.is_shorter(drift) for drift, _ in CASES] == [False, True, False, False, False]


def test_a_reference_of_which_nothing_can_be_compared_says_why() -> None:
    untested = agent_drift.compared(
        "e", "m", agent_drift.statistic("entropy", None, threshold_ratio=None, untested="3 distinct values")
    )
    assert drift_words.told(untested) == "e, m: not compared: 3 distinct values"


def test_what_is_not_compared_may_have_left_its_range() -> None:
    constant = agent_drift.statistic("log_length", None, threshold_ratio=None, untested="1 distinct values", alarm_since_s=1.0)
    told = drift_words.told(agent_drift.compared("e", "m", constant, agent_drift.statistic("entropy", 0.05)))
    assert "log_length left the range of the reference; compared with" in told
    assert drift_words.is_alarm(agent_drift.compared("e", "m", constant))


def test_an_agent_of_before_says_nothing_of_it() -> None:
    whole = msgspec.json.decode(msgspec.json.encode(agent_drift.snapshot()))
    del whole["drift"]
    assert msgspec.convert(whole, Snapshot).drift == ()
