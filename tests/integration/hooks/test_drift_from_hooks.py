"""From the hooks of an engine, through a real socket, to a finding: what the analyser of drift gets is what the engine measured."""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.reference import About
from aie_agent.analysis.findings import Limits, View
from aie_agent.outputs.value_recorder import ValueRecorder
from aie_agent.request_values import STATISTICS, RequestValues
from aie_agent.sources.statsd import StatsdSource
from aie_agent.store import Store
from aie_hooks import Emitter, LogitsHooks

BATCH = 10
"""Answers between two looks: few enough for the socket's queue, so that the sender drops none."""

DEADLINE_S = 60.0


@pytest.fixture
async def source(tmp_path: Path) -> AsyncIterator[StatsdSource]:
    source = StatsdSource(tmp_path / "s", None)
    await source.open()
    yield source
    await source.close()


@pytest.fixture
def emitter(source: StatsdSource, tmp_path: Path) -> Emitter:
    # No thread: it sends when the test says so.
    return Emitter("e", f"unix://{tmp_path}/s", packets_per_second=1e9, flush_interval_s=float("inf"))


LENGTH = "aie_engine_output_log_length"


class Engine:
    """Answers, as an engine tells its hooks of them, and what it told."""

    def __init__(self, emitter: Emitter) -> None:
        self.emitter = emitter
        self.hooks = LogitsHooks(emitter, model="m", rate=1.0)
        self.rng = random.Random(1)
        self.told: dict[str, list[float]] = defaultdict(list)
        self.answers = 0

    def answer(self, shift: float = 0.0, nan: bool = False) -> None:
        """One, of some tokens."""
        self.answers += 1
        tokens = self.rng.randint(2, 400)
        entropy, logprob, logsumexp = self.rng.gauss(2 + shift, 0.5), -self.rng.uniform(0.5, 2), self.rng.gauss(20, 2)
        with self.hooks.enter() as hook:
            for _ in range(tokens if hook.wanted else 0):
                number = float("nan") if nan else logprob
                hook.add(number, entropy, logsumexp)
        self.told["entropy"].append(entropy)
        self.told["first_token_logsumexp"].append(logsumexp)


class Agent:
    """The parts of the agent that drift goes through."""

    def __init__(self, source: StatsdSource, *references: Assigned, before: int = 0) -> None:
        """`before` answers were sent to another agent."""
        self.source = source
        self.before = before
        self.came = 0
        self.store = Store(max_series=1000, retention_s=300.0)
        self.values = RequestValues()
        self.analyser = DriftAnalyser(references)
        self.now_s = 1000.0

    async def second(self, engine: Engine) -> None:
        """Sends what the engine told, and takes it in once all of it has come."""
        engine.emitter.flush()
        self.now_s += 1.0
        end = time.monotonic() + DEADLINE_S
        while True:
            batch = await self.source.collect(self.now_s)
            self.store.apply(batch)
            self.values.take(batch)
            self.came += sum(len(each.values) for each in batch.values if each.name == LENGTH)
            if self.came >= engine.answers - self.before:
                break
            assert time.monotonic() < end, engine.emitter.stats()
            await asyncio.sleep(0.002)
        self.analyser.observe(self._view(), self.now_s)

    async def seconds(self, engine: Engine, count: int, **how: Any) -> None:
        """So many, in each of which the engine answers."""
        for _ in range(count):
            for _ in range(BATCH):
                engine.answer(**how)
            await self.second(engine)

    def _view(self) -> View:
        return View(
            store=self.store,
            engines=["e"],
            state=lambda _: "up",
            processes=lambda _: [],
            unanswered_since_s=lambda _: None,
            limits=Limits(),
            values=self.values.since,
        )


async def test_every_value_comes_once_and_in_order(source: StatsdSource, emitter: Emitter) -> None:
    engine, agent = Engine(emitter), Agent(source)
    await agent.seconds(engine, 20)
    _, arrived = agent.values.since(0)
    came: dict[str, list[float]] = defaultdict(list)
    for each in arrived:
        assert (each.engine, each.model, each.lost) == ("e", "m", 0)
        came[each.statistic] += each.values
    assert set(came) == {each.name for each in STATISTICS}
    assert {name: len(values) for name, values in came.items()} == dict.fromkeys(came, 20 * BATCH)
    for name, told in engine.told.items():
        assert came[name] == pytest.approx(told, rel=1e-5)


async def test_the_histogram_beside_it_is_as_before(source: StatsdSource, emitter: Emitter) -> None:
    engine, agent = Engine(emitter), Agent(source)
    await agent.seconds(engine, 1)
    (histogram,) = agent.store.histograms("aie_engine_output_entropy_nats", engine="e")
    assert sum(histogram.counts) == BATCH


async def test_a_model_that_changes_is_found_and_one_that_does_not_is_not(source: StatsdSource, emitter: Emitter) -> None:
    engine = Engine(emitter)
    recorded = Agent(source)
    columns: dict[str, list[float]] = defaultdict(list)
    await recorded.seconds(engine, 100)
    for each in recorded.values.since(0)[1]:
        columns[each.statistic] += each.values
    agent = Agent(source, Assigned(build(columns, About(model="m"))), before=engine.answers)
    await agent.seconds(engine, 100)
    assert agent.analyser.findings(agent.now_s) == []
    await agent.seconds(engine, 60, shift=0.5)
    (finding,) = agent.analyser.findings(agent.now_s)
    assert (finding.cause, finding.subject) == ("output_drift", "e")


async def test_a_model_that_gives_nan_is_found(source: StatsdSource, emitter: Emitter) -> None:
    engine, agent = Engine(emitter), Agent(source)
    await agent.seconds(engine, 1)
    assert agent.analyser.findings(agent.now_s) == []
    await agent.seconds(engine, 2, nan=True)
    (finding,) = agent.analyser.findings(agent.now_s)
    assert (finding.cause, finding.severity) == ("nan_logits", "critical")


async def test_what_comes_is_recorded_for_a_reference(source: StatsdSource, emitter: Emitter, tmp_path: Path) -> None:
    engine, agent, recorder = Engine(emitter), Agent(source), ValueRecorder(tmp_path)
    position = 0
    for _ in range(3):
        await agent.seconds(engine, 2)
        position, arrived = agent.values.since(position)
        recorder.take(arrived)
        recorder.write(agent.now_s)
    header, *rows = (tmp_path / "e-m.csv").read_text().splitlines()
    assert header.split(",") == ["time_s", "request", *(each.name for each in STATISTICS)]
    assert [float(row.split(",")[2]) for row in rows] == pytest.approx(engine.told["entropy"], rel=1e-5)
