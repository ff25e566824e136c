"""Runs faults one after another: healthy, broken, repaired, and again."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from tests.faultlab.engine_faults import ENGINE_FAULTS
from tests.faultlab.faults import Fault
from tests.faultlab.gpu_faults import GPU_FAULTS
from tests.faultlab.host_faults import HOST_FAULTS
from tests.faultlab.judge import (
    BUSY_CPUS,
    Key,
    Look,
    Result,
    ambient,
    excused,
    healthy,
    is_named,
    judge,
    keys,
    sentences,
    unanswered,
)
from tests.faultlab.programs import LabError, SilentError
from tests.faultlab.report import in_words
from tests.faultlab.world import World

FAULTS: Final = (*ENGINE_FAULTS, *HOST_FAULTS, *GPU_FAULTS)

LOOK_S: Final = 0.25
AFTER_S: Final = 5.0
"""How long a fault is watched after it was named: what explains it, or hides it, may come later."""
CLEARED_S: Final = 25.0
"""How long what was found may take to go after the repair. Some are told for minutes on purpose: then the agent is renewed."""

Tell = Callable[[str], None]


def run(faults: Sequence[Fault], directory: Path, tell: Tell, load: float | None = None) -> Iterator[Result]:
    """The result of each fault, in an order in which those with one setup come together. `load`, in requests a second, is what
    clients send all the time; without it the engine is measured."""
    loads: dict[tuple[str, float], float] = {}
    names = [each.setup.name for each in faults]
    ordered = sorted(faults, key=lambda fault: names.index(fault.setup.name))
    for setup, group in itertools.groupby(ordered, key=lambda fault: fault.setup):
        tell(f"setup {setup.name}: engine and agent start")
        key = setup.body.__name__, setup.share
        with World(setup, directory / setup.name, load or loads.get(key)) as world:
            loads[key] = world.load
            tell(f"setup {setup.name}: {world.load:.2f} requests/s")
            for what, why in world.lacks.items():
                tell(f"setup {setup.name}: this host does not let the agent see {what}: {why}")
            yield from _run_in(world, list(group), tell)


def _run_in(world: World, faults: Sequence[Fault], tell: Tell) -> Iterator[Result]:
    before: frozenset[Key] = frozenset()
    for fault in faults:
        tell(f"{fault.name}: {fault.what}")
        result = run_one(world, fault, before)
        tell(f"{fault.name}: {_in_words(result)}")
        yield result
        if fault is not faults[-1]:
            before = repaired(world, fault)


def run_one(world: World, fault: Fault, before: frozenset[Key]) -> Result:
    """Watches a healthy world, breaks it, and watches again. `before` is left over from the fault before, and no news."""
    calm = list(looks(world, fault.healthy_s))
    well = healthy(calm, before)
    cpus = _most(calm)
    result = Result(
        *(fault.name, fault.what, fault.answer, fault.fast),
        healthy_s=fault.healthy_s,
        false_alarms=well.false_alarms,
        others_cpus=cpus,
        ambient=_causes(well.ambient),
        sentences=sentences(calm, before),
    )
    if well.ambient & fault.keys:
        return replace(result, skipped=f"others on this host take {cpus:.1f} CPUs: {', '.join(result.ambient)} is found already")
    return _break(world, fault, result, well.ambient, keys(calm[-1].findings))


def _break(world: World, fault: Fault, result: Result, true: frozenset[Key], there: frozenset[Key]) -> Result:
    """The result with what came of the fault. An agent that falls silent under it does not name it, and is renewed."""
    seen: list[Look] = []
    last_words: tuple[str, ...] = ()
    try:
        with fault.inject(world):
            seen.extend(until_named(world, fault, there))  # what came before an error is kept
    except SilentError as error:
        last_words = (str(error),)
        world.restart_agent()
    except LabError as error:
        return replace(result, skipped=str(error).splitlines()[0])
    verdict = judge(seen, fault.expected, there)
    return replace(
        result,
        verdict=unanswered(verdict) if last_words else verdict,
        others_cpus=max(result.others_cpus, _most(seen)),
        ambient=_causes(true | (excused(seen, there) - fault.keys)),
        sentences=result.sentences + sentences(seen, there) + last_words,
    )


def _most(seen: Iterable[Look]) -> float:
    return max((look.load.others_cpus for look in seen), default=0.0)


def _causes(found: Iterable[Key]) -> tuple[str, ...]:
    return tuple(sorted(cause for cause, _ in found))


def looks(world: World, seconds: float) -> Iterator[Look]:
    """What the agent says, for so long, and once at least."""
    began = time.monotonic()
    while True:
        found = world.findings()
        after_s = time.monotonic() - began
        yield Look(after_s, found, world.host.lately())
        if after_s >= seconds:
            return
        time.sleep(LOOK_S)


def until_named(world: World, fault: Fault, before: frozenset[Key]) -> Iterator[Look]:
    """What it says until some seconds after the fault was named, or until the fault's limit."""
    end_s = fault.limit_s
    for look in looks(world, fault.limit_s):
        yield look
        if is_named(look, fault.expected, before):
            end_s = min(end_s, look.after_s + AFTER_S)
        if look.after_s >= end_s:
            return


def repaired(world: World, fault: Fault) -> frozenset[Key]:
    """Waits until nothing of the fault is left. What does not go by itself goes with the agent. Returns what stays even so. A new
    agent knows of nothing that was: what it says is news."""
    if fault.apart:
        return keys(world.findings())
    if fault.renews:
        world.restart_engine()
    elif not fault.tells_on:
        passing = ((keys(look.findings), ambient(look.load) - fault.keys) for look in looks(world, CLEARED_S))
        clear = next((left for left, true in passing if left <= true), None)
        if clear is not None:
            return clear
    world.restart_agent()
    return frozenset()


def _in_words(result: Result) -> str:
    verdict = result.verdict
    if verdict is None:
        return f"not run: {result.skipped}"
    after = "" if verdict.seconds is None else f" after {verdict.seconds:.1f} s"
    alarms = f"; before it: {in_words(result.false_alarms)}" if result.false_alarms else ""
    busy = f"; others take {result.others_cpus:.1f} CPUs" if result.others_cpus >= BUSY_CPUS else ""
    also = f", also {in_words(verdict.others)}" if verdict.others else ""
    wrong = f"; {'; '.join(verdict.amiss)}" if verdict.amiss else ""
    return f"{verdict.named_as or 'nothing'}{after}{alarms}{busy}{also}{wrong}"
