"""What the names and numbers of NVIDIA's driver mean, and what to do: tables only."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry.api import Severity


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

_APP: Final = "Restart the program if it did not end; look at its own log, and at `compute-sanitizer` if it comes again."
_RESET: Final = "Drain the GPU and reset it; if it comes again, have the board replaced."
_REBOOT: Final = "Drain the host and reboot it; if it comes again, reseat or replace the board."

# By number, in the buckets of NVIDIA's XID catalogue: the program's doing, the memory's, the link's, the board's.
XIDS: Final[dict[str, Words]] = {
    "13": Words("info", "XID 13", "a kernel failed: mostly the program's own fault", _APP),
    "31": Words("info", "XID 31", "a memory fault of a kernel: mostly the program's own fault", _APP),
    "32": Words(
        "warning", "XID 32", "commands were corrupted on their way over PCIe", "Look at PCIe replays and the board's seating."
    ),
    "38": Words("warning", "XID 38", "the driver's firmware timed out", "Update the driver if it comes again."),
    "43": Words("info", "XID 43", "a program's work on the GPU was stopped after a fault of its own", _APP),
    "45": Words("info", "XID 45", "a program was ended, with work still on the GPU", _APP),
    "48": Words("critical", "XID 48", "an ECC error that could not be corrected", _RESET),
    "61": Words("critical", "XID 61", "the GPU's own controller stopped", _RESET),
    "62": Words("critical", "XID 62", "the GPU's own controller halted", _RESET),
    "63": Words("warning", "XID 63", "a memory row or page was taken out of use", "Reset the GPU at the next quiet moment."),
    "64": Words("critical", "XID 64", "a memory row or page could not be taken out of use", _RESET),
    "68": Words("warning", "XID 68", "the video processor failed", _RESET),
    "69": Words("info", "XID 69", "the graphics engine failed: mostly the program's own fault", _APP),
    "74": Words("critical", "XID 74", "an NVLink failed", _RESET),
    "79": Words("critical", "XID 79", "the GPU fell off the bus", _REBOOT),
    "92": Words("warning", "XID 92", "many ECC errors that were corrected", "Watch it; reset the GPU at the next quiet moment."),
    "94": Words(
        "warning", "XID 94", "an ECC error that hit one program only", "Restart that program; reset the GPU when it is quiet."
    ),
    "95": Words("critical", "XID 95", "an ECC error that may have hit every program on the GPU", _RESET),
    "109": Words("critical", "XID 109", "switching between programs timed out", _RESET),
    "119": Words("critical", "XID 119", "the GPU's system processor (GSP) does not answer", _RESET),
    "120": Words("critical", "XID 120", "the GPU's system processor (GSP) failed", _RESET),
    "137": Words("info", "XID 137", "a program used another GPU's memory wrongly, over NVLink", _APP),
    "140": Words("critical", "XID 140", "a memory error that could not be corrected", _RESET),
    "143": Words("critical", "XID 143", "the GPU could not be initialised", _RESET),
    "154": Words("warning", "XID 154", "the driver says what brings the GPU back", "Do what its line in the kernel's log says."),
}


def clock_event(name: str) -> Words:
    return CLOCK_EVENTS.get(name) or Words("info", name.replace("_", " "), name.replace("_", " "))


def not_up(reason: str | None) -> Words:
    """An unknown reason is a sentence of the agent's own, and is told as it is."""
    return NOT_UP.get(reason or "lost") or NOT_UP["error"]._replace(words=reason or "")


def xid(number: str) -> Words:
    return XIDS.get(number) or Words(
        "warning", f"XID {number}", "an error of the GPU or its driver", "Look it up in NVIDIA's XID catalogue."
    )
