"""An engine that an agent does not trust: the agent's own file, and what clients and whoever routes see of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
from fakes.fake_engine import FakeEngine, fake_engine
from http_client import CHAT, Reply, chat, get, post

from aie_agent.outputs.degrade import DegradeFile
from aie_telemetry.api import Finding

NAME = "chat-1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "degraded"


@pytest.fixture
def engine(path: Path) -> Iterator[FakeEngine]:
    with fake_engine(name=NAME, degrade_file=path, response_cache_bytes=100_000) as engine:
        yield engine


def _say(file: DegradeFile, engine: FakeEngine, *findings: tuple[str, Literal["warning", "critical"]], subject: str = NAME) -> None:
    """As the agent does; returns once the engine has read it."""
    found = [Finding(cause=cause, subject=subject, severity=severity, since_s=1.0, summary="s") for cause, severity in findings]
    file.update(found, time.time())
    expected = tuple(sorted(cause for cause, _ in findings)) if subject == NAME else ()
    engine.wait_for(lambda: engine.serving.degraded.causes == expected)


def _greedy(engine: FakeEngine, **fields: bool) -> Reply:
    reply = post(engine.url, CHAT, chat(temperature=0, **fields))
    assert reply.status == 200
    return reply


def test_answers_are_marked_and_not_kept_while_it_lasts(engine: FakeEngine, path: Path) -> None:
    file = DegradeFile(path)
    _greedy(engine)
    assert _greedy(engine).headers["X-Aie-Cache"] == "hit"
    assert get(engine.url, "/health").json() == {"status": "ok"}
    _say(file, engine, ("output_drift", "warning"))
    for stream in (False, True):
        headers = _greedy(engine, stream=stream).headers
        assert headers["X-Aie-Degraded"] == "output_drift"
        assert "X-Aie-Cache" not in headers
    assert get(engine.url, "/health").json() == {"status": "degraded", "causes": ["output_drift"]}
    assert get(engine.url, "/health/ready").status == 200
    _say(file, engine)
    assert "X-Aie-Degraded" not in _greedy(engine).headers
    assert _greedy(engine).headers["X-Aie-Cache"] == "hit"


def test_worthless_answers_take_the_engine_out_of_the_rotation(engine: FakeEngine, path: Path) -> None:
    file = DegradeFile(path)
    _say(file, engine, ("nan_logits", "critical"))
    ready = get(engine.url, "/health/ready")
    assert (ready.status, ready.json()["reason"]) == (503, "answers are not to be trusted: nan_logits")
    _greedy(engine)  # whoever asks is answered
    _say(file, engine)
    assert get(engine.url, "/health/ready").status == 200


def test_what_is_said_of_others_is_not_heeded(engine: FakeEngine, path: Path) -> None:
    file = DegradeFile(path)
    _say(file, engine, ("output_drift", "warning"))
    _say(file, engine, ("output_drift", "warning"), subject="another")
    assert "X-Aie-Degraded" not in _greedy(engine).headers
