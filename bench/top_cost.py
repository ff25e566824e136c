"""What aie-top costs at 1 Hz, against an empty Textual app that changes one label, and how soon it shows something.

Both run on a pseudo-terminal of the same size, in interleaved pairs, so that what else the host does falls on both alike.
aie-top talks to a fake agent with two busy engines, whose threads wait; its process is not counted.

    python bench/top_cost.py [--pairs 5] [--seconds 15] [--size 120x40]

Prints medians and their ratio (budget: 3), the first paint (budget: 1 s), and exits with 1 when a budget is missed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
RATIO_BUDGET: Final = 3.0
PAINT_BUDGET_S: Final = 1.0
WARM_UP_S: Final = 3.0
# The first words that only a drawn screen has.
AIE_TOP_SHOWS: Final = b"ENGINES"
PEER_SHOWS: Final = b"tick"

PEER: Final = """
from textual.app import App
from textual.widgets import Label

class Peer(App):
    ticks = 0

    def compose(self):
        yield Label("tick 0")

    def on_mount(self):
        self.set_interval(1.0, self.tick)

    def tick(self):
        self.ticks += 1
        self.query_one(Label).update(f"tick {self.ticks}")

Peer().run()
"""


class Cost(NamedTuple):
    """`cores` after the start; `first_paint_s` from starting the process to its first words; `bytes_per_s` to the terminal."""

    cores: float
    first_paint_s: float
    bytes_per_s: float


def measure(command: list[str], shows: bytes, size: tuple[int, int], seconds: float) -> Cost:
    pid, terminal = pty.fork()
    if pid == 0:
        # Textual asks the terminal for its size once more when it starts.
        os.environ.update(TERM="xterm-256color", COLORTERM="truecolor")
        time.sleep(0.05)
        os.execvp(command[0], command)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    started = time.monotonic()
    try:
        first_paint_s = _read_until(terminal, shows, started)
        _drain(terminal, WARM_UP_S)
        before, since = _cpu_seconds(pid), time.monotonic()
        written = _drain(terminal, seconds)
        took = time.monotonic() - since
        return Cost((_cpu_seconds(pid) - before) / took, first_paint_s, written / took)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def _read_until(terminal: int, shows: bytes, started: float) -> float:
    seen = b""
    while shows not in seen:
        if time.monotonic() - started > 20:
            raise SystemExit(f"nothing on the terminal after 20 s but {seen[-200:]!r}")
        if select.select([terminal], [], [], 0.5)[0]:
            seen += os.read(terminal, 65536)
    # The child slept 50 ms before it started, until its terminal had a size.
    return time.monotonic() - started - 0.05


def _drain(terminal: int, seconds: float) -> int:
    end, total = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            total += len(os.read(terminal, 65536))
    return total


def _cpu_seconds(pid: int) -> float:
    """Of all its threads, to the nanosecond: /proc/PID/stat counts in steps of 10 ms, which is half of what a second costs here."""
    return sum(int(stat.read_text().split()[0]) for stat in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def _agent() -> tuple[subprocess.Popen[str], str]:
    """The fake agent at its real pace."""
    command = [sys.executable, str(ROOT / "tests/fakes/agent_api.py"), "0", "--waits"]
    agent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert agent.stdout is not None
    return agent, agent.stdout.readline().strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--size", default="120x40")
    options = parser.parse_args()
    columns, rows = (int(part) for part in options.size.split("x"))
    agent, url = _agent()
    ours, peers = [], []
    try:
        for pair in range(options.pairs):
            ours.append(
                measure([sys.executable, "-m", "aie_top", "--connect", url], AIE_TOP_SHOWS, (columns, rows), options.seconds)
            )
            peers.append(measure([sys.executable, "-c", PEER], PEER_SHOWS, (columns, rows), options.seconds))
            print(f"pair {pair + 1}: aie-top {ours[-1].cores:.2%} of a core, empty app {peers[-1].cores:.2%}", flush=True)
    finally:
        agent.terminate()
        agent.wait()
    return _report(ours, peers, options.size)


def _report(ours: list[Cost], peers: list[Cost], size: str) -> int:
    mine, theirs = (statistics.median(cost.cores for cost in costs) for costs in (ours, peers))
    ratio = statistics.median(one.cores / max(other.cores, 1e-9) for one, other in zip(ours, peers, strict=True))
    paint, their_paint = (statistics.median(cost.first_paint_s for cost in costs) for costs in (ours, peers))
    output = statistics.median(cost.bytes_per_s for cost in ours)
    print(f"at {size}, 1 Hz, medians of {len(ours)} pairs")
    print(f"CPU: aie-top {mine:.2%} of a core, empty app {theirs:.2%}; median ratio {ratio:.2f} (budget {RATIO_BUDGET:g})")
    print(f"first paint: aie-top {paint:.2f} s (budget {PAINT_BUDGET_S:g} s), empty app {their_paint:.2f} s")
    print(f"to the terminal: {output:.0f} bytes/s")
    return 0 if ratio <= RATIO_BUDGET and paint <= PAINT_BUDGET_S else 1


if __name__ == "__main__":
    sys.exit(main())
