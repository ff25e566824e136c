"""The lines of a CSV file, in bounded memory: what has no line ends, such as a device or a disk image of zeros, is no CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import Final, TextIO

LONGEST: Final = 1 << 20
"""Characters of a line. More than any row of ours; a cell that is larger than 128 kB is refused by `csv` itself."""


def lines(file: TextIO) -> Iterator[str]:
    """Line by line, ends included. Raises csv.Error for one that is too long."""
    while line := file.readline(LONGEST):
        if len(line) == LONGEST:
            raise csv.Error(f"a line of {LONGEST} characters or more")
        yield line
