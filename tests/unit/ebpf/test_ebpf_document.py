"""docs/ebpf.md is what the tables say."""

from __future__ import annotations

import re
from pathlib import Path

from aie_ebpf.document import document
from aie_ebpf.probes import SETS, TRACEPOINTS, UPROBES

ROOT = Path(__file__).parents[3]


def test_the_document_is_current() -> None:
    assert (ROOT / "docs" / "ebpf.md").read_text() == document(), "run make metrics-doc"


def test_every_row_of_every_table_is_in_it() -> None:
    text = document()
    for name in (*(each.name for each in SETS), *(each.tracepoint for each in TRACEPOINTS)):
        assert f"| `{name}` |" in text
    for symbol in (symbol for each in UPROBES for symbol in each.symbols):
        assert f"`{symbol}`" in text


def test_what_each_set_costs_is_in_it() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([\d][^|]*) \|", document(), re.MULTILINE)
    assert [(name, pays) for name, pays, _, _ in rows] == [(each.name, each.pays) for each in SETS]
    by_name = {name: (kinds, cost) for name, _, kinds, cost in rows}
    assert by_name["locks"] == ("tracepoint", "170")
    assert by_name["cuda_sync"] == ("50% uprobe, 50% uretprobe", "582 emulated, 10089 stepped")


def test_its_tables_are_tables() -> None:
    for table in re.findall(r"(?:^\|.*\n)+", document(), re.MULTILINE):
        columns = {line.count("|") for line in table.splitlines()}
        assert len(columns) == 1, table
