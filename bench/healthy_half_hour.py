"""Half an hour in which nothing is wrong: an engine under a mixed load, eight GPUs, the agent as shipped. Nothing may be found.

    python bench/healthy_half_hour.py [--minutes 30] [--nice N]

The load changes every minute (half, whole, none, other prompts, a burst of clients), as it does for engines that are well. What is
found is printed with its evidence, and the status is 1; that the engine lacks CPU is none of it where others on the host take it,
nor is what this host does not let the agent see, which is printed first.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from aie_telemetry.api import Finding
from tests.faultlab.clients import Body, demo_chat, foreign_chat, repeated_chat, short_chat
from tests.faultlab.judge import Key, keys, new
from tests.faultlab.lab import looks
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
    """A finding, and in which minute it was first there."""

    minute: str
    finding: Finding


def watch(world: World, minutes: float, tell: Callable[[str], None]) -> list[Found]:
    """What was found, once each."""
    found: dict[Key, Found] = {}
    left_s = minutes * MINUTE_S
    load = world.load
    for number, phase in enumerate(itertools.cycle(PHASES)):
        if left_s <= 0:
            return list(found.values())
        world.clients.send(load * phase.share)
        with world.clients.instead(phase.body), _burst(world, phase.clients):
            seen = list(looks(world, min(MINUTE_S, left_s)))
        alarms = {(each.cause, each.subject): each for look in seen for each in new(look, frozenset())}
        for key, finding in alarms.items():
            found.setdefault(key, Found(f"minute {number + 1}, {phase.name}", finding))
        cpus = max(look.load.others_cpus for look in seen)
        names = ", ".join(sorted(cause for cause, _ in keys(each for look in seen for each in look.findings))) or "nothing"
        tell(f"minute {number + 1}: {phase.name}: found {names}; others took {cpus:.1f} CPUs")
        left_s -= MINUTE_S
    return list(found.values())


def _burst(world: World, clients: int) -> AbstractContextManager[None]:
    return world.clients.flood(clients) if clients else contextlib.nullcontext()


def main() -> int:
    """Exit status 1 when something was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--nice", type=int, default=0, help="run at this nice value, below 0 where others use the host")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    with tempfile.TemporaryDirectory(prefix="aie-healthy-") as directory, World(SETUP, Path(directory)) as world:
        for what, why in world.lacks.items():
            print(f"this host does not let the agent see {what}: {why}", flush=True)
        print(f"steady load {world.load:.2f} requests/s", flush=True)
        found = watch(world, arguments.minutes, lambda text: print(text, flush=True))
        outcomes = Counter(world.clients.outcomes)
    for each in found:
        print(f"\n{each.minute}: {each.finding.cause} ({each.finding.subject}): {each.finding.summary}")
        print("\n".join(f"  {evidence.text} ({evidence.metric})" for evidence in each.finding.evidence))
    answers = ", ".join(f"{count} x {status}" for status, count in outcomes.most_common())
    print(f"\n{arguments.minutes:g} healthy minutes: {len(found)} false alarms; answers: {answers}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
