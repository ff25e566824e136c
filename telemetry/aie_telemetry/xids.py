"""What XID numbers mean and what to do: facts from NVIDIA's "Analyzing Xid Errors with the Xid Catalog", in our words.

A number that is not here is counted all the same; only its meaning is not told. Agent and aie-top read this one table.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from aie_telemetry.api import Severity

Blame = Literal["application", "memory", "link", "gpu", "driver", "report"]
"""Where to look first: what ran on the GPU, its memory, a link (PCIe, NVLink), the GPU itself, the driver or its firmware; a
`report` only tells of another error."""


SEVERITIES: Final[dict[Blame, Severity]] = {
    "application": "info",
    "report": "info",
    "driver": "warning",
    "memory": "critical",
    "link": "critical",
    "gpu": "critical",
}
"""How bad an XID is that does not say otherwise: what an application did is its own affair, what hardware did is everybody's."""


class Xid(NamedTuple):
    """One number. `common` ones are exported at 0 from the start, so that the first error is a rise and not a new series.

    `unusual` is its severity where that is not the one of what is to blame.
    """

    number: int
    meaning: str
    blame: Blame
    action: str
    common: bool = False
    unusual: Severity | None = None

    @property
    def severity(self) -> Severity:
        """How bad it is for whoever runs the host."""
        return self.unusual or SEVERITIES[self.blame]


_APP: Final = "Restart the application; compute-sanitizer finds the kernel that did it."
_RESTART: Final = "Restart the application. If it comes back, have the GPU checked."
_RESET: Final = "Stop what runs on the GPU and reset it (nvidia-smi --gpu-reset). If it comes back, have it checked."
_REBOOT: Final = "Reboot the host. If it comes back, check seating, power and the slot, then return the board."
_NVLINK: Final = "Look at nvidia-smi nvlink -e of both ends, and at the GPU at the other end; reset the GPUs, then the host."
_GSP: Final = "Reset the GPU or reboot; save nvidia-bug-report.sh first. A newer driver often mends it."

XIDS: Final[tuple[Xid, ...]] = (
    Xid(8, "the GPU stopped processing: a channel timed out", "application", _RESTART),
    Xid(11, "invalid or corrupted command stream", "application", _APP),
    Xid(13, "exception in a kernel: illegal address, instruction or access beyond an array", "application", _APP, True),
    Xid(25, "invalid or illegal command stream", "application", _APP),
    Xid(31, "page fault: a kernel used an address that is not mapped", "application", _APP, True),
    Xid(32, "corrupted command stream on its way over PCIe", "link", "Look at PCIe replays and the seating of the board.",
        True, unusual="warning"),
    Xid(38, "firmware of the driver timed out", "driver", "Update the driver.", True),
    Xid(39, "exception in a copy engine", "application", _RESTART),
    Xid(40, "exception in a copy engine", "application", _RESTART),
    Xid(41, "exception in a copy engine", "application", _RESTART),
    Xid(43, "the application's channel was stopped after a fault of its own; the GPU is well", "application", _APP, True),
    Xid(44, "fault while a context was switched", "application", _RESTART),
    Xid(45, "the application's work was removed: it ended, was killed, or another error came before", "report",
        "Look at the XID before it. Alone, and nobody stopped the application: restart the fabric manager.", True),
    Xid(46, "the GPU stopped processing", "gpu", _RESET),
    Xid(48, "uncorrectable (double bit) ECC error", "memory", _RESET, True),
    Xid(54, "auxiliary power is not connected to the board", "gpu", "Connect the power cables."),
    Xid(61, "the power management unit stopped at a breakpoint", "gpu", _RESET, True),
    Xid(62, "the power management unit halted", "gpu", _RESET, True),
    Xid(63, "a memory row (before Ampere: a page) was marked to be replaced", "memory",
        "Nothing at once. Reset the GPU at the next chance; aie_gpu_row_remap_pending shows that it waits.",
        True, unusual="warning"),
    Xid(64, "a memory row (before Ampere: a page) could not be replaced", "memory",
        "Reset the GPU. If aie_gpu_row_remap_failed stays at 1, return the board.", True),
    Xid(68, "exception in a video decoder", "application", _RESTART, True, unusual="warning"),
    Xid(69, "class error in the compute engine", "application", _APP, True),
    Xid(74, "NVLink error", "link", _NVLINK, True),
    Xid(78, "a virtual GPU could not start", "driver", "Update driver and vGPU software to versions that fit."),
    Xid(79, "the GPU has fallen off the bus", "link", _REBOOT, True),
    Xid(92, "many corrected (single bit) ECC errors", "memory", "Watch it; return the board if it goes on.",
        True, unusual="warning"),
    Xid(93, "the InfoROM may not be written any more often", "report", "Nothing at once."),
    Xid(94, "memory error, contained: one application is hit", "memory",
        "Restart that application; reset the GPU when convenient.", True, unusual="warning"),
    Xid(95, "memory error, not contained: every application on the GPU is hit", "memory", _RESET, True),
    Xid(109, "switching a context timed out", "gpu", _RESET, True),
    Xid(110, "security fault", "gpu", "Switch the host off and on; undo recent changes of hardware."),
    Xid(119, "the GPU's system processor (GSP) did not answer", "driver", _GSP, True, unusual="critical"),
    Xid(120, "error in the firmware of the GPU's system processor (GSP)", "driver", _GSP, True, unusual="critical"),
    Xid(121, "corrected errors on the link to a Grace CPU", "link", "Nothing at once. Reset the GPU when convenient.",
        unusual="info"),
    Xid(136, "a link could not be trained", "link", _NVLINK),
    Xid(137, "illegal access over NVLink to another GPU's memory", "application", _APP, True),
    Xid(140, "uncorrected memory error that could not be booked", "memory", _RESET, True),
    Xid(143, "the GPU could not be initialised", "gpu", _RESET, True),
    Xid(144, "NVLink 5 error", "link", _NVLINK),
    Xid(145, "NVLink 5 error", "link", _NVLINK),
    Xid(146, "NVLink 5 error", "link", _NVLINK),
    Xid(147, "NVLink 5 error", "link", _NVLINK),
    Xid(148, "NVLink 5 error", "link", _NVLINK),
    Xid(149, "NVLink 5 error", "link", _NVLINK),
    Xid(150, "NVLink 5 error", "link", _NVLINK),
    Xid(154, "the driver says what brings the GPU back", "report", "Do what its line in the kernel's log says.",
        True, unusual="warning"),
    Xid(155, "an NVLink went down", "link", _NVLINK),
    Xid(156, "a part of the GPU was taken out of use", "gpu", "Reset the GPU at the next chance.", unusual="warning"),
    Xid(157, "a part of the GPU could not be taken out of use", "gpu", "Have the GPU checked; work may go on.", unusual="warning"),
    Xid(158, "the GPU timed out for good", "gpu", _RESET),
    Xid(167, "PCIe timed out for good", "link", _REBOOT),
    Xid(171, "uncorrectable error in DRAM: more on an XID 48", "memory", _RESET),
    Xid(172, "uncorrectable error in SRAM: more on an XID 48", "memory", _RESET),
)  # fmt: skip

BY_NUMBER: Final[dict[int, Xid]] = {xid.number: xid for xid in XIDS}
COMMON: Final[tuple[int, ...]] = tuple(xid.number for xid in XIDS if xid.common)


def describe(number: int) -> str:
    """One line: the number, and what it means where that is known."""
    known = BY_NUMBER.get(number)
    return f"XID {number}" if known is None else f"XID {number}: {known.meaning}"
