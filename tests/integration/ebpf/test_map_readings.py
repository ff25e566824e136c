"""Maps are read whole, however many entries they have had before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from aie_ebpf.door import Bcc, Module

COUNTS = (0, 1, 15, 16, 17, 300, 5000, 40, 0)
TEXT = """
BPF_TABLE("hash", u32, u64, many, 8192);
BPF_ARRAY(row, u64, 40);
"""


@pytest.fixture(scope="module")
def maps(bcc: Bcc) -> Iterator[Module]:
    module = bcc.compile_text(TEXT)
    yield module
    module.close()


def test_a_map_is_read_whole_whatever_it_held_before(maps: Module) -> None:
    table = maps.table("many", "I", "Q")
    for count in COUNTS:
        wanted = {(7 * key,): (key * key,) for key in range(count)}
        for key, value in wanted.items():
            table.put(key, value)
        assert dict(table.items()) == wanted
        found = list(table.drain())
        assert (len(found), dict(found)) == (count, wanted)
        assert list(table.items()) == []


def test_an_array_is_read_whole(maps: Module) -> None:
    table = maps.table("row", "I", "Q")
    table.put((39,), (5,))
    for _ in range(2):
        assert dict(table.items()) == {(index,): (5 if index == 39 else 0,) for index in range(40)}
