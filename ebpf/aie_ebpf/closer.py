"""Detaches probes in threads of their own: each takes 0.05 s to 0.1 s, in which the child has other things to do."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Iterable
from typing import Final

from aie_ebpf.door import Probe

# The kernel waits for its readers at each link, and for several at once as long as for one. Perf events it detaches one by one.
_THREADS: Final = 4
_FIRST, _HASTE, _NO_HASTE = 0, 1, 2


class _Batch:
    """Probes that go together."""

    def __init__(self, count: int) -> None:
        self.done = threading.Event()
        self._left = count
        self._lock = threading.Lock()

    def one_less(self) -> None:
        with self._lock:
            self._left -= 1
            is_done = self._left == 0
        if is_done:
            self.done.set()


class Closer:
    """Closes what probes hold; the kernel detaches a probe when its file descriptor goes. BCC has no part in this."""

    def __init__(self) -> None:
        self._order = itertools.count()
        self._work: queue.PriorityQueue[tuple[int, int, int]] = queue.PriorityQueue()
        self._lock = threading.Lock()
        # What is in the queue, once or, where it was put forward, twice.
        self._pending: dict[int, _Batch] = {}
        self._batches: list[_Batch] = []
        for _ in range(_THREADS):
            threading.Thread(target=self._run, name="detach", daemon=True).start()

    @property
    def waiting(self) -> int:
        """How many descriptors wait to be closed."""
        return len(self._pending)

    def close(self, probes: Iterable[Probe], *, haste: bool = False) -> threading.Event:
        """Detaches these, soon; the event is set when it is done. In `haste` before all that is not: an engine pays for them."""
        fds = [fd for probe in probes for fd in probe.fds]
        batch = _Batch(len(fds))
        if not fds:
            batch.done.set()
            return batch.done
        self._batches = [each for each in self._batches if not each.done.is_set()]
        self._batches.append(batch)
        with self._lock:
            self._pending |= dict.fromkeys(fds, batch)
        self._put(fds, _HASTE if haste else _NO_HASTE)
        return batch.done

    def put_forward(self, probes: Iterable[Probe]) -> None:
        """Those of these that wait to be detached come before all others."""
        with self._lock:
            fds = [fd for probe in probes for fd in probe.fds if fd in self._pending]
        self._put(fds, _FIRST)

    def finish(self, timeout_s: float) -> bool:
        """Waits until all is detached, or the time is up: what is left then goes with the process. True when all is."""
        until_s = time.monotonic() + timeout_s
        return all(batch.done.wait(max(until_s - time.monotonic(), 0.0)) for batch in self._batches)

    def _put(self, fds: Iterable[int], priority: int) -> None:
        for fd in fds:
            self._work.put((priority, next(self._order), fd))

    def _run(self) -> None:
        while True:
            _, _, fd = self._work.get()
            with self._lock:
                batch = self._pending.pop(fd, None)
            if batch is not None:  # else it was put forward, and is done
                os.close(fd)
                batch.one_less()
