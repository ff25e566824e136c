"""`make faultlab`: breaks a running engine in each known way, and prints what the agent made of it.

    python -m tests.faultlab [--only NAME] [--json FILE] [--nice N] [--list] [--show FILE ...]

A fault is a row (`faults.py`): what is done to whom, how it is undone, which cause names it. `world.py` holds what is broken: the
reference engine with SmolLM2, clients, and the agent as shipped. `judge.py` is pure: from what was seen to a row of the table.
Exit status 0 when the targets are reached, 1 below them, 2 when the lab cannot run, or not to its end: what ran is in the table.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faultlab.faults import Fault
from tests.faultlab.judge import Result, totals
from tests.faultlab.lab import FAULTS, run
from tests.faultlab.programs import LabError
from tests.faultlab.report import as_json, from_json, markdown, together


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status."""
    parsed = _parser().parse_args(arguments)
    if parsed.list:
        print("\n".join(f"{fault.name:18}{fault.setup.name:9}{fault.what}" for fault in FAULTS))
        return 0
    results: list[Result] = []
    try:
        faults = chosen(parsed.only)
        if parsed.show:
            return _print(together([from_json(file.read_bytes()) for file in parsed.show]))
    except (ValueError, OSError) as error:
        print(f"faultlab: {error}", file=sys.stderr)
        return 2
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f} s  {text}", file=sys.stderr, flush=True)

    os.nice(parsed.nice)
    broken = False
    try:
        with tempfile.TemporaryDirectory(prefix="aie-faultlab-") as directory:
            results.extend(run(faults, Path(directory), tell))  # what came before an error is kept
    except (LabError, OSError) as error:
        print(f"faultlab: {error}", file=sys.stderr)
        broken = True
    if broken and not results:
        return 2
    if parsed.json is not None:
        parsed.json.write_bytes(as_json(results))
    status = _print(results)
    return 2 if broken else status


def _print(results: Sequence[Result]) -> int:
    print(markdown(results))
    return 0 if totals(results).reached else 1


def chosen(names: Sequence[str], setup: str | None = None) -> list[Fault]:
    """The faults of these names or setups, all of them without any; in another setup than their own where one is given. Raises
    ValueError for a name that is none."""
    wanted = {name for each in names for name in each.replace(",", " ").split()}
    known = {fault.name for fault in FAULTS} | {fault.setup.name for fault in FAULTS}
    if wanted - known:
        raise ValueError(f"no fault is called {', '.join(sorted(wanted - known))}; --list shows them")
    found = [fault for fault in FAULTS if not wanted or {fault.name, fault.setup.name} & wanted]
    instead = {fault.setup.name: fault.setup for fault in FAULTS}.get(setup or "")
    return found if instead is None else [dataclasses.replace(fault, setup=instead) for fault in found]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.faultlab", description="Breaks a running engine in each known way.")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="a fault or a setup; several with commas")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON, too")
    parser.add_argument(
        "--nice", type=int, default=0, metavar="N", help="run at this nice value, below 0 where others use the host"
    )
    parser.add_argument(
        "--show",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="only print the table of such files; of a fault that is in several, the last",
    )
    parser.add_argument("--list", action="store_true", help="print the faults, and end")
    return parser


if __name__ == "__main__":
    sys.exit(main())
