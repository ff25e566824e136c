"""What the names and numbers of NVIDIA's driver mean, and what to do: tables only."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry.api import Severity
from aie_telemetry.xids import BY_NUMBER


class Words(NamedTuple):
    """`severity` None is what is normal: it is told where one asks, and never counts as wrong. `short` fits a table's cell."""

    severity: Severity | None
    short: str
    words: str
    do: str = ""


_POWER_CAP: Final = (
    "Normal under full load. If the GPU should be faster, raise the limit (`nvidia-smi -pl`), up to the board's own."
)
_COOL: Final = "Look at fans, air flow and the temperature of the room; a neighbour that is as hot points to the rack."

# By the names of aie_gpu_clock_event_active.
CLOCK_EVENTS: Final[dict[str, Words]] = {
    "hw_thermal": Words("warning", "hot (hw)", "too hot: the hardware halves its clocks, or worse", _COOL),
    "sw_thermal": Words("warning", "hot", "near its heat limit: the driver lowers its clocks", _COOL),
    "hw_power_brake": Words(
        "warning",
        "power brake",
        "power brake: the host's supply asks for less",
        "Look at the power supplies.",
    ),
    "hw_slowdown": Words(
        "warning", "hw slowdown", "slowed by the hardware: heat, power brake or power draw", "Look at heat first, then at power."
    ),
    "reliability": Words("warning", "reliability", "slowed: voltage is held down for reliability", "Have the board looked at."),
    "sw_power_cap": Words(None, "power cap", "at its power limit", _POWER_CAP),
    "board_limit": Words("info", "board limit", "slowed by a limit of the board", "Look at its power limit."),
    "sync_boost": Words("info", "sync boost", "waits for slower GPUs of its sync-boost group", "Find the slowest of them."),
    "other": Words("info", "slowed", "slowed for a reason that the driver does not name", "`nvidia-smi -q -d PERFORMANCE`."),
    "app_clocks": Words(None, "app clocks", "clocks set by `nvidia-smi -ac` or `-lgc`", "`-rac` and `-rgc` undo it."),
    "display_clocks": Words(None, "display", "clocks set by the display's needs"),
    "idle": Words(None, "idle", "nothing to do"),
}

# By the reasons of aie_gpu_up.
NOT_UP: Final[dict[str, Words]] = {
    "lost": Words(
        "critical",
        "LOST",
        "it fell off the bus, or cannot be reached",
        "Look for XIDs in `dmesg`; reset the GPU, or reboot; if it happens again, reseat or replace the board.",
    ),
    "reset_required": Words(
        "critical", "RESET", "it works again only after a reset", "Stop what uses it, then `nvidia-smi --gpu-reset`, or reboot."
    ),
    "hung": Words(
        "critical",
        "HUNG",
        "the driver does not answer about it",
        "Look at `dmesg` for XIDs 119 and 120; often a reboot is needed.",
    ),
    "error": Words("critical", "ERROR", "the driver answers with an error", "`aie-agent check` on that host has the error's text."),
}

# By the causes of api.GpuFault, in a table's cell; the sentence is the agent's.
FAULTS: Final[dict[str, str]] = {
    "gpu_row_remap_failed": "bad rows",
    "gpu_ecc": "ECC",
    "gpu_row_remap": "remap",
    "gpu_orphan": "orphan",
    "gpu_link_width": "few lanes",
    "gpu_slot_width": "narrow slot",
    "gpu_link_generation": "slow link",
    "gpu_nvlink_inactive": "NVLink off",
    "gpu_nvlink_errors": "NVLink err",
    "gpu_power_limit": "low limit",
    "gpu_pid_namespace": "host pids?",
}


def clock_event(name: str) -> Words:
    return CLOCK_EVENTS.get(name) or Words("info", name.replace("_", " "), name.replace("_", " "))


def not_up(reason: str | None) -> Words:
    """An unknown reason is a sentence of the agent's own, and is told as it is."""
    return NOT_UP.get(reason or "lost") or NOT_UP["error"]._replace(words=reason or "")


def xid(number: str) -> Words:
    """Of a number that the catalogue does not have, that much."""
    known = BY_NUMBER.get(int(number)) if number.isdecimal() else None
    if known is None:
        return Words("warning", f"XID {number}", "an error of the GPU or its driver", "Look it up in NVIDIA's XID catalogue.")
    return Words(known.severity, f"XID {number}", known.meaning, known.action)
