"""A real model asked other things than its reference was recorded of: found. Asked the same kind of things: silent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from bench.drift_prompts import code, encoded, english, first_tokens, statistics

from aie_agent.analysis.drift.offline import judge
from aie_agent.analysis.drift.reference import FEWEST, About, Reference, build
from aie_engine.loading import LoadedModel

pytestmark = pytest.mark.model

REQUESTS = 500
"""Of each stream: five windows, the fewest that can be an alarm."""

Ask = Callable[[Sequence[str]], dict[str, list[float]]]


@pytest.fixture(scope="module")
def ask(loaded: LoadedModel) -> Ask:
    # One token each: what differs is in the first token's logits already, and a test is to be short.
    return lambda texts: statistics(loaded, encoded(loaded, texts, first_tokens(4)), answer_tokens=1, batch=32)


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    texts = english()
    random.Random(1).shuffle(texts)
    return texts


@pytest.fixture(scope="module")
def reference(ask: Ask, sentences: list[str]) -> Reference:
    made = build(ask(sentences[:FEWEST]), About(model="smollm2", traffic_class="prose"))
    untested = [column.name for column in made.header.columns if column.untested]
    assert untested == ["log_length"], "every answer is one token long"
    return made


def test_other_sentences_of_the_same_kind_are_no_drift(reference: Reference, ask: Ask, sentences: list[str]) -> None:
    verdict = judge(reference, ask(sentences[FEWEST : FEWEST + REQUESTS]))
    assert (verdict.alarm, verdict.state) == (False, "ok")


def test_programs_in_place_of_prose_are_found_at_once(reference: Reference, ask: Ask) -> None:
    pieces = code()
    random.Random(2).shuffle(pieces)
    verdict = judge(reference, ask(pieces[:REQUESTS]))
    assert verdict.first_alarm_request == REQUESTS
    assert verdict.per_statistic["first_token_logsumexp"].windows_beyond == 5
