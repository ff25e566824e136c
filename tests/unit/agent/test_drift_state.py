"""What the analyser of drift keeps over a restart of the agent; and state that is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from fakes.drift_world import DriftWorld, reference_of, usual_reference

from aie_agent.analysis.drift.analyser import Assigned, DriftAnalyser
from aie_agent.analysis.drift.reference import Reference
from aie_agent.request_values import RequestValues


@pytest.fixture(scope="module")
def reference() -> Reference:
    return usual_reference()


def test_a_restart_of_the_agent_forgets_nothing(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(600)
    world.requests(350, entropy=1.5)
    state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
    world.analyser = DriftAnalyser([Assigned(reference)])
    world.values = RequestValues()
    world.analyser.restore(state, world.now_s)
    assert world.analyser.dump() == state, "also of those that were not heard since"
    found = world.requests(300, entropy=1.5)
    assert next(index for index, each in enumerate(found) if each) <= 24
    assert len(msgspec.json.encode(world.analyser.dump())) < 16_000


def test_a_state_for_another_reference_begins_anew(reference: Reference) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(450, entropy=1.5)
    state = world.analyser.dump()
    world.analyser, world.values = DriftAnalyser([Assigned(reference_of(sampling="other"))]), RequestValues()
    world.analyser.restore(state, world.now_s)
    world.requests(100, entropy=1.5)
    assert world.metrics()["aie_drift_windows_total", "entropy"] == 1


Change = Callable[[dict[str, Any]], object]

DAMAGE: tuple[Change, ...] = (
    lambda state: state.update(streams=3),
    lambda state: state["streams"].append(7),
    lambda state: state.update(told="e"),
    lambda state: state.update(told=[1]),
    lambda state: state["streams"][0].update(engine=None),
    lambda state: state["streams"][0].update(revision=1),
    lambda state: state["streams"][0]["watches"].pop("entropy"),
    lambda state: state["streams"][0]["watches"]["entropy"].update(taken="many"),
)


@pytest.mark.parametrize("change", DAMAGE)
def test_a_state_that_is_none_is_refused_and_leaves_a_usable_analyser(reference: Reference, change: Change) -> None:
    world = DriftWorld(Assigned(reference))
    world.requests(250)
    state = msgspec.json.decode(msgspec.json.encode(world.analyser.dump()))
    change(state)
    world.analyser = DriftAnalyser([Assigned(reference)])
    with pytest.raises(ValueError, match=r"."):
        world.analyser.restore(state, world.now_s)
    assert world.requests(600, entropy=1.5)[-1]
