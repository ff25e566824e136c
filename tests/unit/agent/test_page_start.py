"""When an engine started, by its page alone: so the restart of one on another host is seen, of which no process is."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
from fixtures.pages import render
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

from aie_agent.sources.pages.reader import PageReader, PageReading

OWN_CODE = (Path(render.__file__).parent / "vllm-0.33.0-dp2-own-code.prom").read_text()
"""Of several API servers, whose page is put together from their files: it says nothing of a process."""
START = "aie_engine_start_time_seconds"


def starts(reading: PageReading) -> dict[str, float]:
    """By model."""
    return {dict(point.tags)["model"]: point.value for point in reading.reading.points if point.name == START}


def of_this_process() -> str:
    """What the library of vLLM's page says of the process that it runs in."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def test_it_is_the_start_of_the_process_that_serves_the_page() -> None:
    reader = PageReader("e")
    page = (of_this_process() + OWN_CODE).encode()
    for reading in (reader.read(page), reader.read(page)):
        assert starts(reading) == {"Qwen/Qwen3-8B": pytest.approx(psutil.Process().create_time(), abs=1.0)}
        assert not reading.reading.refused
        assert not reading.lint


def test_of_each_model_that_the_page_is_of() -> None:
    lines = [f'vllm:num_requests_running{{model_name="{model}"}} 0\n' for model in ("a", "b")]
    reading = PageReader("e").read("".join([*lines, "process_start_time_seconds 1.7e+09\n"]).encode())
    assert starts(reading) == {"a": 1.7e9, "b": 1.7e9}
    infos = [dict(point.tags)["model"] for point in reading.reading.points if point.name == "aie_engine_info"]
    assert sorted(infos) == ["a", "b"], "and of no model without a name"


def test_a_restart_is_a_later_start() -> None:
    reader = PageReader("e")
    page = render.PAGES["vllm-0.8"]()
    (before,) = starts(reader.read(page.encode())).values()
    (after,) = starts(reader.read(page.replace(f"{render.STARTED_S:.10e}".rstrip("0"), "1.75e+09").encode())).values()
    assert (before, after) == (render.STARTED_S, 1.75e9)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("process_start_time_seconds NaN", "not_finite"),
        ("# TYPE process_start_time_seconds counter\nprocess_start_time_seconds 1.7e+09", "kind_conflict"),
    ],
)
def test_what_is_no_start_is_refused(line: str, reason: str) -> None:
    reading = PageReader("e").read(f"{line}\n{OWN_CODE}".encode())
    assert starts(reading) == {}
    assert reading.reading.refused == {reason: 1}


@pytest.mark.parametrize("page", ["vllm-0.33.0-dp2-own-code", "sglang-0.5.23-dp2-own-code", "tgi-2", "llama.cpp-2026-10"])
def test_no_page_that_does_not_say_it_has_one(page: str) -> None:
    assert starts(PageReader("e").read((Path(render.__file__).parent / f"{page}.prom").read_bytes())) == {}


def test_the_start_of_another_program_s_page_is_no_engine_s() -> None:
    reading = PageReader("e").read(of_this_process().encode())
    assert (reading.kind, reading.reading.points) == (None, [])
