"""What probes cost: an event beside bpftrace's, the engine with all that is on by default, and the child that holds them. As root.

    python bench/bpf_cost.py [--quick] [--limit 0.01]

1. CPU time that one event costs more: a futex call, a switch between threads, a call of a probed function whose first instruction
   the kernel emulates or steps over. Under our programs and under bpftrace's for the same question, in pairs of the same run: the
   ratio matters (the gate: its median is at most 1.5), nanoseconds are the machine's.
2. The calibrated cost of a hit, by kind, as the child measures it when it starts.
3. The reference engine under 8 clients: hits of the default sets by their calibrated cost, as a share of the time its steps took
   (the gate: 1 %; what one thread pays while another steps is counted, too), and how much longer a step was in paired slices of
   time. On a shared machine the interval of the pairs is wide; the sum is what is judged.
4. The child beside 64 processes, of which one has (a stand-in for) CUDA and the others sleep, or have eight threads each that wait
   for four locks: resident memory after it has trimmed (budget 125 MiB), CPU time to read all maps once, those of the charges,
   too (budget 3 ms, of the median; the time by the clock stands beside it), CPU of all it does.

Exits with 1 beyond a budget. Without bpftrace only our side is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aie_ebpf.door import Bcc
from bpf_client import Client, child
from bpf_engine import ChildCost, EngineCost, child_cost, engine, engine_cost, sleepers
from bpf_peers import HEADER, compare
from bpf_victim import busy, victim

PROCESSES: Final = 64
RESIDENT_MIB: Final = 125.0
READ_MS: Final = 3.0
PEER_RATIO: Final = 1.5


def events(rounds: int) -> list[str]:
    """Prints what an event costs. Returns what is dearer than beside bpftrace it may be."""
    with tempfile.TemporaryDirectory() as folder, victim(Path(folder)) as running:
        rows = compare(Bcc(), running, rounds)
    print(f"an event, by {rounds} rounds\n{HEADER}", *(row.line() for row in rows), sep="\n")
    dear = [row for row in rows if row.ratio is not None and row.ratio > PEER_RATIO]
    return [f"{row.work.what}: {row.ratio:.2f} times what it costs under bpftrace, beyond {PEER_RATIO}" for row in dear]


def failures(of_engine: EngineCost, of_child: Sequence[ChildCost], limit: float) -> list[str]:
    """What is beyond its budget."""
    found = []
    if of_engine.share > limit:
        found.append(f"probes take {of_engine.share:.2%} of a step, beyond {limit:.0%}")
    for each in of_child:
        beside = f"beside processes, {each.beside}"
        if each.resident_mib > RESIDENT_MIB:
            found.append(f"{beside}, the child has {each.resident_mib:.0f} MiB, beyond {RESIDENT_MIB:.0f}")
        if each.read_ms > READ_MS:
            found.append(f"{beside}, reading the maps takes {each.read_ms:.1f} ms of CPU, beyond {READ_MS:.0f}")
    return found


def living(client: Client, quick: bool) -> tuple[EngineCost, list[ChildCost]]:
    """The engine's cost and then the child's, of the same child."""
    with engine() as running:
        of_engine = engine_cost(client, running, *((3, 3.0) if quick else (10, 5.0)))
        print("\nthe engine under load", *of_engine.lines(), sep="\n")
        running.close()  # the time to read is the child's, and not that of a machine without a free core
        return of_engine, upkeep(client, [running.tgid], 5.0 if quick else 20.0)


def upkeep(client: Client, tgids: Sequence[int], seconds: float) -> list[ChildCost]:
    """What the child takes beside these processes and as many others as make `PROCESSES`, by what those do."""
    found = []
    with tempfile.TemporaryDirectory() as folder, victim(Path(folder)) as cuda:
        others = PROCESSES - 1 - len(tgids)
        for beside, processes in (("asleep", sleepers(others)), ("at locks", busy(Path(folder), others))):
            with processes as their:
                found.append(child_cost(client, beside, [*tgids, cuda.tgid, *their], seconds))
            print("", *found[-1].lines(RESIDENT_MIB, READ_MS), sep="\n", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: half a minute")
    parser.add_argument("--limit", type=float, default=0.01, help="the largest share of a step that is no failure")
    arguments = parser.parse_args()
    # The budget is far away: what is beyond ours is to be measured, and not detached.
    dear = events(3 if arguments.quick else 7)
    with child(budget=1.0) as (client, ready):
        print("\ncalibrated, ns a hit:", ", ".join(f"{kind} {cost:.0f}" for kind, cost in ready.cost_ns.items()))
        found = [*dear, *failures(*living(client, arguments.quick), arguments.limit)]
    if found:
        sys.exit("; ".join(found))


if __name__ == "__main__":
    main()
