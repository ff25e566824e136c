"""The process that holds BCC: one loop, one pipe to the agent. It ends with the agent, and its probes end with it.

LLVM takes 70 MB on import and twice that while it compiles; here it can be trimmed, and if it dies, the agent lives.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from typing import Final

from aie_ebpf import calibrate
from aie_ebpf.budget import LOOK_S, Ledger
from aie_ebpf.door import Bcc, BpfError
from aie_ebpf.messages import Failed, FrameError, Frames, OpenWindow, Ready, ToAgent, Watch, for_child, frame
from aie_ebpf.probes import SETS
from aie_ebpf.uprobe_links import Choice, Way, choose
from aie_ebpf.watcher import Watcher

_PR_SET_PDEATHSIG: Final = 1
_CHUNK: Final = 1 << 16
# An agent that does not read for so long is gone, or as good as.
_SEND_TIMEOUT_S: Final = 10.0
# What detaching may take at the end; the kernel does the rest when the process is gone.
_FINISH_S: Final = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves the agent at the other end of the socket that is file descriptor 0. Returns the exit status."""
    options = _options(arguments)
    _end_with_parent()
    with socket.socket(fileno=os.dup(0)) as pipe:
        pipe.settimeout(_SEND_TIMEOUT_S)
        try:
            return _serve(pipe, options)
        except ConnectionError:  # the agent is gone: nobody is left to tell
            return 0
        except TimeoutError:
            print(f"the agent has not listened for {_SEND_TIMEOUT_S:.0f} s: the probes go", file=sys.stderr, flush=True)
            return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="aie_ebpf", description="Started by aie-agent; speaks with it over file descriptor 0.")
    parser.add_argument("--budget", type=float, default=0.01, help="share of one CPU that probes may take from an engine")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two reports")
    parser.add_argument("--uprobes", choices=list(Way), help="how uprobes are attached, instead of by what this kernel can do")
    parser.add_argument("--without", default="", help="sets that are never attached, separated by commas")
    options = parser.parse_args(arguments)
    options.without = frozenset(name for name in options.without.split(",") if name)
    unknown = options.without - {each.name for each in SETS}
    if unknown:
        parser.error(f"--without: no set is called {', '.join(sorted(unknown))}: {', '.join(each.name for each in SETS)}")
    if not (options.budget > 0 and options.period > 0):
        parser.error("--budget and --period must be above 0")
    return options


def _serve(pipe: socket.socket, options: argparse.Namespace) -> int:
    try:
        bcc = Bcc()
        choice = Choice(Way(options.uprobes), "as told") if options.uprobes else choose(bcc)
        cost_ns = calibrate.measure(bcc, choice.way)
        watcher = Watcher(bcc, options.without, Ledger(options.budget, cost_ns), choice.way)
    except BpfError as error:
        _send(pipe, Failed(reason=str(error)))
        return 1
    bcc.trim()
    if choice.way is Way.EVENTS:
        print(f"uprobes are attached one by one, and detached as slowly: {choice.reason}", file=sys.stderr, flush=True)
    _send(
        pipe,
        Ready(
            sets=watcher.states(),
            cost_ns=cost_ns,
            bcc_version=bcc.version,
            uprobes=choice.way,
            uprobes_reason=choice.reason,
        ),
    )
    try:
        _loop(pipe, watcher, options.period)
    except FrameError as error:
        _send(pipe, Failed(reason=f"the agent sent what is no message: {error}"))
        return 1
    except BpfError as error:  # a map cannot be read: what we would report is not true any more
        _send(pipe, Failed(reason=str(error)))
        return 1
    finally:
        watcher.finish(_FINISH_S)
    return 0


def _loop(pipe: socket.socket, watcher: Watcher, period_s: float) -> None:
    """Until the agent closes its end."""
    frames = Frames()
    next_s = time.monotonic() + period_s
    while True:
        left_s = max(next_s - time.monotonic(), 0.0)
        wait_s = 0.0 if watcher.has_work else min(left_s, LOOK_S) if watcher.guards else left_s
        readable, _, _ = select.select([pipe], [], [], wait_s)
        if readable:
            data = pipe.recv(_CHUNK)
            if not data:
                return
            for body in frames.feed(data):
                match for_child(body):
                    case Watch(targets=targets):
                        watcher.watch(targets)
                    case OpenWindow() as window:
                        watcher.open_window(window)
        watcher.work(LOOK_S)
        if watcher.guards:
            watcher.guard()
        if time.monotonic() >= next_s:
            for message in watcher.tick():
                _send(pipe, message)
            # A late report is not made up for: the next one says how long its period was.
            next_s = max(next_s + period_s, time.monotonic())


def _send(pipe: socket.socket, message: ToAgent) -> None:
    pipe.sendall(frame(message))


def _end_with_parent() -> None:
    """The kernel kills us when the agent ends, however it ends; had it ended already, the pipe says so. Ctrl-C in a terminal is for
    the agent, which closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(OSError, AttributeError):  # a libc without prctl: the pipe tells, too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
