"""A child that speaks the agent's protocol over file descriptor 0 and has no BPF: it does what its first argument says.

    python tests/fakes/bpf_child.py BEHAVIOUR [the arguments of the real one]

It writes what it is told, one message a line as JSON, to the file that AIE_FAKE_TOLD names.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from pathlib import Path

import msgspec

from aie_ebpf import messages as m

PERIOD_S = 0.1


def report(targets: tuple[m.Target, ...], count: int) -> m.Report:
    """What was seen of each target in one period: half a thread waited for the GIL."""
    slots = (1, *([0] * len(m.HISTOGRAM_BOUNDS_S)))
    return m.Report(
        period_s=PERIOD_S,
        processes=tuple(
            m.ProcessReport(
                engine=target.engine,
                tgid=target.tgid,
                waits=m.Waits(lock=0.0, gil=PERIOD_S / 2, sleep=PERIOD_S),
                locks=(m.Lock(address=0x7F0010, kind="gil", waits=5, wait_s=PERIOD_S / 2, longest_s=0.01, handoffs=5, waiters=1),),
                run_queue=m.Histogram(slots=slots, total=1e-6),
            )
            for target in targets
        ),
        costs=tuple(m.Cost(engine=target.engine, set="locks", hits=100, seconds=1e-4, ratio=0.002) for target in targets),
        coverage=tuple(m.Coverage(engine=target.engine, tgid=target.tgid, set="locks", state="on", probes=2) for target in targets),
        oom_kills=(m.OomKill(tgid=targets[0].tgid, command="chat\x1b[2J", anon_bytes=1 << 30),) if targets and count == 3 else (),
        resident_bytes=90 << 20,
        cpu_s=0.001,
        read_s=0.0005,
    )


def main() -> int:
    """Serves until the agent's end is closed. Returns the exit status."""
    behaviour = sys.argv[1]
    told = os.environ.get("AIE_FAKE_TOLD")
    with socket.socket(fileno=0) as pipe:
        if behaviour == "fails":
            pipe.sendall(m.frame(m.Failed(reason="no BCC here", remedy="install it")))
            return 1
        if behaviour == "crashes":
            print("Traceback: something\nValueError: bad \x1b[31mthing", file=sys.stderr)
            return 3
        if behaviour == "nonsense":
            pipe.sendall(b"\xff\xff\xff\xff")
            time.sleep(60)
        print("warning: '__GCC_ASM_FLAG_OUTPUTS__' macro redefined", file=sys.stderr)
        pipe.sendall(m.frame(m.Ready(sets=(), cost_ns={"uprobe": 1500.0, "tracepoint": 100.0}, bcc_version="0.26")))
        if behaviour == "silent":
            time.sleep(600)
        if behaviour == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        return _serve(pipe, told)


def _serve(pipe: socket.socket, told: str | None) -> int:
    frames, targets, count = m.Frames(), (), 0
    next_s = time.monotonic() + PERIOD_S
    while True:
        if select.select([pipe], [], [], max(next_s - time.monotonic(), 0.0))[0]:
            data = pipe.recv(1 << 16)
            if not data:
                return 0
            for body in frames.feed(data):
                message = m.for_child(body)
                if told is not None:
                    with Path(told).open("ab") as file:
                        file.write(msgspec.json.encode(message) + b"\n")
                if isinstance(message, m.Watch):
                    targets = message.targets
                else:
                    pipe.sendall(m.frame(m.WindowClosed(set=message.set, engine=message.engine, open_s=0.1, hits=7, stolen_s=0.02)))
        if time.monotonic() >= next_s:
            next_s += PERIOD_S
            count += bool(targets)
            pipe.sendall(m.frame(report(targets, count)))


if __name__ == "__main__":
    sys.exit(main())
