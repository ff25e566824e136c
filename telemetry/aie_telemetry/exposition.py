"""The Prometheus text format (version 0.0.4), both ways: rendered by hand with cached label texts, parsed with a memo per line.

A page is read and written once a second, and most of it repeats: only the numbers change. So the labels of a line are parsed,
or rendered, once, and kept.
"""

from __future__ import annotations

import math
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

Tags = tuple[tuple[str, str], ...]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_BAD_NAME: Final = re.compile(r"[^a-zA-Z0-9_:]")
_BAD_LABEL: Final = re.compile(r"[^a-zA-Z0-9_]")
_LABEL_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def metric_name(name: str) -> str:
    """`name` as a valid Prometheus metric name: foreign characters become '_', a leading digit gets one in front."""
    name = _BAD_NAME.sub("_", name)
    return f"_{name}" if name[:1].isdigit() else name or "_"


def label_name(name: str) -> str:
    """`name` as a valid Prometheus label name, not in the reserved `__` space."""
    name = _BAD_LABEL.sub("_", name)
    if name[:1].isdigit() or not name:
        return f"_{name}"
    return "_" + name.lstrip("_") if name.startswith("__") else name


def label_text(tags: Iterable[tuple[str, str]]) -> str:
    """Labels as they stand behind a metric's name: `{a="b",c="d"}`, or nothing. Names must be valid; values are escaped."""
    inner = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in tags)
    return f"{{{inner}}}" if inner else ""


def number(value: float) -> str:
    """A sample's value: the shortest text that reads back as the same float, or as 0 for a negative zero."""
    value = float(value)  # callers pass integers too, which have no is_integer before Python 3.12
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def header(name: str, kind: str, help_: str, *, openmetrics: bool = False) -> str:
    """The two lines that open a family. OpenMetrics calls a counter's family as its samples, less `_total`."""
    if openmetrics and kind == "counter":
        name = name.removesuffix("_total")
    return f"# HELP {name} {help_.translate(_HELP_ESCAPES)}\n# TYPE {name} {kind}\n"


class HistogramText:
    """The lines of one histogram series, with everything but the numbers rendered once."""

    def __init__(self, name: str, tags: Tags, bounds: Sequence[float]) -> None:
        self._has_negative = bool(bounds) and bounds[0] < 0
        les = [*(number(float(bound)) for bound in bounds), "+Inf"]
        self._buckets = [f"{name}_bucket{label_text((*tags, ('le', le)))} " for le in les]
        self._sum = f"{name}_sum{label_text(tags)} "
        self._count = f"{name}_count{label_text(tags)} "

    def render(
        self,
        counts: Sequence[float],
        total: float,
        exemplars: Mapping[int, str] = MappingProxyType({}),
        *,
        openmetrics: bool = False,
    ) -> str:
        """`counts` per bucket (not cumulative), the last one above every bound; `total` is the sum of all observations;
        `exemplars` what is to stand behind a bucket, by its index. OpenMetrics has no sum, and with it no count, where a bound is
        negative: a sum that may fall is no counter."""
        lines = []
        cumulative = 0.0
        for index, (prefix, count) in enumerate(zip(self._buckets, counts, strict=True)):
            cumulative += count
            lines.append(prefix + number(cumulative) + exemplars.get(index, ""))
        if not (openmetrics and self._has_negative):
            lines.append(self._sum + number(total))
            lines.append(self._count + number(cumulative))
        return "\n".join(lines) + "\n"


class PageSample(NamedTuple):
    """One line of a page: the name as it stands there (with `_bucket` and the like), labels sorted by name, the value, and what
    stands behind a '#' (`exemplars.read`), if it is short."""

    name: str
    tags: Tags
    value: float
    exemplar: str = ""


class Page(NamedTuple):
    """A parsed page: the declared kind of each family, the samples in order, how many lines could not be read, and how many at the
    end of the page were not looked at."""

    kinds: dict[str, str]
    samples: list[PageSample]
    bad_lines: int
    unread_lines: int = 0


# Possessive throughout: a hostile line takes time in proportion to its length, never to its square.
# Groups 1 and 2 are the head and the value of a line that is nothing but these, a space between.
_LINE: Final = re.compile(r"([^\s#]\S*+) (\S++)(?![^\n])|[^\n]++")
_SAMPLE_HEAD: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*+)\s*+(?:\{(.*)\}\s*+)?", re.DOTALL)
_LABELLED: Final = re.compile(r'[a-zA-Z_:][a-zA-Z0-9_:]*+\s*+\{(?:[^"}]|"(?:[^"\\]|\\.)*+")*+\}', re.DOTALL)
_LABEL: Final = re.compile(r'\s*+([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"\s*+(?:,|$)', re.DOTALL)
_SPACE_ONLY: Final = re.compile(r"\s*+\Z")
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_MEMO_BYTES: Final = 4 << 20
_ENTRY_BYTES: Final = 300
_LABEL_BYTES: Final = 110  # a pair, and its value's head
_MEMO_HEAD_CHARS: Final = 1024

MAX_EXEMPLAR_CHARS: Final = 256
"""A longer exemplar is passed over: OpenMetrics allows 128 characters of labels."""
MAX_LINE_CHARS: Final = 1 << 16
"""A longer line counts as a bad one."""
MAX_LABELS: Final = 64
"""A line with more labels counts as a bad one."""
_LABELS_A_SAMPLE: Final = 6  # on average: what a page takes while it is read is mostly labels
_LINES_A_SAMPLE: Final = 4  # so many lines of any sort are looked at for each sample that may be taken


