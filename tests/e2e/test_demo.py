"""`make demo`, as it runs without a terminal."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_ebpf import prerequisites
from demo.__main__ import simulated_gpus
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


@contextlib.contextmanager
def running_demo(tmp_path: Path, marker: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """The demo's process and its output. Nothing that it started is left, whatever happens."""
    output = tmp_path / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "demo"],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=os.environ | {"HEADLESS": "1", "AIE_TEST_MARKER": marker},
            # A shell has what it starts in the background ignore Ctrl-C, and so would what that starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    try:
        yield process, output
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def assert_waits_are_shown(text: str) -> None:
    """Where the host allows probes, what the engine's threads wait for stands in the report: columns RUN, QUEUE, LOCK, GIL."""
    unmet = prerequisites.unmet(prerequisites.check())
    assert not (unmet and os.environ.get("AIE_REQUIRE_BPF")), unmet
    panel = re.search(r"^ WAITS +RUN QUEUE +LOCK +GIL .*(?:\n .*)*?\n smollm2 +(\S+) +(\S+) +(\S+) +(\S+) .*$", text, re.MULTILINE)
    if unmet:
        assert panel is None
        return
    assert panel is not None, text
    assert "-" not in panel.groups(), f"each is known: {panel[0]}"
    assert "not seen:" not in panel[0].splitlines()[-1]


def test_headless_demo(tmp_path: Path) -> None:
    with running_demo(tmp_path, "demo-to-the-end") as (process, output):
        status = process.wait(560)
    text = output.read_text()
    assert status == 0, text
    assert "smollm2" in text
    # The rush of the measurement stands in no figure: the agent comes after it, and its requests are not counted.
    assert text.index("demo: measuring") < text.index("agent at http") < text.index(" s of traffic") < text.index("\n aie-top ")
    sent_per_s, traffic_s, answered = (
        float(re.search(words, text)[1])
        for words in (r"sending ([\d.]+)/s", r"(\d+) s of traffic", r"demo: (\d+) requests answered")
    )
    most = sent_per_s * (traffic_s + 10)
    assert 0 < answered < most + 5 * most**0.5
    assert "not seen  engine smollm2 " not in text  # what probes cannot see of it is another row
    assert_waits_are_shown(text)
    check = re.search(r"aie-agent check --config (\S+) --listen (\S+)", text)
    assert check is not None
    assert check[2] == re.search(r"agent at http://(\S+)", text)[1]
    assert "everything that it started is stopped" in text
    assert processes_of("demo-to-the-end") == []


def test_interrupted_demo_stops_what_it_started(tmp_path: Path) -> None:
    with running_demo(tmp_path, "demo-interrupted") as (process, output):
        eventually(lambda: "measuring" in output.read_text())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, output.read_text()
    assert processes_of("demo-interrupted") == []


@pytest.mark.parametrize("gpus", ["99", "x", "2:Z9"])
def test_a_wrong_number_of_gpus_is_one_line_in_the_words_of_the_makefile(gpus: str) -> None:
    told = subprocess.run([sys.executable, "-m", "demo", "--gpus", gpus], cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode == 1
    assert told.stderr.startswith(f"demo: GPUS={gpus}: ")
    assert told.stdout == ""


def test_no_gpus_are_none(tmp_path: Path) -> None:
    with simulated_gpus("0", tmp_path) as gpus:
        assert gpus is None
    assert list(tmp_path.iterdir()) == []
