"""A real model asked other things than its reference was recorded of: found. Asked the same kind of things: silent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from bench.drift_prompts import code, encoded, english, first_tokens, statistics, with_faces

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.offline import judge
from aie_agent.analysis.drift.reference import FEWEST, About, Reference
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


def test_a_prompt_in_the_template_is_cut_as_others_are(loaded: LoadedModel, sentences: list[str]) -> None:
    with_emoji = with_faces(sentences[:20], random.Random(3))  # a face is several tokens: some prompts are cut within one
    bare = encoded(loaded, with_emoji, first_tokens(8))
    templated = encoded(loaded, with_emoji, first_tokens(8)._replace(chat=True))
    frame = len(encoded(loaded, [""], first_tokens(0)._replace(chat=True))[0])
    assert [len(ids) for ids in bare] == [8] * 20
    assert (
        max(map(len, templated)) <= frame + 8 < max(len(loaded.tokenizer.encode(text, allow_special=False)) for text in with_emoji)
    )
    assert all("\ufffd" not in loaded.tokenizer.decode(ids) for ids in templated)


def test_who_waits_is_told_how_far_it_is(loaded: LoadedModel, sentences: list[str]) -> None:
    counts: list[int] = []
    statistics(loaded, encoded(loaded, sentences[:10], first_tokens(4))[:5], answer_tokens=1, batch=2, asked=counts.append)
    assert counts == [2, 4, 5]
