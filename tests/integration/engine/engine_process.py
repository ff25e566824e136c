"""The real engine as its users start it: a process, a port, a model."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

WAIT_S = 120.0
COMMAND = [sys.executable, "-m", "aie_engine.cli"]

_READY = re.compile(r"aie-engine: ready on (?P<url>http://\S+), model (?P<model>\S+), loaded in [\d.]+ s, KV cache \d+ tokens\n")


class EngineProcess:
    """A running `aie-engine serve`. `url` is known once it is ready."""

    def __init__(self, *arguments: str) -> None:
        command = [*COMMAND, "serve", "--model", "smollm2", "--port", "0", "--statsd", "off", *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait_until_ready(self) -> str:
        """Waits for the ready line and returns the URL in it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = _READY.fullmatch(line)
        assert match is not None, f"{line!r}, exit status {self.process.poll()}: {self._rest_of(self.process.stderr)}"
        return match["url"]

    def wait_until_listening(self) -> str:
        """Waits until the port is open, which is before the model is loaded."""
        assert self.process.stderr is not None
        match = re.search(r"listening on (http://\S+),", self.process.stderr.readline())
        assert match is not None
        return match[1]

    def stop(self, signal_number: int) -> int:
        """Sends a signal and returns the exit status."""
        self.process.send_signal(signal_number)
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        """Makes sure that nothing is left."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=WAIT_S)

    def _rest_of(self, stream: IO[str] | None) -> str:
        self.process.kill()
        return stream.read() if stream is not None else ""


@contextmanager
def engine_process(*arguments: str) -> Iterator[EngineProcess]:
    """A process that is certainly gone afterwards."""
    engine = EngineProcess(*arguments)
    try:
        yield engine
    finally:
        engine.close()
