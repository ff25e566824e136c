"""The stages on the page: exact, so that every count can be told from what was asked."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from fakes.fake_model import continuation
from http_client import CHAT, TEXT, chat, get, post, text

from aie_hooks.tracing import Stages
from aie_telemetry.exposition import PageParser


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(max_running=2, kv_tokens=200) as engine:
        yield engine


def page(engine: FakeEngine) -> dict[str, float]:
    """What GET /metrics says, by name; outcomes and buckets summed."""
    sums: dict[str, float] = {}
    for name, _, value, *_ in PageParser().parse(get(engine.url, "/metrics").body.decode()).samples:
        sums[name.removeprefix("aie_engine_")] = sums.get(name.removeprefix("aie_engine_"), 0.0) + value
    return sums


def test_each_stage_of_each_request_is_one_observation(engine: FakeEngine) -> None:
    lengths = [1, 2, 8, 5]
    for length in lengths:
        assert post(engine.url, TEXT, text("Hello", max_tokens=length)).status == 200
    answers = [continuation(b"Hello", length) for length in lengths]
    now = page(engine)
    for stage in ("tokenize", "queue", "prefill", "detokenize", "time_to_first_token", "request_duration"):
        assert now[f"{stage}_seconds_count"] == 4, stage
    for stage in ("decode", "time_per_output_token"):
        assert now[f"{stage}_seconds_count"] == sum(len(answer) > 1 for answer in answers)
    assert now["request_prompt_tokens_sum"] == 4 * len("Hello")
    assert now["request_generation_tokens_sum"] == now["generation_tokens_total"] == sum(map(len, answers))
    assert now["inter_token_seconds_sum"] == pytest.approx(now["decode_seconds_sum"])


class Noted:
    """A tracer that keeps the moments of every request."""

    def __init__(self) -> None:
        self.stages: list[Stages] = []

    def begin(self, *_: object, **__: object) -> Noted:
        return self

    def end(self, stages: Stages, *_: object) -> None:
        self.stages.append(stages)


def test_the_stages_add_up_to_the_duration() -> None:
    noted = Noted()
    with fake_engine(max_running=2, kv_tokens=200, tracer=noted) as engine:
        for length in (1, 2, 8, 5):
            assert post(engine.url, TEXT, text("Hello", max_tokens=length)).status == 200
        now = page(engine)
        engine.settle()
    between_s = 0.0  # the request is checked, and looked up in the response cache
    for stages in noted.stages:
        assert stages.queued_s is not None
        assert stages.tokenized_s is not None
        between_s += stages.queued_s - stages.tokenized_s
    assert len(noted.stages) == 4
    before = now["tokenize_seconds_sum"] + between_s + now["queue_seconds_sum"] + now["prefill_seconds_sum"]
    assert before == pytest.approx(now["time_to_first_token_seconds_sum"], rel=1e-9)
    assert before + now["decode_seconds_sum"] == pytest.approx(now["request_duration_seconds_sum"], rel=1e-9)
    assert now["tokenize_seconds_sum"] > 0
    assert between_s >= 0


def test_steps_tell_what_they_computed(engine: FakeEngine) -> None:
    for _ in range(3):
        post(engine.url, TEXT, text("Hello", max_tokens=4))
    now = page(engine)
    chunks = [chunk for step in engine.runner.steps for chunk in step]
    assert now["step_seconds_count"] == now["step_batch_size_count"] == now["step_tokens_count"] == len(engine.runner.steps)
    assert now["step_batch_size_sum"] == len(chunks)
    assert now["step_tokens_sum"] == sum(len(chunk.token_ids) for chunk in chunks)


def test_a_request_that_never_ran_has_no_stages_but_those_it_reached(engine: FakeEngine) -> None:
    assert post(engine.url, TEXT, text("x" * 150, max_tokens=100)).status == 400  # too long together
    assert post(engine.url, TEXT, text("x" * 5_000)).status == 400  # its beginning says so: never encoded
    assert post(engine.url, CHAT, b"{").status == 400
    now = page(engine)
    assert now["requests_total"] == 3
    assert now["tokenize_seconds_count"] == 1
    assert now["request_prompt_tokens_count"] == 0
    for stage in ("queue", "prefill", "decode", "detokenize", "time_per_output_token"):
        assert now[f"{stage}_seconds_count"] == 0
    assert now["request_generation_tokens_count"] == 0


def test_an_answer_cut_by_a_stop_string_counts_what_the_model_made(engine: FakeEngine) -> None:
    first = chr(continuation(b"user: Hello\nassistant: ", 1)[0])
    assert post(engine.url, CHAT, chat(stop=first, max_tokens=50)).json()["choices"][0]["message"]["content"] == ""
    engine.wait_for(lambda: engine.metrics.ledger.counts().running == 0)
    now = page(engine)
    assert now["request_generation_tokens_count"] == 1
    assert now["request_generation_tokens_sum"] >= 1  # some more may have come before the text was seen


def test_written_slots_are_those_computed_and_efficiency_is_their_share(engine: FakeEngine) -> None:
    assert "kv_efficiency_ratio" not in page(engine)
    engine.runner.hold(after_steps=3)
    thread = threading.Thread(target=post, args=(engine.url, TEXT, text("Hello", max_tokens=40)))
    thread.start()
    engine.runner.wait_until_held()
    now = page(engine)
    assert now["kv_used_tokens"] == 45
    assert now["kv_written_tokens"] == 5 + 2  # the prompt, and two of the three tokens that came
    assert now["kv_efficiency_ratio"] == pytest.approx(7 / 45)
    assert now["allocator_largest_free_bytes"] == 4_000 * 155 // 200
    engine.runner.release()
    thread.join()
    engine.wait_for(lambda: "kv_efficiency_ratio" not in page(engine))


def test_pauses_are_on_the_page(engine: FakeEngine) -> None:
    before = page(engine)
    engine.call(lambda: gc.collect(2) and None)
    engine.wait_for(lambda: page(engine)["event_loop_lag_seconds_count"] > before["event_loop_lag_seconds_count"])
    assert page(engine)["gc_pause_seconds_count"] > before["gc_pause_seconds_count"]
    generations = {
        dict(tags).get("generation") for name, tags, *_ in PageParser().parse(engine.metrics.page()).samples if "gc_" in name
    }
    assert generations == {"0", "1", "2"}
