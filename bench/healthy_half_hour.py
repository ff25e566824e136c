"""Half an hour in which nothing is wrong: an engine under a mixed load, eight GPUs, the agent as shipped. Nothing may be found.

    python bench/healthy_half_hour.py [--minutes 30] [--nice N]

The load changes every minute (half, whole, none, other prompts, a burst of clients), as it does for engines that are well. What is
found is printed with its evidence, and the status is 1; that the engine lacks CPU is none of it where others on the host take it,
nor is what this host does not let the agent see, which is printed first. Where the agent falls silent, or nothing can be started,
the status is 2, whatever was found until then.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from aie_telemetry.api import Finding
from tests.faultlab.clients import Body, demo_chat, foreign_chat, repeated_chat, short_chat
from tests.faultlab.judge import Key, Look, keys, new
from tests.faultlab.lab import looks
from tests.faultlab.programs import LabError
from tests.faultlab.world import Setup, World

SETUP: Final = Setup("healthy", engine_options=("--response-cache-bytes", str(64 << 20)), gpus=8)
MINUTE_S: Final = 60.0


class Phase(NamedTuple):
    """A minute of load: what is asked, how much of the steady load, and clients that come at once besides."""

    name: str
    body: Body
    share: float
    clients: int = 0


PHASES: Final = (
    Phase("short questions", short_chat, 1.0),
    Phase("half of that", short_chat, 0.5),
    Phase("the demo's mix", demo_chat, 0.25),
    Phase("a burst of 4 clients", short_chat, 0.5, 4),
    Phase("questions that repeat", repeated_chat, 1.0),
    Phase("nobody asks", short_chat, 0.001),
    Phase("other languages and code", foreign_chat, 0.25),
)


class Found(NamedTuple):
    """A finding as it was said last, and in which minute it was first there."""

    minute: str
    finding: Finding


def watch(world: World, minutes: float, tell: Callable[[str], None], found: dict[Key, Found]) -> None:
    """Puts what is found into `found`, once each, as it was said last. What is there when it raises LabError was found before."""
    left_s = minutes * MINUTE_S
    load = world.load
    for number, phase in enumerate(itertools.cycle(PHASES)):
        if left_s <= 0:
            return
        world.clients.send(load * phase.share)
        seen: list[Look] = []
        with world.clients.instead(phase.body), _burst(world, phase.clients):
            for look in looks(world, min(MINUTE_S, left_s)):
                seen.append(look)
                _note(look, f"minute {number + 1}, {phase.name}", found)
        cpus = max(look.load.others_cpus for look in seen)
        names = ", ".join(sorted(cause for cause, _ in keys(each for look in seen for each in look.findings))) or "nothing"
        tell(f"minute {number + 1}: {phase.name}: found {names}; others took {cpus:.1f} CPUs")
        left_s -= MINUTE_S


def _note(look: Look, minute: str, found: dict[Key, Found]) -> None:
    for finding in new(look, frozenset()):
        key = finding.cause, finding.subject
        found[key] = Found(found[key].minute if key in found else minute, finding)


def _burst(world: World, clients: int) -> AbstractContextManager[None]:
    return world.clients.flood(clients) if clients else contextlib.nullcontext()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 when something was found, 2 when it did not come to its end: what was found until then is printed, too."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nice", type=int, default=0, help="run at this nice value, below 0 where others use the host")
    parsed = parser.parse_args(arguments)
    os.nice(parsed.nice)
    found: dict[Key, Found] = {}
    outcomes: Counter[str] = Counter()
    broken = False
    try:
        _run(parsed.minutes, found, outcomes)
    except (LabError, OSError) as error:
        print(f"healthy: {error}", file=sys.stderr)
        broken = True
    for each in found.values():
        print(f"\n{each.minute}: {each.finding.cause} ({each.finding.subject}): {each.finding.summary}")
        print("\n".join(f"  {evidence.text} ({evidence.metric})" for evidence in each.finding.evidence))
    answers = ", ".join(f"{count} x {status}" for status, count in outcomes.most_common())
    whole = "not all of " if broken else ""
    print(f"\n{whole}{parsed.minutes:g} healthy minutes: {len(found)} false alarms; answers: {answers}")
    return 2 if broken else int(bool(found))


def _run(minutes: float, found: dict[Key, Found], outcomes: Counter[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="aie-healthy-") as directory, World(SETUP, Path(directory)) as world:
        for what, why in world.lacks.items():
            print(f"this host does not let the agent see {what}: {why}", flush=True)
        print(f"steady load {world.load:.2f} requests/s", flush=True)
        try:
            watch(world, minutes, lambda text: print(text, flush=True), found)
        finally:
            outcomes.update(world.clients.outcomes)


if __name__ == "__main__":
    sys.exit(main())
