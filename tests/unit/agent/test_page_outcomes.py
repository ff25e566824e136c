"""Counters of outcomes begin at 0, whatever the engine's page has of them, and never fall because a line was not read."""

from __future__ import annotations

import pytest

from aie_agent.sources.pages.engines import ENGINES
from aie_agent.sources.pages.outcomes import ENDED, Beginnings, outcomes_of
from aie_agent.sources.pages.reader import PageReader

QUEUE = "# TYPE tgi_queue_size gauge\ntgi_queue_size 0\n"
TGI = {"ok", "rejected", "cancelled", "error"}


def ended(reader: PageReader, page: str) -> dict[str, float]:
    points = reader.read(page.encode()).reading.points
    return {dict(point.tags)["outcome"]: point.value for point in points if point.name == ENDED}


def test_what_has_not_come_is_0_from_the_first_page_on() -> None:
    reader = PageReader("e")
    assert ended(reader, QUEUE) == dict.fromkeys(TGI, 0.0)
    assert ended(reader, QUEUE + 'tgi_request_failure{err="generation"} 1\n') == dict.fromkeys(TGI, 0.0) | {"error": 1.0}
    assert ended(reader, QUEUE + "tgi_request_success 7\n") == dict.fromkeys(TGI, 0.0) | {"ok": 7.0}


def test_a_restart_begins_at_0_again() -> None:
    reader = PageReader("e")
    assert ended(reader, QUEUE + "tgi_request_success 7\n")["ok"] == 7.0
    assert ended(reader, QUEUE)["ok"] == 0.0


@pytest.mark.parametrize("broken", ["tgi_request_success NaN\n", "tgi_request_success seven\n"])
def test_a_line_that_could_not_be_read_is_no_0(broken: str) -> None:
    reader = PageReader("e")
    assert ended(reader, QUEUE + "tgi_request_success 7\n")["ok"] == 7.0
    assert ended(reader, QUEUE + broken) == dict.fromkeys(TGI - {"ok"}, 0.0)
    assert ended(reader, QUEUE + "tgi_request_success 9\n")["ok"] == 9.0


def test_of_a_family_that_is_something_else_nothing_is_said() -> None:
    assert ended(PageReader("e"), QUEUE + "# TYPE tgi_request_success gauge\ntgi_request_success 7\n") == {}


def test_an_engine_that_does_not_count_what_ends_well_begins_nothing() -> None:
    kinds = {engine.kind: outcomes_of(engine) for engine in ENGINES}
    assert kinds["sglang"] == () == kinds["llama.cpp"]
    assert set(kinds["vllm"]) == {"ok", "error", "cancelled", "rejected"}
    assert ended(PageReader("e"), "sglang:num_running_reqs 1\n") == {}


def test_each_model_has_its_own_and_the_whole_engine_none_beside_them() -> None:
    (vllm,) = (engine for engine in ENGINES if engine.kind == "vllm")
    there = [("aie_engine_requests_running", (("model", model),)) for model in ("a", "b", "")]
    found = Beginnings(vllm).of(there, is_whole=True)
    assert {dict(sample.tags)["model"] for sample in found} == {"a", "b"}
    assert len(found) == 2 * 4


def test_what_the_page_has_goes_before_what_it_has_not() -> None:
    (vllm,) = (engine for engine in ENGINES if engine.kind == "vllm")
    there = [("aie_engine_requests_running", (("model", str(number)),)) for number in range(999)]
    assert len(Beginnings(vllm).of(there, is_whole=True)) == 1
