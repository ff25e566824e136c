"""An engine with all of CUDA's sets, of which one is flooded by several functions at once: that one goes, and the others stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from aie_ebpf import budget
from aie_ebpf.cuda_probes import CUDA_UPROBES
from aie_ebpf.messages import Coverage, Report, ToAgent
from aie_ebpf.uprobe_links import Way
from tests.fakes.flood_program import Flood, build
from tests.integration.ebpf.bpf_child import Child, running_child
from tests.integration.ebpf.child_maps import descriptors
from tests.integration.ebpf.uprobe_ways import both_ways

pytestmark = pytest.mark.usefixtures("bpf")

RATIO: Final = 0.01
FEW: Final = 10
"""Slices of the program."""

# Every function of the driver's that is probed.
LIBCUDA: Final = "".join(
    f"int {symbol}(void) {{ return 0; }}\n"
    for row in CUDA_UPROBES
    if row.soname.startswith("libcuda.") and row.set != "cuda_launch"
    for symbol in row.symbols
)
FUNCTIONS: Final = ("cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc")
FLOOD: Final = f"unsigned long at = 0; {' '.join(f'{name}(&at, 4096L, 0L);' for name in FUNCTIONS)}"
CALM: Final = "cuMemcpyHtoD_v2(0L, 0L, 8L); cuStreamSynchronize(0L);"
GREEDY: Final = "cuda_memory"
OTHERS: Final = ("cuda_sync", "cuda_copy")


@pytest.fixture
def flood(tmp_path: Path) -> Iterator[Flood]:
    running = Flood(build(tmp_path, LIBCUDA, FLOOD, calm=CALM))
    yield running
    running.close()


@pytest.fixture
def child(tmp_path: Path, way: Way) -> Iterator[Child]:
    arguments = "--budget", str(RATIO), "--period", str(budget.LOOK_S), "--uprobes", way
    with running_child(*arguments, log=tmp_path / "stderr") as running:
        yield running


def _rows(message: ToAgent) -> dict[str, Coverage]:
    """What a report says of each set; nothing where nothing is new."""
    return {row.set: row for row in (message.coverage or ())} if isinstance(message, Report) else {}


def _has(state: str, *sets: str) -> Callable[[ToAgent], bool]:
    return lambda message: {name for name, row in _rows(message).items() if row.state == state}.issuperset(sets)


@both_ways
def test_only_the_greediest_set_goes_and_what_is_called_most_first(child: Child, flood: Flood, way: Way) -> None:
    flood.begin(pause_s=0.05)
    flood.wait_for(FEW)
    child.watch(flood.tgid)
    told = child.until(_has("on", GREEDY, *OTHERS))
    probes = _rows(told)[GREEDY].probes
    attached = _events(child)
    child.messages.clear()
    before = len(flood.slices()) + 2
    flood.begin()
    flood.wait_for(FEW)
    child.until(_has("off", GREEDY))
    trapped_s = max(each.each_s for each in flood.slices()[before:])
    flood.wait_until_each(FEW, lambda each: each.each_s < trapped_s / 10)
    left = _events(child) - (attached - probes)
    reports = child.reports(10)

    assert all(
        _rows(report).get(name, row).state == "on" for report in reports for name, row in _rows(told).items() if name in OTHERS
    )
    for name in OTHERS:
        assert any(cost.hits for report in reports[-5:] for cost in report.costs if cost.set == name)
    if way is Way.EVENTS:
        assert probes > 50
        # Each function has two, four may be under way when another is put forward, and between two looks are 0.2 s.
        assert left > probes / 2, "the flood is over long before all probes are off"


def _events(child: Child) -> int:
    return descriptors(child.process.pid)["[perf_event]"]
