"""Standard output that may be closed, full or a pipe whose reader left."""

from __future__ import annotations

import os
import sys
from typing import TextIO


class OutputError(Exception):
    """Standard output takes nothing more. Not an OSError, so that nothing takes it for trouble with the network."""

    def __init__(self, error: OSError) -> None:
        super().__init__(os.strerror(error.errno).lower() if error.errno else str(error))
        self.reader_left = isinstance(error, BrokenPipeError)


def write(out: TextIO, text: str) -> None:
    """All of it, now. Raises OutputError."""
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        raise OutputError(error) from error


def give_up() -> None:
    """Python flushes what is left once more when it ends, and would complain: let it go to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
