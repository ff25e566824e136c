"""Why the clocks of a GPU are down, by the names of `aie_gpu_clock_event_active`: what each means, and whether it is wrong.

`aie-top` and `aie-agent check` judge by this table. What somebody has set, or what is the board's way of doing its work, is not
wrong.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry.api import Severity


class ClockEvent(NamedTuple):
    """`severity` None is what is normal: it is told where one asks. `short` fits a table's cell, `do` is what to do about it."""

    severity: Severity | None
    short: str
    words: str
    do: str = ""


_POWER_CAP: Final = (
    "Normal under full load. If the GPU should be faster, raise the limit (`nvidia-smi -pl`), up to the board's own."
)
_COOL: Final = "Look at fans, air flow and the temperature of the room; a neighbour that is as hot points to the rack."

FINDINGS: Final[dict[str, str]] = {
    "hw_thermal": "gpu_thermal",
    "sw_thermal": "gpu_thermal",
    "hw_power_brake": "gpu_power_brake",
    "hw_slowdown": "gpu_slowed",
    "reliability": "gpu_slowed",
    "board_limit": "gpu_slowed",
    "sync_boost": "gpu_slowed",
    "other": "gpu_slowed",
    "sw_power_cap": "gpu_power_cap",
}
"""The cause of the agent's finding about it, the worst first. What is missing is not wrong."""

CLOCK_EVENTS: Final[dict[str, ClockEvent]] = {
    "hw_thermal": ClockEvent("warning", "hot (hw)", "too hot: the hardware halves its clocks, or worse", _COOL),
    "sw_thermal": ClockEvent("warning", "hot", "near its heat limit: the driver lowers its clocks", _COOL),
    "hw_power_brake": ClockEvent(
        "warning", "power brake", "power brake: the host's supply asks for less", "Look at the power supplies."
    ),
    "hw_slowdown": ClockEvent(
        "warning", "hw slowdown", "slowed by the hardware: heat, power brake or power draw", "Look at heat first, then at power."
    ),
    "reliability": ClockEvent(
        "warning", "reliability", "slowed: voltage is held down for reliability", "Have the board looked at."
    ),
    "sw_power_cap": ClockEvent(None, "power cap", "at its power limit", _POWER_CAP),
    "board_limit": ClockEvent("info", "board limit", "slowed by a limit of the board", "Look at its power limit."),
    "sync_boost": ClockEvent("info", "sync boost", "waits for slower GPUs of its sync-boost group", "Find the slowest of them."),
    "other": ClockEvent("info", "slowed", "slowed for a reason that the driver does not name", "`nvidia-smi -q -d PERFORMANCE`."),
    "app_clocks": ClockEvent(None, "app clocks", "clocks set by `nvidia-smi -ac` or `-lgc`", "`-rac` and `-rgc` undo it."),
    "display_clocks": ClockEvent(None, "display", "clocks set by the display's needs"),
    "idle": ClockEvent(None, "idle", "nothing to do"),
}
