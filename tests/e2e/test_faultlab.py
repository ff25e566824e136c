"""The fault lab itself, on five faults that are known within seconds wherever it runs. All of them: `make faultlab`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.faultlab.__main__ import chosen
from tests.faultlab.lab import run
from tests.faultlab.report import markdown

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]

FAULTS = ("stopped", "killed", "thermal", "link-narrow", "xid-79")
HEALTHY_S = 2.0
LOAD = 0.5
"""Requests a second: few, so that the engine takes them anywhere, and none of these faults depends on them."""


def test_five_faults_are_named_first_among_what_is_found(tmp_path: Path) -> None:
    # All on one engine, beside GPUs that it does not compute on: what is loaded once is broken five times.
    faults = [dataclasses.replace(fault, healthy_s=HEALTHY_S) for fault in chosen(FAULTS, setup="gpus")]
    results = list(run(faults, tmp_path, tell=print, load=LOAD))
    assert [each.fault for each in results] == list(FAULTS)
    wrong = [each.fault for each in results if each.verdict is None or not (each.verdict.named and each.verdict.top_right)]
    assert not wrong, markdown(results)
