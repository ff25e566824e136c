"""Who holds GPUs: one row a process, whichever number of GPUs it is on, children below their parents. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from aie_telemetry.api import GpuProcess
from aie_top.rows import GpuProcessRow, GpuRow

Number = TypeVar("Number", int, float)


def process_rows(gpus: Sequence[GpuRow]) -> tuple[GpuProcessRow, ...]:
    """In the order of a tree for each agent: roots by the GPU they are first seen on, then by pid."""
    by_process: dict[tuple[str, int], list[tuple[GpuRow, GpuProcess]]] = {}
    for row in gpus:
        for process in row.gpu.processes:
            by_process.setdefault((row.agent, process.tgid), []).append((row, process))
    return tuple(_as_tree([_merged(held) for held in by_process.values()]))


def _merged(held: Sequence[tuple[GpuRow, GpuProcess]]) -> GpuProcessRow:
    (row, process), each = held[0], [one for _, one in held]
    return GpuProcessRow(
        agent=row.agent,
        host=row.host,
        process=process,
        gpus=tuple(sorted({one.gpu.index for one, _ in held})),
        memory_bytes=_sum_of(one.memory_bytes for one in each),
        sm_ratio=_mean_of(one.sm_ratio for one in each),
        simulated=any(one.gpu.simulated for one, _ in held),
        stale_s=row.stale_s,
    )


def _sum_of(values: Iterable[int | None]) -> int | None:
    """Where one is not known, neither is the sum: what is left would be too low."""
    known = list(values)
    return None if None in known else sum(value for value in known if value is not None)


def _mean_of(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _as_tree(rows: Sequence[GpuProcessRow]) -> Iterator[GpuProcessRow]:
    """A process whose parent holds no GPU is a root; so is one of a circle, which only garbage makes."""
    present = {row.key for row in rows}
    children: dict[tuple[str, int], list[GpuProcessRow]] = {}
    roots: list[GpuProcessRow] = []
    for row in sorted(rows, key=lambda row: (row.agent, row.gpus, row.process.tgid)):
        parent = (row.agent, row.process.parent_tgid or 0)
        (children.setdefault(parent, []) if parent in present and parent != row.key else roots).append(row)
    waiting = [(row, 0) for row in reversed(roots)]
    seen: set[tuple[str, int]] = set()
    while waiting:
        row, depth = waiting.pop()
        seen.add(row.key)
        yield msgspec.structs.replace(row, depth=depth)
        waiting += [(child, depth + 1) for child in reversed(children.get(row.key, []))]
    yield from (row for row in rows if row.key not in seen)
