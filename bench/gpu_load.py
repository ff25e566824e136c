"""A device at work, in a process of its own, so that its cost is not counted as the reader's: `python gpu_load.py INDEX`.

It writes its own memory without a pause, which DRAM and multiprocessors show.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Final, NoReturn

from gpu_driver import Driver

_BLOCK_BYTES: Final = 1 << 30
_READY: Final = "at work"


@contextlib.contextmanager
def busy(index: int) -> Iterator[None]:
    """CUDA's device `index` works until the end. Raises RuntimeError where it cannot."""
    with subprocess.Popen([sys.executable, __file__, str(index)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            if said != _READY:
                raise RuntimeError(f"the load ended before it began, with status {process.wait(10)}: see stderr")
            yield
        finally:
            process.kill()


def _work(index: int) -> NoReturn:
    driver = Driver(index)
    driver.enter()
    block = driver.allocate(_BLOCK_BYTES)
    driver.fill(block, _BLOCK_BYTES)
    print(_READY, flush=True)
    while True:
        driver.fill(block, _BLOCK_BYTES)


if __name__ == "__main__":
    _work(int(sys.argv[1]))
