"""Why the clocks of a GPU are down, by the names of `aie_gpu_clock_event_active`: what each means, and whether it is wrong.

`aie-top`, `aie-agent check` and the agent's findings judge by this table, and by one rule of what heat costs. What somebody has
set, or what is the board's way of doing its work, is not wrong.
"""

from __future__ import annotations

from collections.abc import Collection
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
    "sw_thermal": ClockEvent("info", "hot", "near its heat limit: the driver lowers its clocks", _COOL),
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

WARM: Final = "sw_thermal"
CAP: Final = "sw_power_cap"

WARM_SHARE: Final = 0.75
CAPPED_SHARE: Final = 0.6
"""Near its heat limit a busy GPU is wrong below this share of its highest clock; below the second where its power limit holds it
as well."""
BUSY_RATIO: Final = 0.5


def is_held_below(share: float, clock: float | None, highest: float | None, utilization_ratio: float | None) -> bool:
    """Whether a GPU that is at work, as far as is known, runs below this share of its highest clock (both in the same unit)."""
    is_idle = utilization_ratio is not None and utilization_ratio < BUSY_RATIO
    return not is_idle and clock is not None and highest is not None and clock < share * highest


def heat_severity(clock: float | None, highest: float | None, utilization_ratio: float | None, *, is_capped: bool) -> Severity:
    """How bad it is that a GPU is near its heat limit: what that costs decides. Where the clock is not known, neither is that."""
    share = CAPPED_SHARE if is_capped else WARM_SHARE
    return "warning" if is_held_below(share, clock, highest, utilization_ratio) else "info"


def severity_now(
    reason: str, events: Collection[str], clock: float | None, highest: float | None, utilization_ratio: float | None
) -> Severity | None:
    """How bad a reason is by one look at a GPU: `events` are all its reasons now. One that the table lacks is information."""
    if reason == WARM:
        return heat_severity(clock, highest, utilization_ratio, is_capped=CAP in events)
    word = CLOCK_EVENTS.get(reason)
    return "info" if word is None else word.severity
