"""A row about GPUs of `aie-agent check`."""

from __future__ import annotations

from typing import NamedTuple

from aie_agent.analysis.gpu_checklist import Check


class GpuCheck(NamedTuple):
    """One row about GPUs: as `gpu_checklist.Check`, and whether the thing can be seen at all (`visible`), and was asked for
    (`needed`)."""

    what: str
    visible: bool
    needed: bool
    ok: bool
    found: str
    remedy: str = ""


def gpu_row(check: Check, prefix: str = "") -> GpuCheck:
    """A check as a row, its remedy only where it is wrong."""
    return GpuCheck(prefix + check.what, True, False, check.ok, check.found, "" if check.ok else check.remedy)
