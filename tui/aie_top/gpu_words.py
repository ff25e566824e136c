"""What the names and numbers of NVIDIA's driver mean, and what to do: tables only."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry import clock_events
from aie_telemetry.api import Severity
from aie_telemetry.xids import BY_NUMBER


class Words(NamedTuple):
    """`severity` None is what is normal: it is told where one asks, and never counts as wrong. `short` fits a table's cell."""

    severity: Severity | None
    short: str
    words: str
    do: str = ""


# By the names of aie_gpu_clock_event_active.
CLOCK_EVENTS: Final = {name: Words(*event) for name, event in clock_events.CLOCK_EVENTS.items()}

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
    "released": Words(
        "info",
        "GIVEN BACK",
        "the agent let go of the driver, as SIGUSR1 asked, so that it can be changed",
        "SIGUSR1 again takes it at once; else it comes back by itself.",
    ),
    "closed": Words(
        "critical",
        "NO DRIVER",
        "the driver cannot be asked about any GPU",
        "The state of the source nvml says why, and `aie-agent check` on that host.",
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
