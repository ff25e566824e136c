"""`make demo`, as it runs without a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.programs import eventually

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]


def processes_of(marker: str) -> list[str]:
    """Command lines of live processes whose environment holds the marker."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and marker.encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def start_demo(tmp_path: Path, marker: str) -> tuple[subprocess.Popen[bytes], Path]:
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HEADLESS": "1", "AIE_TEST_MARKER": marker},
        )
    return process, output


def test_headless_demo(tmp_path: Path) -> None:
    process, output = start_demo(tmp_path, "demo-to-the-end")
    status = process.wait(280)
    text = output.read_text()
    assert status == 0, text
    assert "smollm2" in text
    assert "everything that it started is stopped" in text
    assert processes_of("demo-to-the-end") == []


def test_interrupted_demo_stops_what_it_started(tmp_path: Path) -> None:
    process, output = start_demo(tmp_path, "demo-interrupted")
    eventually(lambda: "measuring" in output.read_text())
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, output.read_text()
    assert processes_of("demo-interrupted") == []
