"""Parses pages of one endpoint that repeat: of a page that is laid out as the one before, only lines that changed are read.

A page comes once a second, and nearly all of it is what it was: comments, names, labels, and most numbers. Where a line differs
from the line in the same place, and begins as that did up to its value, its value is read and nothing else; where it does not, it
is parsed by itself; and where that is not the same series either, the whole page is parsed. So the answer is the parser's in any
case.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence, Set
from itertools import compress
from typing import Final, NamedTuple

from aie_telemetry.exposition import MAX_LINE_CHARS, MemoBudget, Page, PageParser, PageSample

_VALUE_CHARS: Final = 64
"""A longer value is the parser's business."""
_MEMO_BYTES: Final = 12 << 20
_LINE_BYTES: Final = 320  # a line that is kept, with its sample and its number, less the line's text
_NO_SAMPLE: Final = -1


class _Layout(NamedTuple):
    """A page as it was last: its lines; of each line which sample it is (`_NO_SAMPLE`: none) and what stands before its value (""
    where more than a value stands behind that)."""

    max_samples: int | None
    lines: list[str]
    sample_of: Sequence[int]
    heads: Sequence[str]
    page: Page
    held_bytes: int


class RepeatParser:
    """Reads pages of one endpoint. What it remembers is bounded by `budget`."""

    def __init__(self, budget: MemoBudget | None = None) -> None:
        self._budget = budget or MemoBudget(_MEMO_BYTES)
        self._parser = PageParser(self._budget)
        self._layout: _Layout | None = None
        self.names: Set[str] = frozenset()
        """Those of the lines of the last page."""
        self._lines_before = -1

    def forget(self) -> None:
        """Gives up what it remembers."""
        self._parser.forget()
        self._drop()

    def parse(self, text: str, max_samples: int | None = None) -> Page:
        """As `PageParser.parse`. Samples of lines that did not change are the same objects as those of the page before."""
        lines = text.split("\n")
        if self._layout is not None:
            page = self._repeated(self._layout, lines, max_samples)
            if page is not None:
                return page
            self._drop()
        page = self._parser.parse(text, max_samples)
        self.names = frozenset(sample.name for sample in page.samples)
        # A page that never has as many lines as before is not worth remembering.
        if len(lines) == self._lines_before:
            self._layout = self._laid_out(lines, max_samples, page)
        self._lines_before = len(lines)
        return page

    def _repeated(self, layout: _Layout, lines: list[str], max_samples: int | None) -> Page | None:
        """The page, if it is laid out so; else None."""
        before = layout.lines
        if len(lines) != len(before) or max_samples != layout.max_samples:
            return None
        samples = layout.page.samples.copy()
        sample_of, heads = layout.sample_of, layout.heads
        for place in compress(range(len(lines)), map(operator.ne, lines, before)):
            number, line, head = sample_of[place], lines[place], heads[place]
            if number == _NO_SAMPLE:
                return None
            name, tags, _, _ = known = samples[number]
            sample: PageSample | None
            try:
                sample = PageSample(name, tags, float(line[len(head) :])) if head and line.startswith(head) else None
            except ValueError:
                sample = None
            if sample is None or len(line) > len(head) + _VALUE_CHARS:
                sample = self._sample(line, known)
                if sample is None:
                    return None
            samples[number] = sample
        page = layout.page._replace(samples=samples)
        self._layout = layout._replace(lines=lines, page=page)
        return page

    def _sample(self, line: str, known: PageSample) -> PageSample | None:
        """The sample of a line, parsed by itself, if it is of this series; else None."""
        parsed = self._parser.parse(line)
        if parsed.bad_lines or len(parsed.samples) != 1:
            return None
        sample = parsed.samples[0]
        return sample if (sample.name, sample.tags) == (known.name, known.tags) else None

    def _laid_out(self, lines: list[str], max_samples: int | None, page: Page) -> _Layout | None:
        """What is to be remembered of a page; None for one that was not read whole, or where there is no room."""
        samples = len(page.samples)
        if page.bad_lines or page.unread_lines or not samples:
            return None
        sample_of, heads = [], []
        found = 0
        for line in lines:
            is_sample = _is_sample(line)
            sample_of.append(found if is_sample else _NO_SAMPLE)
            heads.append(_head(line) if is_sample else "")
            found += is_sample
        held_bytes = len(lines) * _LINE_BYTES + 2 * sum(map(len, lines))
        if found != samples or not self._budget.take(held_bytes):
            return None
        return _Layout(max_samples, lines, sample_of, heads, page, held_bytes)

    def _drop(self) -> None:
        if self._layout is not None:
            self._budget.give(self._layout.held_bytes)
        self._layout = None


def _is_sample(line: str) -> bool:
    """Whether a line of a page without bad lines is one of its samples."""
    text = line.strip()
    return bool(text) and text[0] != "#"


def _head(line: str) -> str:
    """What stands before the value, where nothing but a value stands behind the labels; else ""."""
    text = line.rstrip()
    if " # " in text or len(line) > MAX_LINE_CHARS // 2:
        return ""
    end = text.rfind("}")
    rest = text[end + 1 :].split() if end >= 0 else text.split()[1:]
    return text[: len(text) - len(rest[0])] if len(rest) == 1 else ""
