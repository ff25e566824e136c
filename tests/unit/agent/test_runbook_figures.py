"""What the pages of host, GPUs and agent say of thresholds is what their rules do."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_agent.analysis import agent_causes, placement
from aie_agent.analysis.causes import STEADINESS
from aie_agent.analysis.gpu_causes import clocks, lost, pcie, tenants
from aie_agent.analysis.host_causes import cpu, disk, memory
from aie_agent.identity import Engines
from aie_telemetry import clock_events

FOLDER = Path(__file__).parents[3] / "docs" / "runbooks"

FIGURES = {
    "cpu_starved": (f"the last {cpu.WINDOW_S:g} s", f"at least {cpu.STARVED_THREADS:g} of", f"at least {cpu.STARVED_SHARE:.0%}"),
    "cpu_throttled": (f"at least {cpu.THROTTLED_SHARE:.0%} of its periods over the last {cpu.WINDOW_S:g} s",),
    "cpu_steal": (f"At least {cpu.STEAL_SHARE:.0%}", f"the last {cpu.STEAL_WINDOW_S:g} s"),
    "page_faults": (
        f"at least {memory.FAULTS_PER_SECOND:g} page faults a second",
        f"the last {memory.WINDOW_S:g} s",
        f"at least {memory.FAULT_THREADS:g} s a second",
    ),
    "swapping": (f"At least {memory.SWAP_PAGES_PER_SECOND:g} pages a second", f"the last {memory.WINDOW_S:g} s"),
    "disk_stall": (
        f"at least {disk.WAITING_THREADS:g} of its threads",
        f"at least {disk.STALLED_SHARE:.0%} of the last {disk.WINDOW_S:g} s",
        f"longer than {disk.SLOW_P99_S:g} s",
    ),
    "host_memory_low": (
        f"Less than {memory.LOW_SHARE:.0%} of the memory was available for {memory.LOW_FOR_S:g} s",
        f"below {memory.VERY_LOW_SHARE:.0%}",
        f"at least {memory.STALLED_SHARE:.0%} of the last {memory.WINDOW_S:g} s",
    ),
    **dict.fromkeys(("gpu_power_brake", "gpu_slowed"), (f"for at least {clocks.HELD_S:g} s",)),
    "gpu_thermal": (
        f"for at least {clocks.HELD_S:g} s",
        f"below {clock_events.WARM_SHARE:.0%} of its highest",
        f"{clock_events.CAPPED_SHARE:.0%} where the power limit",
        f"the mean of {clocks.MEAN_S:g} s",
        f"of the looks of the last {clocks.MEAN_S:g} s, or of all since there is heat, of the last {clocks.CAP_S:g} s",
    ),
    "gpu_power_cap": (f"for at least {clocks.CAPPED_FOR_S:g} s", f"below {clock_events.CAPPED_SHARE:.0%} of its highest"),
    "pcie_bound": (f"at least {pcie.NEAR_SHARE:.0%}", f"the last {pcie.WINDOW_S:g} s"),
    "gpu_neighbour": (
        f"at least {tenants.LIGHT_MEMORY_SHARE:.0%} of the GPU's memory",
        f"at least {tenants.LIGHT_SM_RATIO:.0%} of its multiprocessors",
        f"for {STEADINESS['gpu_neighbour'].begins_after_s:g} s",
        f"from {tenants.HEAVY_SHARE:.0%} on",
    ),
    "agent_blind": (
        f"down for {agent_causes.DOWN_FOR_S:g} s",
        f"the last {agent_causes.DROPS_S:g} s",
        f"for {agent_causes.LOADS_S / 60:g} minutes after they began",
        f"no process for {Engines.AWAY_S / 60:g} minutes",
    ),
    "gpu_lost": (f"{placement.REMEMBERED_S / 60:g} minutes", f"after {lost.MISSING_FOR_S:g} s"),
    **{f"gpu_xid_{family}": (f"the last {lost.RECENT_S / 60:g} minutes",) for family in lost.XID_FAMILIES},
}


@pytest.mark.parametrize("cause", sorted(FIGURES))
def test_the_figures_of_a_page_are_those_of_its_rule(cause: str) -> None:
    text = " ".join((FOLDER / f"{cause}.md").read_text().split()).replace(" %", "%")
    assert [figure for figure in FIGURES[cause] if figure not in text] == []
