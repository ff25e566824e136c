"""One line of memory followed over days: samples become cells, cells bins, and bins a state. Thin: the rules are in
`verdict.py`."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from operator import sub
from statistics import fmean
from typing import Any, Final

from aie_agent.analysis.leaks.block_floors import Adjust, Bin, Low, failed, scatter
from aie_agent.analysis.leaks.cells import FEW, Cell, dump_cell, floors_at_starts, numbers, restored_cell, rounded
from aie_agent.analysis.leaks.claims import Claim
from aie_agent.analysis.leaks.load_adjust import LoadFit, may_be_load
from aie_agent.analysis.leaks.settings import CELLS_PER_BIN, FAST_CELLS, MOST_BINS, TIERS, LeakSettings, Level
from aie_agent.analysis.leaks.standing import (
    FAST,
    NOTHING,
    End,
    Past,
    Standing,
    after_bin,
    after_cell,
    first_found,
    gave_back,
    under_load,
)
from aie_agent.analysis.leaks.theil_sen import Slope
from aie_agent.analysis.leaks.verdict import WITH_LOAD, Doubt, fast_rise, is_quiet, rise

_NO_LOW: Final = (0.0, 0.0, 0.0)
_MOST_PAST: Final = 4


class Line:
    """One quantity of memory of an engine since its warm-up ended at `origin_s`. Samples in, a `Standing` out. Its memory is
    bounded: two days of bins, and of recordings `kept_bins` more to look back at, which are no part of its state."""

    def __init__(self, settings: LeakSettings, origin_s: float, kept_bins: int = 0) -> None:
        self._settings = settings
        self.origin_s = origin_s
        self.standing: Standing = NOTHING
        self.past: list[Past] = []
        self._judged = False
        self._looks = self._quiet_looks = 0  # of the fast lane
        self._bins: list[Bin] = []
        self._kept: deque[Bin] = deque(maxlen=kept_bins)
        self._loaded: list[Bin] = []  # of what rises: the bins with load
        self._cells: list[Cell] = []  # of the bin that is not complete
        self._fast: list[Cell] = []
        self._fit = LoadFit()
        self._by = Adjust()
        self._ten: Cell | None = None
        self._with_cache = self._cache_moved = self._moved = 0.0
        self._probed_s = -math.inf
        self.claim: Claim | None = None
        self._confirmed: Standing | None = None
        self._size_bytes = 0.0
        self._given_back: Standing | None = None  # the highest that was
        self._returned: tuple[Standing, float] | None = None  # the last that came back, and when
        self._may_be_load = self._fast_may_be_load = False
        self._cell_number = 0
        self._cell_end_s = origin_s + settings.cell_s
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._low_adjusted = math.inf
        self._low = _NO_LOW
        self._low_s = self.origin_s
        self._sum = self._sum_load = self._sum_cache = 0.0

    def add(self, time_s: float, size_bytes: float, load: float = 0.0, cache_bytes: float = 0.0) -> None:
        """Takes a sample. Times must not go back, and not lie before the origin."""
        if time_s >= self._cell_end_s:
            self._close_cell()
            self._cell_number = int((time_s - self.origin_s) / self._settings.cell_s)
            self._cell_end_s = self.origin_s + (self._cell_number + 1) * self._settings.cell_s
        size = size_bytes - self._by.bytes_per_load * load - self._by.of_cache * cache_bytes
        if size < self._low_adjusted:
            self._low_adjusted, self._low, self._low_s = size, (size_bytes, load, cache_bytes), time_s
        self._count += 1
        self._sum += size_bytes
        self._size_bytes = size_bytes
        self._sum_load += load
        self._sum_cache += cache_bytes

    def close(self) -> None:
        """No more samples come: what is not complete is judged as far as it goes, if it is most of a cell or bin."""
        self._close_cell()
        if len(self._cells) > CELLS_PER_BIN // 2:
            self._close_bin()

    @property
    def judged(self) -> bool:
        """Whether it was seen for long enough to say what it is: for twelve hours, or, where it is quiet, 40 minutes."""
        return self._judged or self._quiet_looks * 2 > self._looks

    @property
    def level(self) -> Level:
        """What it is now."""
        return self.standing.level

    @property
    def floors(self) -> tuple[float, float] | None:
        """The first and the last floor that are remembered, adjusted; None before there is one."""
        return (self._bins[0].low.adjusted(self._by), self._bins[-1].low.adjusted(self._by)) if self._bins else None

    def risen_since(self, time_s: float) -> float | None:
        """By how much its floors have risen since a moment, in bytes, as far back as is remembered; None where nothing is."""
        wanted = int((time_s - self.origin_s) / self._settings.bin_s)
        rows: Sequence[Bin | Cell] = self._bins if len(self._bins) > 1 else self._fast
        if len(rows) < 2:
            return None
        first = next((each for each in rows if each.number >= wanted), rows[-1]) if rows is self._bins else rows[0]
        return rows[-1].low.adjusted(self._by) - first.low.adjusted(self._by)

    @property
    def risen(self) -> tuple[float, float] | None:
        """By how many bytes its floors have risen, adjusted, and in how many seconds, as far back as is remembered."""
        rows: Sequence[Bin | Cell] = self._bins if len(self._bins) > 1 else self._fast
        if len(rows) < 2:
            return None
        apart_s = self._settings.bin_s if rows is self._bins else self._settings.cell_s
        grown = rows[-1].low.adjusted(self._by) - rows[0].low.adjusted(self._by)
        return grown, (rows[-1].number - rows[0].number) * apart_s

    @property
    def cache_bytes(self) -> tuple[float, float]:
        """What of known caches was taken off the first and the last floor that are remembered."""
        if not self._bins:
            return 0.0, 0.0
        return self._by.of_cache * self._bins[0].low.cache_bytes, self._by.of_cache * self._bins[-1].low.cache_bytes

    @property
    def bins(self) -> Sequence[Bin]:
        """The half hours that are remembered, the newest last."""
        return self._bins

    @property
    def kept_bins(self) -> Sequence[Bin]:
        """The half hours of a recording since its warm-up, as far back as it was asked to keep them."""
        return tuple(self._kept)

    @property
    def adjust(self) -> Adjust:
        """What is taken off its sizes."""
        return self._by

    @property
    def bytes_per_load(self) -> float:
        """Bytes that go with each request in flight."""
        return self._by.bytes_per_load

    @property
    def may_be_load(self) -> bool:
        """Whether it rises evenly with the load, so that nothing can be told: neither that it leaks nor that it does not."""
        return self.level == "none" and (self._may_be_load or self._fast_may_be_load)

    @property
    def goes_with_cache(self) -> float:
        """Bytes by which it changed for each byte that known caches changed by, times the share of its changes that this explains:
        of two lines that rise as fast as a cache, the one that moves just as it does holds it."""
        if not self._cache_moved or not self._moved:
            return 0.0
        return self._with_cache**3 / (self._cache_moved**2 * self._moved)

    def holds_cache(self, holds: bool) -> None:
        """Whether known caches lie in this line, so that they are taken off."""
        self._by = self._by._replace(of_cache=1.0 if holds else 0.0)

    def probed(self, time_s: float, given_bytes: float | None = None) -> Standing | None:
        """The engine was made to give back what it only retains, and says that it gave back so much of this (None: not told). Half
        of the rise is a claim, which the next floors must confirm (`take_confirmed`): of an engine that works, two readings differ
        by what its requests hold. What is settled is what its floors had told before the answer came. More than there was is no
        claim. What is not told shows by the floors: memory that returns soon after was retained as well."""
        self._probed_s, self.claim = time_s, None
        if given_bytes is not None and given_bytes > max(self._size_bytes, self.standing.peak.size_bytes):
            return None
        before = self.standing
        if before.level == "none" and self._returned is not None and time_s - self._returned[1] <= 2 * self._settings.bin_s:
            before = self._returned[0]  # its floors were faster than the answer
        if before.level == "none" or given_bytes is None or not gave_back(before, given_bytes, self._by):
            return None
        if self.standing.level != "none":
            self.claim = Claim(time_s, given_bytes, before)
            return None
        self._returned = None
        return before

    def take_confirmed(self) -> Standing | None:
        """What a claim has settled since the last call: what this was held to be, and what was retained."""
        settled, self._confirmed = self._confirmed, None
        return settled

    def confirm(self) -> None:
        """A claim holds: by the floors of this line, or by those of a part of it: an allocator keeps what tensors
        gave back, so that those of the whole refute it."""
        if self.claim is None:
            return
        claim, self.claim = self.claim, None
        self.standing = NOTHING
        self._note_end(claim.standing, "returned", claim.time_s)
        self._returned, self._confirmed = None, claim.standing

    def _ask_floors(self, cell: Cell) -> None:
        """Holds a claim against the floor of one more cell that began after it was made."""
        if self.claim is None or not self.claim.is_open or self.origin_s + cell.number * self._settings.cell_s < self.claim.time_s:
            return
        self.claim = self.claim.after(cell.low, self._by)
        if self.claim.holds:
            self.confirm()

    def time_s(self, bin_number: int) -> float:
        """When a bin began."""
        return self.origin_s + bin_number * self._settings.bin_s

    def _close_cell(self) -> None:
        count = self._count
        if not count:
            return
        mean = Low(self._sum / count, self._sum_load / count, self._sum_cache / count)
        late_s = self._low_s - self.origin_s - self._cell_number * self._settings.cell_s if count < FEW else 0.0
        cell = Cell(self._cell_number, Low(*self._low), mean, max(late_s, 0.0))
        self._clear()
        if self._cells and self._cells[-1].number // CELLS_PER_BIN != cell.number // CELLS_PER_BIN:
            self._close_bin()
        self._cells.append(cell)
        self._learn(cell)
        self._ask_floors(cell)
        self._judge_fast(cell)
        if (cell.number + 1) % CELLS_PER_BIN == 0:
            self._close_bin()

    def _learn(self, cell: Cell) -> None:
        """What goes with load and caches is learnt from one pair of cells to the next."""
        before = self._fast[-1] if self._fast else None
        if cell.number % 2 == 0 or before is None or before.number != cell.number - 1:
            return
        ten = Cell(cell.number // 2, cell.low, Low(*((a + b) / 2 for a, b in zip(before.mean, cell.mean, strict=True))))
        if self._ten is not None and self._ten.number == ten.number - 1:
            size, load, cache = (b - a for a, b in zip(self._ten.mean, ten.mean, strict=True))
            self._fit.add(load, size - self._by.of_cache * cache)
            self._with_cache += size * cache
            self._cache_moved += cache * cache
            self._moved += size * size
        self._ten = ten

    def _judge_fast(self, cell: Cell) -> None:
        if self._fast and self._fast[-1].number != cell.number - 1:
            self._fast.clear()
        self._fast = [*self._fast[1 - FAST_CELLS :], cell]
        if len(self._fast) < FAST_CELLS:
            return
        lows = floors_at_starts(self._fast, self._by, self._settings.cell_s)
        self._looks += 1
        self._quiet_looks += is_quiet(lows, self._settings)
        first, last = self._fast[0], self._fast[-1]
        loads = [each.mean.load for each in self._fast]
        self._fast_may_be_load = False
        slope = self._fast_slope(lows, loads, first) if min(map(sub, lows[1:], lows)) > 0 else None
        if slope is not None and self.standing.level == "none":
            since_s = self.origin_s + first.number * self._settings.cell_s
            self.standing = Standing("suspect", since_s, slope, FAST, 1.0, first.low, last.low, fmean(loads))
        elif self.standing.tier == FAST:
            before = self.standing
            after, how = after_cell(before, lows, last.low, fmean(loads), self._by, self._settings)
            self.standing = before if self._is_claimed else after
            if how is not None and not self._is_claimed:
                self._note_end(before, how, self.origin_s + (cell.number + 1) * self._settings.cell_s)

    def _fast_slope(self, lows: Sequence[float], loads: Sequence[float], first: Cell) -> Slope | None:
        """Of the fast lane's floors, each above the one before, where nothing that is known explains them."""
        doubt = self._doubt()
        slope = fast_rise(lows, doubt.ceiling_bytes, self._settings)
        older = (each.high_bytes for each in self._bins if (each.number + 1) * CELLS_PER_BIN <= first.number)
        if slope is None or lows[-1] <= max(older, default=-math.inf):
            return None
        self._fast_may_be_load = may_be_load(loads, lows[-1] - lows[0], doubt.bytes_per_load)
        return None if self._fast_may_be_load else slope

    def _close_bin(self) -> None:
        cells, self._cells = self._cells, []
        before = self._fast[-len(cells) - 1].low.adjusted(self._by) if len(self._fast) > len(cells) else None
        dip = failed([cell.low.adjusted(self._by) for cell in cells], before)
        known = [cell for index, cell in enumerate(cells) if index != dip]
        lows = [cell.low.adjusted(self._by) for cell in known]
        least = known[lows.index(min(lows))]
        scattered = scatter(lows)
        load = sum(cell.mean.load for cell in cells) / len(cells)
        number = cells[0].number // CELLS_PER_BIN
        self._bins.append(Bin(number, least.low, max(lows), -1.0 if scattered is None else scattered, load))
        self._kept.append(self._bins[-1])
        if len(self._bins) > MOST_BINS:
            del self._bins[0]
        self._by = self._by._replace(bytes_per_load=self._fit.bytes_per_load())
        self._judge()

    def _judge(self) -> None:
        found = None
        doubt = self._doubt()
        self._may_be_load = False
        for tier in TIERS:
            result = rise(self._bins, tier, self._by, self._settings, doubt)
            self._may_be_load = self._may_be_load or result == WITH_LOAD
            self._judged = self._judged or (result is not None and not tier.sudden)
            if found is None and result is not None and not isinstance(result, str):
                found = (tier, result)
        if found is not None:
            tier, result = found
            self.standing = first_found(self.standing, tier, result, self._bins, self._by, self.time_s)
        before = self.standing
        until_s = self.time_s(self._bins[-1].number + 1)
        probed = self._was_probed(until_s)
        self._loaded = under_load(self._loaded, self._bins, before)
        after, how = after_bin(before, self._bins, self._loaded, self._by, self._settings, probed=probed)
        self.standing = before if self._is_claimed else after
        if how is not None and not self._is_claimed:
            self._note_end(before, how, until_s)

    def _doubt(self) -> Doubt:
        ceiling = -math.inf if self._given_back is None else self._given_back.ceiling_bytes(self._by)
        return Doubt(ceiling, self._fit.unsure_bytes_per_load())

    @property
    def _is_claimed(self) -> bool:
        """Whether a claim waits for its floors: until then nothing ends."""
        return self.claim is not None and self.claim.is_open

    def _was_probed(self, until_s: float) -> bool:
        return until_s - self._probed_s <= 2 * self._settings.bin_s

    def _note_end(self, before: Standing, how: End, until_s: float) -> None:
        """What was a leak until now is remembered, and so is a suspicion that a probe has settled."""
        probed = how == "returned" and self._was_probed(until_s)
        if how == "returned":
            self._returned = (before, until_s)
        if how == "returned" and before.ceiling_bytes(self._by) > self._doubt().ceiling_bytes:
            self._given_back = before
        if before.level == "leak" or probed:
            self.past = [*self.past[1 - _MOST_PAST :], Past("probed" if probed else how, before, until_s)]

    def dump(self) -> dict[str, Any]:
        """Its state as plain numbers: about 3 KB a day."""
        return {
            "origin_s": self.origin_s,
            "judged": [self._judged, self._looks, self._quiet_looks],
            "standing": self.standing.dump(),
            "given_back": None if self._given_back is None else self._given_back.dump(),
            "claim": None if self.claim is None else self.claim.dump(),
            "past": [[each.how, each.standing.dump(), each.until_s] for each in self.past],
            "bins": [rounded(each.number, *each.low, *each[2:]) for each in self._bins],
            "loaded": [rounded(each.number, *each.low, *each[2:]) for each in self._loaded],
            "cells": [dump_cell(each) for each in self._cells],
            "fast": [dump_cell(each) for each in self._fast],
            "fit": self._fit.sums(),
            "cache": [self._with_cache, self._cache_moved, self._moved, self._by.of_cache],
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any], settings: LeakSettings) -> Line:
        """What `dump` gave. Raises ValueError, TypeError or KeyError for anything else."""
        line = cls(settings, float(state["origin_s"]))
        judged, looks, quiet_looks = state["judged"]
        line._judged, line._looks, line._quiet_looks = bool(judged), int(looks), int(quiet_looks)
        line.standing = Standing.restored(state["standing"])
        if state.get("given_back") is not None:
            line._given_back = Standing.restored(state["given_back"])
        if state.get("claim") is not None:
            line.claim = Claim.restored(state["claim"])
        line.past = [Past(str(how), Standing.restored(standing), float(until_s)) for how, standing, until_s in state["past"]]
        line._bins = [_bin(each) for each in state["bins"]]
        line._loaded = [_bin(each) for each in state.get("loaded", ())]
        line._cells = [restored_cell(each) for each in state["cells"]]
        line._fast = [restored_cell(each) for each in state["fast"]]
        line._fit = LoadFit(numbers(state["fit"], 6))
        line._with_cache, line._cache_moved, line._moved, of_cache = numbers(state["cache"], 4)
        line._by = Adjust(line._fit.bytes_per_load(), of_cache)
        return line


def _bin(values: Sequence[Any]) -> Bin:
    number, size, load, cache, high, scattered, mean_load = numbers(values, 7)
    return Bin(int(number), Low(size, load, cache), high, scattered, mean_load)