class MemoBudget:
    """Bytes (roughly) that several may remember things in. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.used_bytes = 0
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether there are `size` bytes left, which are taken then."""
        with self._lock:
            if self.used_bytes + size > self.most_bytes:
                return False
            self.used_bytes += size
            return True

    def give(self, size: int) -> None:
        """Gives back what was taken."""
        with self._lock:
            self.used_bytes -= size


class PageParser:
    """Reads pages of one endpoint. Remembers what the unchanging part of each line means, as far as `budget` and 4 MiB go."""

    def __init__(self, budget: MemoBudget | None = None) -> None:
        self._memo: dict[str, tuple[str, Tags] | None] = {}
        self._memo_bytes = 0
        self._memo_full = False
        self._budget = budget or MemoBudget(_MEMO_BYTES)

    def forget(self) -> None:
        """Gives up what it remembers."""
        self._memo.clear()
        self._budget.give(self._memo_bytes)
        self._memo_bytes = 0
        self._memo_full = False

    def parse(self, text: str, max_samples: int | None = None) -> Page:
        """Never raises: unreadable lines are counted, timestamps passed over. Of OpenMetrics (`# EOF` at its end) a counter's kind
        stands under the name of its samples, as in the classic format.

        With `max_samples`, the page is left where so many have been taken, or where a multiple of that in labels or in lines of any
        sort, has been looked at; the lines from there on are counted.
        """
        if self._memo_full:  # of lines that may be gone
            self.forget()
        most = sys.maxsize if max_samples is None else max_samples
        kinds: dict[str, str] = {}
        samples: list[PageSample] = []
        bad_lines = labels = 0
        for looked_at, found in enumerate(_LINE.finditer(text)):  # not split: a list of all lines takes several times the page
            start, end = found.span()
            if len(samples) >= most or looked_at >= _LINES_A_SAMPLE * most or labels > _LABELS_A_SAMPLE * most:
                return Page(kinds, samples, bad_lines, text.count("\n", start, len(text) - 1) + 1)
            if end - start > MAX_LINE_CHARS:
                bad_lines += 1
                continue
            head, value = found.groups()
            if head and (meaning := self._memo.get(head)):  # nearly all lines of nearly all pages
                try:
                    samples.append(PageSample(*meaning, float(value)))
                except ValueError:
                    bad_lines += 1
                labels += len(meaning[1])
                continue
            line = found[0].strip()
            if not line:
                continue
            if line[0] == "#":
                words = line.split(None, 3)
                if len(words) == 4 and words[1] == "TYPE":
                    kinds[words[2]] = words[3].strip()
                elif line == "# EOF":
                    _name_as_samples(kinds)
                continue
            sample = self._line(line)
            if sample is not None:
                samples.append(sample)
                labels += len(sample.tags)
            else:
                bad_lines += 1
        return Page(kinds, samples, bad_lines)

    def _line(self, line: str) -> PageSample | None:
        # What follows the labels is a value, and perhaps a timestamp or an exemplar, which has braces too; so may a label's value.
        has_more = " # " in line
        end = _labels_end(line) if has_more else line.rfind("}")
        words = line.split(None, 1) if end < 0 else (line[: end + 1], line[end + 1 :])
        if len(words) < 2:
            return None
        head, rest = words
        meaning = self._memo.get(head, False)
        if meaning is False:
            meaning = _read_head(head)
            self._remember(head, meaning)
        words = rest.split(None, 1)
        if meaning is None or meaning is True or not words:
            return None
        try:
            return PageSample(meaning[0], meaning[1], float(words[0]), _exemplar(words) if has_more else "")
        except ValueError:
            return None

    def _remember(self, head: str, meaning: tuple[str, Tags] | None) -> None:
        if self._memo_full or len(head) > _MEMO_HEAD_CHARS:
            return
        size = _ENTRY_BYTES + 2 * len(head) + (_LABEL_BYTES * len(meaning[1]) if meaning is not None else 0)
        if self._memo_bytes + size > _MEMO_BYTES or not self._budget.take(size):
            self._memo_full = True
            return
        self._memo_bytes += size
        self._memo[head] = meaning


def _name_as_samples(kinds: dict[str, str]) -> None:
    for name in [name for name, kind in kinds.items() if kind == "counter" and not name.endswith("_total")]:
        kinds.setdefault(f"{name}_total", kinds.pop(name))


def _exemplar(words: Sequence[str]) -> str:
    """What stands behind the '#', of a line's value and what follows it: perhaps a timestamp first."""
    text = f" {words[1]}".partition(" # ")[2] if len(words) > 1 else ""
    return text if len(text) <= MAX_EXEMPLAR_CHARS else ""


def _labels_end(line: str) -> int:
    """Where the '}' behind the labels stands, or -1: seen exactly, since there may be others behind it and within quotes."""
    match = _LABELLED.match(line)
    return match.end() - 1 if match else -1


def _read_head(head: str) -> tuple[str, Tags] | None:
    match = _SAMPLE_HEAD.fullmatch(head)
    if match is None:
        return None
    labels = match[2] or ""
    tags: dict[str, str] = {}
    position = labels_read = 0
    while not _SPACE_ONLY.match(labels, position):
        label = _LABEL.match(labels, position)
        if label is None or labels_read >= MAX_LABELS:
            return None
        labels_read += 1
        tags[sys.intern(label[1])] = _ESCAPE.sub(lambda escape: "\n" if escape[1] == "n" else escape[1], label[2])
        position = label.end()
    return sys.intern(match[1]), tuple(sorted(tags.items()))
