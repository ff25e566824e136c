"""The rows of CUDA's probes against the programs that they name: what is written twice agrees."""

from __future__ import annotations

import re

import pytest

from aie_ebpf.cuda_probes import CUDA_TEXT, CUDA_UPROBES, LAUNCH_TEXT, Uprobe
from aie_ebpf.door import text
from aie_ebpf.readers.cuda_calls import CALLS
from aie_ebpf.readers.cuda_copy import DIRECTIONS
from aie_ebpf.readers.cuda_memory import KINDS

PROGRAMS = {"cuda_launch": text(*LAUNCH_TEXT)} | dict.fromkeys(("cuda_memory", "cuda_sync", "cuda_copy"), text(*CUDA_TEXT))


def functions(source: str) -> set[str]:
    """What can be attached."""
    return set(re.findall(r"^int (\w+)\(struct pt_regs \*ctx", source, re.MULTILINE))


def constants(source: str, enum: str) -> list[str]:
    """The names of an enum, in their order."""
    found = re.search(rf"enum {enum} \{{([^}}]*)\}}", source)
    assert found is not None
    return re.findall(r"\w+", found[1])


@pytest.mark.parametrize("row", CUDA_UPROBES, ids=lambda row: row.symbols[0])
def test_a_row_names_programs_that_exist(row: Uprobe) -> None:
    assert {row.entry, row.on_return} - {None} <= functions(PROGRAMS[row.set])
    assert row.symbols[0] in row.signature
    assert re.fullmatch(r"\d+\.\d+", row.since)


def test_every_program_is_attached_by_some_row() -> None:
    attached = {row.entry for row in CUDA_UPROBES} | {row.on_return for row in CUDA_UPROBES}
    assert functions(text(*CUDA_TEXT)) | functions(text(*LAUNCH_TEXT)) <= attached


def test_a_function_is_probed_once_by_a_set() -> None:
    names = [(row.set, name) for row in CUDA_UPROBES for name in row.symbols]
    assert len(names) == len(set(names))


def test_no_probe_that_is_always_on_is_at_a_launch() -> None:
    assert {row.set for row in CUDA_UPROBES for name in row.symbols if "Launch" in name} == {"cuda_launch"}


def test_names_of_the_readers_are_those_of_the_programs() -> None:
    source = text(*CUDA_TEXT)
    assert [f"KIND_{name.upper()}" for name in KINDS] == constants(source, "kind")
    assert [name.upper() for name in DIRECTIONS] == constants(source, "direction")
    assert [f"CALL_{name}" for name in CALLS] == constants(source, "call")
    assert len(CALLS) == 26
