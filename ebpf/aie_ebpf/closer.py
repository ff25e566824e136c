"""Detaches probes in a thread of its own: each uprobe takes about 0.1 s, in which the child has other things to do."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable

from aie_ebpf.door import Probe


class Closer:
    """Closes what probes hold; the kernel detaches a probe when its file descriptor goes. BCC has no part in this."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Probe | threading.Event] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="detach", daemon=True)
        self._thread.start()

    def close(self, probes: Iterable[Probe]) -> threading.Event:
        """Detaches these, soon; the event is set when it is done."""
        for probe in probes:
            self._work.put(probe)
        done = threading.Event()
        self._work.put(done)
        return done

    def finish(self, timeout_s: float) -> bool:
        """Waits until all is detached, or the time is up: what is left then goes with the process. True when all is."""
        return self.close(()).wait(timeout_s)

    def _run(self) -> None:
        while True:
            match self._work.get():
                case Probe(fds=fds):
                    for fd in fds:
                        os.close(fd)
                case threading.Event() as done:
                    done.set()
