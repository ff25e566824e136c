"""A driver that is loaded after the agent: its tracepoint is found, and its records are told. No driver here: its program, compiled
for its fields, is put on a tracepoint that this kernel has and that a test can fire."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_ebpf import late, tracepoints
from aie_ebpf.door import Bcc
from aie_ebpf.late import LateTracepoint
from aie_ebpf.probes import Tracepoint

FORMAT = Path(__file__).parents[2] / "fixtures" / "tracepoints" / "nvidia_dev_xid.format"
FIRES = Tracepoint("xid", "sched:sched_process_exec", "nvidia_dev_xid", optional=True)
REFUSES = Tracepoint("xid", "nvidia:nvidia_dev_xid", "nvidia_dev_xid", optional=True)


class Driver:
    """Whether the tracepoint's `format` is there, and how often somebody looked."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.looks = 0

    def format_of(self, tracepoint: str) -> str | None:
        self.looks += 1
        return self.text


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(tracepoints, "format_of", driver.format_of)
    return driver


@pytest.fixture
def made(bcc: Bcc, request: pytest.FixtureRequest) -> Iterator[LateTracepoint]:
    made = LateTracepoint(bcc, request.param, "XID", "xids")
    yield made
    made.close()


@pytest.mark.parametrize("made", [FIRES], indirect=True)
def test_it_is_attached_once_it_is_there(made: LateTracepoint, driver: Driver) -> None:
    assert not made.is_due(100.0)
    assert not made.is_due(100.0 + late.EVERY_S - 1), "the kernel is not asked each second"
    assert driver.looks == 1
    driver.text = FORMAT.read_text()
    assert made.is_due(100.0 + late.EVERY_S)
    for _ in made.attach():
        assert made.ring is None
    assert made.reason == ""
    assert made.ring is not None
    made.ring.records()
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert made.ring.records(), "a program was started, and the tracepoint fired"
    assert not made.is_due(1e9), "it is attached"


@pytest.mark.parametrize("made", [REFUSES], indirect=True)
def test_one_that_is_refused_is_not_tried_again(made: LateTracepoint, driver: Driver) -> None:
    """Its format is there, and the tracepoint is none of this kernel's."""
    driver.text = FORMAT.read_text()
    assert made.is_due(0.0)
    list(made.attach())
    assert made.ring is None
    assert "nvidia_dev_xid" in made.reason
    assert not made.is_due(1e9)
