"""What the names and numbers of NVIDIA's driver mean, and what to do: tables only."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry import clock_events, gpu_states
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
NOT_UP: Final = {name: Words(*state) for name, state in gpu_states.NOT_UP.items()}

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
