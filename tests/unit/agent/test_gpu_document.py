"""docs/gpus.md: the table of faults names tests that exist, and the document names metrics and numbers that are true."""

from __future__ import annotations

import re
from pathlib import Path

from aie_agent.analysis import gpu_problems
from aie_agent.analysis.causes import OF_SUBJECTS
from aie_agent.analysis.gpu_causes.lost import XID_FAMILIES
from aie_agent.analysis.links import BUSY_FOR_S, BUSY_RATIO
from aie_agent.sources.nvml.memory import PAGE_BYTES
from aie_agent.sources.nvml.process_join import GONE_AFTER_S, STRANGER_STUCK_AFTER_S, STUCK_AFTER_S
from aie_agent.sources.nvml.xid import MATCH_WITHIN_S
from aie_telemetry.api import GpuFault
from aie_telemetry.catalogue import CATALOGUE

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/gpus.md").read_text()
FAULTS = 34


def rows() -> dict[int, str]:
    return {int(line.split("|")[1]): line for line in TEXT.splitlines() if re.match(r"\| \d+ \|", line)}


def test_every_fault_has_a_row() -> None:
    assert list(rows()) == list(range(1, FAULTS + 1))


def test_every_row_names_tests_that_exist() -> None:
    sources = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}
    for number, line in rows().items():
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", line)
        assert named, line
        for file, test in named:
            assert f"def {test}(" in sources.get(file, ""), f"{number}: there is no {file}::{test}"


def test_metrics_that_the_document_names_exist() -> None:
    named = set(re.findall(r"`(aie_[a-z0-9_]+)", TEXT))
    assert named - {"aie_gpu_"} <= set(CATALOGUE)


def test_numbers_that_the_document_names_are_those_of_the_code() -> None:
    assert f"not in `/proc` ({GONE_AFTER_S:.0f} s)" in TEXT
    assert f"at every look for {STUCK_AFTER_S:.0f} s" in TEXT
    assert f"; for {STRANGER_STUCK_AFTER_S:.0f} s else" in TEXT
    assert f"within a page ({PAGE_BYTES} bytes)" in TEXT
    assert f"within {MATCH_WITHIN_S:.0f} s are one error" in TEXT
    assert f"{100 * BUSY_RATIO:.0f} % and performance state 0 to 2 at every reading of {BUSY_FOR_S:.0f} s" in " ".join(TEXT.split())


def test_the_document_names_every_cause_that_a_fault_can_have() -> None:
    """Faults, which the API tells with a GPU, and causes that are found besides."""
    named = set(re.findall(r"^\| `(gpu_\w+)` \|", TEXT, re.MULTILINE))
    faults = {rule.cause for rule in gpu_problems._RULES} | {"gpu_pid_namespace"}
    assert faults == set(re.findall(r"gpu_[a-z_]+", str(GpuFault.__doc__)))
    assert faults <= named
    besides = {name for cause in named - faults for name in _spelled_out(cause)}
    assert besides <= OF_SUBJECTS


def _spelled_out(cause: str) -> list[str]:
    return [cause.replace("FAMILY", family) for family in XID_FAMILIES] if "FAMILY" in cause else [cause]
