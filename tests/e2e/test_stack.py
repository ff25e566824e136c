"""`make stack` as a user starts it, without a terminal: a stopped engine becomes an alert within two minutes, and ends with it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

WITHIN_S = 120.0
FIRED = re.compile(r"after ([\d.]+) s warning: AieEngineStopped: ")
OVER = re.compile(r"the alert is over, [\d.]+ s after the repair")


def test_a_stopped_engine_becomes_an_alert_that_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faultlab.stack", "--fault", "stopped"],
        env=os.environ | {"HEADLESS": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    fired = FIRED.search(said)
    assert fired, said
    assert float(fired[1]) <= WITHIN_S
    assert "/runbooks/AieEngineStopped" in said
    assert OVER.search(said, fired.end()), said


def test_a_fault_that_the_lab_does_not_have_is_said_in_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faultlab.stack", "--fault", "nonesuch"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"stack: .*nonesuch.*\n", done.stderr), done.stderr
