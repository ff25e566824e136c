"""Recordings and references whose bytes do not end where they should: a quote that stays open, and no line ends at all."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from aie_agent.analysis.drift.reference import UnfitReferenceError
from aie_agent.analysis.drift.reference_file import load
from aie_agent.analysis.leaks.recording import RecordingError, Seen, read


@pytest.mark.parametrize(("event", "says"), [('"OOM', "unexpected end of data"), ('"OOM" killed', "',' expected after '\"'")])
def test_a_quote_that_stays_open_does_not_hide_the_rows_below_it(tmp_path: Path, event: str, says: str) -> None:
    """All of them would be one event, and a leak of days `not_enough_data`. It is said after which of thousands of rows it is."""
    file = tmp_path / "memory.csv"
    events = {100: event}
    rows = (f"{60 * row},{12_000_000_000 + 2_800_000 * row},{events.get(row, '')}\n" for row in range(2400))
    file.write_text("time_s,physical_bytes,event\n" + "".join(rows))
    with pytest.raises(RecordingError, match=f"not CSV, in what follows row 100: {says}"):
        list(read(file, Seen()))


def test_a_recording_without_line_ends_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    zeros = tmp_path / "zeros"
    zeros.touch()
    os.truncate(zeros, 64 << 20)
    with pytest.raises(RecordingError, match="a line of 1048576 characters or more"):
        list(read(zeros, Seen()))


def test_a_reference_that_does_not_end_is_refused(tmp_path: Path) -> None:
    """What is no file of the disk (a pipe, a device of zeros) has no size that could be asked first: no more is read than any
    reference has."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["sh", "-c", 'exec head -c 80M /dev/zero >"$1"', "sh", str(pipe)]) as writer:
        with pytest.raises(UnfitReferenceError, match="too large for a reference"):
            load(pipe)
        assert writer.wait(timeout=60) != 0, "nobody read the rest"


def test_a_header_of_brackets_is_no_reference(tmp_path: Path) -> None:
    """Deeper than what reads it goes: it was a traceback, and status 1, a drift."""
    deep = tmp_path / "deep.aieref"
    deep.write_bytes(b'aie drift reference 1\n{"other":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    with pytest.raises(UnfitReferenceError, match="its header cannot be read: maximum recursion depth exceeded"):
        load(deep)
