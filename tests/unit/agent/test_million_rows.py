"""A million rows, as a process of its own: the verdict is right, and memory does not grow with the file."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

AIE_AGENT: Final = Path(sys.executable).parent / "aie-agent"
ROWS: Final = 1_000_000
MIB: Final = 1 << 20
MOST_MIB: Final = 150
"""Of the whole process. The interpreter and what it imports take 40; a million rows of a column take 8 as floats, and 60 or more
as Python's objects."""


# The kernel counts what a process was before it executed a program, too: all that the tests have loaded. So a small one starts it.
_MEASURED: Final = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:])
print(done.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def _verdict(*arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """The exit status and what is printed; the process may have no more memory than that."""
    command = [sys.executable, "-c", _MEASURED, AIE_AGENT, *arguments, "--json"]
    printed, measured = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    status, most_kib = map(int, measured.split())
    assert most_kib < MOST_MIB * MIB // 1024
    found: dict[str, Any] = msgspec.json.decode(printed)
    return status, found


def _write(path: Path, header: str, rows: Iterator[str]) -> Path:
    with path.open("w") as file:
        file.write(f"{header}\n")
        file.writelines(rows)
    return path


def test_of_memory(tmp_path: Path) -> None:
    """A row a second, for eleven days and a half; it leaks after five."""
    begins_s, bytes_per_s = 5 * 86_400, 2.8e6 / 60
    sizes = (12e9 + max(second - begins_s, 0) * bytes_per_s + second % 7 * 1e6 for second in range(ROWS))
    rows = (f"{second},{size:.0f}\n" for second, size in enumerate(sizes))
    status, found = _verdict("leak", _write(tmp_path / "memory.csv", "time_s,physical_bytes", rows))
    assert (status, found["verdict"]) == (1, "leak")
    assert 160 < found["rate_mb_per_hour"] < 176
    assert abs(found["since_s"] - begins_s) < 86_400


def test_of_requests(tmp_path: Path) -> None:
    """The last tenth are another model's."""
    rng = random.Random(5)
    values = [rng.gauss(0.0, 1.0) for _ in range(5000)]
    reference = _write(tmp_path / "R.csv", "entropy", (f"{value:.6f}\n" for value in values[:2000]))
    drawn = (rng.choice(values) + (request >= 900_000) for request in range(ROWS))
    stream = _write(tmp_path / "S.csv", "entropy", (f"{value:.6f}\n" for value in drawn))
    status, found = _verdict("drift", "--reference", reference, "--stream", stream)
    assert (status, found["alarm"], found["first_alarm_request"]) == (1, True, 900_500)
    assert (found["requests"], found["evaluations"]) == (ROWS, ROWS // 100)
