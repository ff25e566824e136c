"""Why a GPU is not up, by the reasons of `aie_gpu_up`: what each means, and what to do. Agent and aie-top read this one table."""

from __future__ import annotations

from typing import Final, NamedTuple

from aie_telemetry.api import Severity


class NotUp(NamedTuple):
    """`short` fits a table's cell."""

    severity: Severity
    short: str
    words: str
    do: str


NOT_UP: Final[dict[str, NotUp]] = {
    "lost": NotUp(
        "critical",
        "LOST",
        "it fell off the bus, or cannot be reached",
        "Look for XIDs in `dmesg`; reset the GPU, or reboot; if it happens again, reseat or replace the board.",
    ),
    "reset_required": NotUp(
        "critical", "RESET", "it works again only after a reset", "Stop what uses it, then `nvidia-smi --gpu-reset`, or reboot."
    ),
    "hung": NotUp(
        "critical",
        "HUNG",
        "the driver does not answer about it",
        "Look at `dmesg` for XIDs 119 and 120; often a reboot is needed.",
    ),
    "released": NotUp(
        "info",
        "GIVEN BACK",
        "the agent let go of the driver, as SIGUSR1 asked, so that it can be changed",
        "SIGUSR1 again takes it at once; else it comes back by itself.",
    ),
    "closed": NotUp(
        "critical",
        "NO DRIVER",
        "the driver cannot be asked about any GPU",
        "The state of the source nvml says why, and `aie-agent check` on that host.",
    ),
    "error": NotUp("critical", "ERROR", "the driver answers with an error", "`aie-agent check` on that host has the error's text."),
}
