"""A flood in a set that is attached on demand: the budget holds there too, and is told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aie_ebpf.calibrate import UPROBE, UPROBE_EMULATED
from aie_ebpf.messages import OpenWindow, Ready, Report, WindowClosed
from tests.fakes.flood_program import Flood, build
from tests.integration.ebpf.bpf_child import Child, running_child

pytestmark = pytest.mark.usefixtures("bpf")

_LAUNCH: Final = "int cuLaunchKernel(void *function) { return 0; }"
_ASKED_S: Final = 60.0


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[Flood]:
    running = Flood(build(tmp_path, _LAUNCH, "cuLaunchKernel(0);"))
    yield running
    running.close()


def _window(child: Child) -> WindowClosed:
    child.tell(OpenWindow(set="cuda_launch", engine="under-test", seconds=_ASKED_S))
    closed = child.until(lambda message: isinstance(message, WindowClosed), timeout_s=_ASKED_S)
    assert isinstance(closed, WindowClosed)
    return closed


def test_a_window_is_closed_by_the_budget_and_stays_so(flood: Flood, tmp_path: Path) -> None:
    flood.begin()
    with running_child("--budget", "0.01", "--period", "0.5", log=tmp_path / "stderr") as child:
        ready = child.messages[0]
        assert isinstance(ready, Ready)
        child.watch(flood.tgid)
        child.until(lambda message: isinstance(message, Report) and bool(message.coverage))
        cut, again = _window(child), _window(child)
    assert "detached: took" in cut.reason
    assert 0 < cut.open_s < _ASKED_S
    costs_ns = [ready.cost_ns[kind] for kind in (UPROBE, UPROBE_EMULATED) if kind in ready.cost_ns]
    assert any(cut.stolen_s == pytest.approx(cut.hits * cost_ns * 1e-9) for cost_ns in costs_ns)
    assert cut.hits > 0
    assert (again.open_s, again.hits, again.stolen_s) == (0.0, 0, 0.0)
    assert again.reason == cut.reason
