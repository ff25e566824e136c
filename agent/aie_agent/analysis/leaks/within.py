"""Whose memory it is that grows in a process outside its allocator: Python's objects, malloc's heap, or other mappings.

By what the hooks tell of the process (blocks of the interpreter, bytes of malloc), which is followed beside the lines; and by what
the kernel tells of its mappings, from the moment on at which it became suspect. The first is one process's: of an engine of several
that says what grows, and not what does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from aie_agent.analysis.leaks.lines import LeakClass
from aie_agent.analysis.leaks.sentences import size
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.watch import Found, Watch
from aie_telemetry.api import Evidence

BLOCKS: Final = "aie_engine_python_blocks"
MALLOC_USED: Final = "aie_engine_malloc_used_bytes"
MALLOC_HELD: Final = "aie_engine_malloc_held_bytes"
MAPS: Final = "aie_process_anonymous_bytes"

_OPEN: Final = frozenset({"outside_allocator", "unknown"})
"""Classes that a look into the process can make more exact."""
_MOST: Final = 0.5
"""Of the rise: what grows by so much of it is what grows."""
_BLOCK_BYTES: Final = 2048.0
"""Python's objects take less each, as a rule; where more rises with each new block, blocks do not explain it. An interpreter that
does not leak holds the same number of blocks at each floor: this asks for 10,000 more in 40 minutes of the slowest leak."""

_SMALL_BLOCK_BYTES: Final = 100.0
"""A block of the interpreter takes about so much, and 512 bytes at most: what is larger it asks of malloc. Where malloc itself has
grown by most of the rise, and so much a block is a small part of it, blocks come along with what grows."""
_SMALL_PART: Final = 0.25

_KIND_WORDS: Final = {"heap": "malloc's heap and arenas", "file": "written pages of mapped files", "mapping": "other mappings"}


class Maps(NamedTuple):
    """Bytes of a process's anonymous memory at a moment, by kind and by size of the mapping."""

    time_s: float
    held: Mapping[tuple[str, str], float]

    def of(self, kind: str) -> float:
        """All sizes together."""
        return sum(held for (name, _), held in self.held.items() if name == kind)


class Inside(NamedTuple):
    """What is known of the inside of an engine's processes: how many there are, and its mappings first and last since it was
    suspect."""

    processes: int = 1
    first: Maps | None = None
    last: Maps | None = None


def told_by(found: Found, watch: Watch, inside: Inside, settings: LeakSettings) -> tuple[Found, tuple[Evidence, ...]]:
    """The same with the class that a look into the process tells, and why; unchanged where it tells none."""
    if found.leak_class not in _OPEN:
        return found, ()
    told = _by_hooks(found, watch, inside.processes) or _by_maps(found, inside, settings)
    if told is None:
        return found, ()
    leak_class, *evidence = told
    return found._replace(leak_class=leak_class), (*evidence, *_largest_mapping(leak_class, inside))


def _by_hooks(found: Found, watch: Watch, processes: int) -> tuple[LeakClass, Evidence] | None:
    since_s = found.standing.since_s
    risen = watch.lines[found.line.name].risen_since(since_s) if found.line.name in watch.lines else None
    blocks, used, held = (
        watch.lines[name].risen_since(since_s) if name in watch.lines else None for name in ("python", "malloc", "malloc_held")
    )
    if not risen or risen < 0:
        return None
    is_malloc = used is not None and held is not None and used >= _MOST * risen
    if (
        blocks is not None
        and blocks * _BLOCK_BYTES >= risen
        and not (is_malloc and blocks * _SMALL_BLOCK_BYTES < _SMALL_PART * risen)
    ):
        text = (
            f"Python holds {blocks:,.0f} blocks more, one for each {size(risen / blocks)} of the rise (limit {size(_BLOCK_BYTES)})"
        )
        return "python_objects", Evidence(text=text, metric=BLOCKS)
    if used is None or held is None:
        return None
    if used >= _MOST * risen:
        text = f"malloc has {size(used)} more in use of {size(risen)} that the process has (limit half)"
        if blocks is not None and blocks * _BLOCK_BYTES >= risen:
            small = size(blocks * _SMALL_BLOCK_BYTES)
            text = f"{text}; Python holds {blocks:,.0f} blocks more, some {small} by themselves: see what they refer to"
        return "native_heap", Evidence(text=text, metric=MALLOC_USED)
    if held >= _MOST * risen:
        text = f"malloc holds {size(held)} more and {size(used)} more are in use (limit half): it keeps what is freed, in fragments"
        return "native_heap", Evidence(text=text, metric=MALLOC_HELD)
    if processes != 1:
        return None
    text = f"malloc holds {size(held)} more of {size(risen)} that the process has (limit half)"
    return "anonymous_mappings", Evidence(text=text, metric=MALLOC_HELD)


def _by_maps(found: Found, inside: Inside, settings: LeakSettings) -> tuple[LeakClass, Evidence] | None:
    first, last = inside.first, inside.last
    if first is None or last is None or last.time_s - first.time_s < settings.cell_s:
        return None
    expected = found.standing.slope.value * (last.time_s - first.time_s)
    gains = {kind: last.of(kind) - first.of(kind) for kind in _KIND_WORDS}
    most = max(gains, key=lambda kind: gains[kind])
    if gains[most] < _MOST * max(expected, sum(gain for gain in gains.values() if gain > 0)):
        return None
    text = f"{_KIND_WORDS[most]} grew by {size(gains[most])} of {size(sum(gains.values()))} since it is suspect (limit half)"
    leak_class: LeakClass = "native_heap" if most == "heap" else "anonymous_mappings"
    return leak_class, Evidence(text=text, metric=MAPS)


def _largest_mapping(leak_class: LeakClass, inside: Inside) -> tuple[Evidence, ...]:
    """Of mappings, the size that grew most."""
    if leak_class != "anonymous_mappings" or inside.first is None or inside.last is None:
        return ()
    before = inside.first.held
    gains = {key: held - before.get(key, 0.0) for key, held in inside.last.held.items() if key[0] != "heap"}
    most = max(gains, key=lambda key: gains[key], default=None)
    if most is None or gains[most] <= 0:
        return ()
    text = f"{size(gains[most])} more are in {_KIND_WORDS[most[0]]} of up to {size(float(most[1]))} each"
    return (Evidence(text=text, metric=MAPS),)
