"""The fault lab itself, on five faults that are known within seconds wherever it runs. All of them: `make faultlab`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faultlab.__main__ import chosen
from tests.faultlab.lab import run
from tests.faultlab.report import markdown

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

FAULTS = ("thermal", "link-narrow", "xid-79", "stopped", "killed")


def test_five_faults_are_named_first_among_what_is_found(tmp_path: Path) -> None:
    # All on one engine, beside GPUs that it does not compute on: what is loaded once is broken five times.
    faults = chosen(FAULTS, setup="gpus")
    results = list(run(faults, tmp_path, tell=lambda _: None))
    assert [each.fault for each in results] == [fault.name for fault in faults]
    wrong = [each.fault for each in results if each.verdict is None or not (each.verdict.named and each.verdict.top_right)]
    assert not wrong, markdown(results)
