"""How the lab goes from fault to fault: what a renewed agent says, one that falls silent, and what is repaired whatever happens."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from aie_agent import simulate
from aie_telemetry.api import Finding
from tests.faultlab import __main__ as command
from tests.faultlab import lab
from tests.faultlab.__main__ import chosen
from tests.faultlab.faults import PLAIN, Fault
from tests.faultlab.host_load import Load
from tests.faultlab.judge import Answer, Result, Said, Verdict
from tests.faultlab.programs import LabError, SilentError
from tests.faultlab.world import World

DOWN = Finding(cause="engine_down", subject="engine", severity="critical", since_s=0.0, summary="s")
GC = Finding(cause="python_gc", subject="engine", severity="warning", since_s=0.0, summary="s")


class Scripted:
    """What a run asks of a world: its agent says one thing after the other, or falls silent. A new agent says what comes then."""

    def __init__(self, *says: tuple[Finding, ...] | None, renewed: tuple[Finding, ...] = ()) -> None:
        self.says = list(says)
        self.renewed = renewed
        self.done: list[str] = []
        self.load = 1.0
        self.lacks: dict[str, str] = {}

    def findings(self) -> tuple[Finding, ...]:
        now = self.says.pop(0) if len(self.says) > 1 else self.says[0]
        if now is None:
            raise SilentError("the agent does not answer:\nits last line")
        return now

    @property
    def host(self) -> Scripted:
        return self

    def lately(self) -> Load:
        return Load()

    def restart_agent(self) -> None:
        self.done.append("agent")
        self.says = [self.renewed]

    def restart_engine(self, *options: str) -> None:
        self.done.append(" ".join(("engine", *options)))

    @property
    def as_world(self) -> World:
        return cast(World, self)


@contextlib.contextmanager
def nothing_done(_: World) -> Iterator[None]:
    yield


FAULT = Fault("f", "what", PLAIN, nothing_done, Answer("python_gc"), limit_s=0.3, healthy_s=0.0)


def test_an_agent_that_falls_silent_under_a_fault_does_not_name_it_and_is_renewed() -> None:
    scripted = Scripted((), (GC,), None)
    result = lab.run_one(scripted.as_world, FAULT, frozenset())
    assert result.verdict == Verdict(None, False, False, amiss=("the agent does not answer",))
    assert result.skipped == ""
    assert result.sentences[-1] == "the agent does not answer:\nits last line"
    assert scripted.done == ["agent"]
    named = lab.run_one(Scripted((), (GC,)).as_world, FAULT, frozenset()).verdict
    assert named is not None
    assert named.named


def test_an_answer_that_was_waited_for_counts_from_when_it_came(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    class Slow(Scripted):
        def findings(self) -> tuple[Finding, ...]:
            nonlocal now_s
            now_s += 7.0
            return super().findings()

    monkeypatch.setattr(lab, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=lambda _: None))
    assert [look.after_s for look in lab.looks(Slow(()).as_world, 10.0)] == [7.0, 14.0]


def test_a_fault_that_cannot_be_done_here_is_left_out() -> None:
    def refused(_: World) -> contextlib.AbstractContextManager[None]:
        raise LabError("no quota can be set")

    result = lab.run_one(Scripted(()).as_world, dataclasses.replace(FAULT, inject=refused), frozenset())
    assert (result.verdict, result.skipped) == (None, "no quota can be set")


@pytest.mark.parametrize("renewed", [{"tells_on": True}, {"renews": True}])
def test_what_a_renewed_agent_says_is_no_leftover_of_the_fault(renewed: dict[str, bool]) -> None:
    scripted = Scripted((), renewed=(DOWN,))
    before = lab.repaired(scripted.as_world, dataclasses.replace(FAULT, **renewed))  # type: ignore[arg-type]
    assert scripted.done[-1] == "agent"
    after = lab.run_one(scripted.as_world, FAULT, before)
    assert after.false_alarms == (Said("engine_down", "engine", "critical"),)


def test_after_what_goes_by_itself_only_what_stood_at_the_clear_look_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "LOOK_S", 0.01)
    scripted = Scripted((GC,), (), (DOWN,))
    assert lab.repaired(scripted.as_world, FAULT) == frozenset()
    assert scripted.done == []
    apart = Scripted((DOWN,))
    assert lab.repaired(apart.as_world, dataclasses.replace(FAULT, apart=True)) == {("engine_down", "engine")}


def test_what_ran_is_printed_and_written_when_the_lab_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = Result("first", "what", Answer("c"), True, Verdict(Said("c", "engine", "warning"), True, True, 4.0))

    def run(*_: object) -> Iterator[Result]:
        yield done
        raise SilentError("the agent does not answer:\nits last line")

    monkeypatch.setattr(command, "run", run)
    file = tmp_path / "results.json"
    assert command.main(["--only", "stopped", "--json", str(file)]) == 2
    told = capsys.readouterr()
    assert "| first | what | c (warning) | right | 4.0 |" in told.out
    assert "the agent does not answer" in told.err
    assert [each["fault"] for each in json.loads(file.read_text())["results"]] == ["first"]


def test_a_cache_that_was_made_small_is_made_whole_where_that_fails() -> None:
    scripted = Scripted(())
    made = scripted.restart_engine

    def restart(*options: str) -> None:
        made(*options)
        if options:
            raise LabError("aie-engine is not ready")

    scripted.restart_engine = restart  # type: ignore[method-assign]
    (fault,) = chosen(("kv-too-small",))
    with pytest.raises(LabError), fault.inject(scripted.as_world):
        pass
    assert scripted.done == ["engine --kv-tokens 64", "engine"]


@pytest.mark.parametrize("name", ["tenant", "orphan"])
def test_a_gpu_is_its_engines_again_where_the_agent_falls_silent_meanwhile(name: str) -> None:
    placed: list[int] = []

    class Gpus:
        engine = type("Engine", (), {"pid": 1})

        def simulated(self) -> Gpus:
            return self

        def set_processes(self, _: int, processes: list[simulate.Process]) -> None:
            placed.append(len(processes))

    def fall_silent(inject: Callable[[World], contextlib.AbstractContextManager[None]]) -> None:
        with inject(cast(World, Gpus())):
            raise SilentError("the agent does not answer:")

    (fault,) = chosen((name,))
    with pytest.raises(SilentError):
        fall_silent(fault.inject)
    assert placed == [2, 1]
