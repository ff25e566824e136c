"""What an engine asked of the CUDA driver, for its page: memory by who asked and of which kind, copies, waits, refused calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from aie_telemetry.api import CudaUse
from aie_top import charts, cuda_words
from aie_top import format as fmt
from aie_top.latency import writer
from aie_top.text import Line, Span, fit, line
from aie_top.views.facts import facts, title

# Of files that asked for memory: the rest together.
_MODULES_SHOWN: Final = 8
_NAME_WIDTH: Final = 22
_BAR_MOST: Final = 60

Cell = tuple[str, int]


def cuda_lines(cuda: CudaUse | None, width: int) -> list[Line]:
    """Nothing where no probe sees it: what is not seen is said with the waits."""
    if cuda is None:
        return []
    # The agent tells only the largest size classes, so their sum is no whole.
    whole = sum(cuda.outstanding_bytes.values())
    return [
        title("CUDA MEMORY, AS THE DRIVER WAS ASKED FOR IT"),
        *facts(_memory(cuda), width),
        *_amounts("BY KIND", cuda.outstanding_bytes, whole, width, lambda name: cuda_words.KINDS.get(name, name)),
        *_amounts("BY WHO ASKED", cuda.by_module, whole, width, str),
        *_amounts("BY SIZE OF ONE", cuda.by_size_class_bytes, whole, width, _size_class),
        *_copies(cuda),
        *_syncs(cuda),
        *_calls(cuda, width),
    ]


def _memory(cuda: CudaUse) -> Iterable[tuple[str, str | None]]:
    yield "not freed", fmt.size(sum(cuda.outstanding_bytes.values())) if cuda.outstanding_bytes else None
    yield "allocations", fmt.count(cuda.outstanding_allocations) if cuda.outstanding_allocations is not None else None
    yield "asked for", _known(fmt.size, cuda.allocated_bytes_per_second, "/s")
    yield "given back", _known(fmt.size, cuda.freed_bytes_per_second, "/s")
    yield "calls", _known(fmt.rate, cuda.allocations_per_second, " allocations/s")
    unknown = cuda.unknown_frees_per_second
    yield "unknown frees", _known(fmt.rate, unknown, "/s, of what was there before the probes") if unknown else None
    yield "contexts", str(cuda.contexts) if cuda.contexts is not None else None


def _amounts(name: str, amounts: Mapping[str, float], whole: float, width: int, word: Callable[[str], str]) -> list[Line]:
    """The largest first, each with its share of `whole` as a bar; those beyond the most that are shown are one line."""
    largest = sorted(amounts.items(), key=lambda item: -item[1])
    shown = [(word(key), amount) for key, amount in largest[:_MODULES_SHOWN]]
    rest = largest[_MODULES_SHOWN:]
    if rest:
        shown.append((f"{len(rest)} more", sum(amount for _, amount in rest)))
    room = min(max(width - _NAME_WIDTH - fmt.SIZE_WIDTH - fmt.PERCENT_WIDTH - 7, 0), _BAR_MOST)
    lines = [_head(name, (("NOT FREED", fmt.SIZE_WIDTH),))] if shown else []
    for called, amount in shown:
        ratio = amount / whole if whole > 0 else None
        filled, empty = charts.bar(ratio, room)
        lines.append(
            line(
                "  ",
                Span(fit(called, _NAME_WIDTH, middle=True), "dim"),
                Span(" " + fit(fmt.size(amount), fmt.SIZE_WIDTH, right=True) + "  "),
                Span(filled, "bar"),
                Span(empty, "track"),
                Span(" " + fit(fmt.percent(ratio), fmt.PERCENT_WIDTH, right=True), "dim"),
            )
        )
    return lines


def _copies(cuda: CudaUse) -> list[Line]:
    cells = [
        (cuda_words.DIRECTIONS.get(name, name), (fmt.size(one.bytes_per_second), fmt.size(one.burst_bytes)))
        for name, one in cuda.copies.items()
    ]
    return _table("COPIES", (("BYTES/S", fmt.SIZE_WIDTH), ("MOST IN 1 ms", 12)), cells)


def _syncs(cuda: CudaUse) -> list[Line]:
    write = writer("syncs")
    cells = [
        (name, (fmt.rate(one.calls_per_second), write(one.p50_seconds), write(one.p99_seconds))) for name, one in cuda.syncs.items()
    ]
    return _table("WAITS FOR THE GPU IN", (("CALLS/S", 7), ("P50", 8), ("P99", 8)), cells)


def _calls(cuda: CudaUse, width: int) -> list[Line]:
    """What is told in a sentence each: who waits inside now, launches, and what the driver refused."""
    lines = facts(_waiting(cuda), width)
    launches = ", ".join(f"{fmt.rate(number)} {name}" for name, number in cuda.launches_per_second.items())
    lines += facts((("launches/s", launches or None),), width)
    if cuda.failures:
        lines.append(title("CALLS THAT THE DRIVER REFUSED"))
    for key, times in cuda.failures.items():
        call, why = cuda_words.failure(key)
        lines.append(line("  ", Span(fit(call, _NAME_WIDTH + 8, middle=True)), Span(f" {fmt.count(times)} × {why}", "warn")))
    return lines


def _waiting(cuda: CudaUse) -> Iterable[tuple[str, str | None]]:
    yield "inside now", _known(fmt.count, cuda.sync_waiting, " thread" if cuda.sync_waiting == 1 else " threads")
    longest = cuda.sync_longest_wait_seconds
    yield "the longest for", fmt.duration(longest) if longest is not None and cuda.sync_waiting else None


def _table(name: str, heads: Sequence[Cell], rows: Sequence[tuple[str, Sequence[str]]]) -> list[Line]:
    if not rows:
        return []
    lines = [_head(name, heads)]
    for called, cells in rows:
        numbers = "".join(" " + fit(cell, width, right=True) for cell, (_, width) in zip(cells, heads, strict=True))
        lines.append(line("  ", Span(fit(called, _NAME_WIDTH, middle=True), "dim"), Span(numbers)))
    return lines


def _head(name: str, heads: Sequence[Cell]) -> Line:
    """As wide as its rows, whose names stand one column further in."""
    titles = "".join(" " + fit(head, width, right=True) for head, width in heads)
    return line(" ", Span(fit(name, _NAME_WIDTH + 1), "strong"), Span(titles, "dim"), fill="title")


def _size_class(name: str) -> str:
    """A power of two that holds the size, in bytes as digits."""
    return f"up to {fmt.size(float(name))}" if name.isascii() and name.isdigit() and len(name) < 20 else name


def _known(text: Callable[[float | None], str], value: float | None, unit: str) -> str | None:
    return f"{text(value)}{unit}" if value is not None else None
