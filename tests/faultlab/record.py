"""Records the reference that the lab compares answers with, of its own traffic.

    python -m tests.faultlab.record FILE [--requests N] [--nice N]

The engine, its clients and the agent are those of the setup `drift`; the agent writes what the hooks tell, and makes a reference of
it.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.faultlab.clients import CLIENTS
from tests.faultlab.faults import DRIFT
from tests.faultlab.programs import BIN, until
from tests.faultlab.world import MODEL, World

RATE: Final = 2.0
"""Answers a second that the lab may come to: for these the reference is calibrated."""


def main() -> int:
    """Exit status of `aie-agent baseline build`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--nice", type=int, default=0)
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    with tempfile.TemporaryDirectory(prefix="aie-record-") as directory:
        recordings = Path(directory) / "recordings"
        recordings.mkdir()
        setup = dataclasses.replace(DRIFT, reference=None, engine_options=("--sample-outputs", "1"), record=recordings)
        with World(setup, Path(directory), load=0.1) as world, world.clients.flood(CLIENTS):
            until(lambda: _rows(recordings) >= arguments.requests, "too few answers", world.engine, limit_s=3600.0)
        (recorded,) = recordings.glob("*.csv")
        described = ["--model", MODEL, "--traffic-class", "faultlab", "--rate", str(RATE)]
        build = [BIN / "aie-agent", "baseline", "build", recorded, "--output", arguments.file, *described]
        return subprocess.run(build, check=False).returncode


def _rows(recordings: Path) -> int:
    """How many answers the agent has written so far."""
    return max((len(file.read_text().splitlines()) - 1 for file in recordings.glob("*.csv")), default=0)


if __name__ == "__main__":
    sys.exit(main())
