"""Two engines of one host that announce themselves by one name: whose samples a packet holds is told by its sender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from aie_agent.samples import Tags
from aie_telemetry.statsd import Sample

_MAX_REMEMBERED: Final = 4096
_DELIVERIES: Final = 64
"""Every sender is looked at anew after so many calls of `know`: some ten seconds."""


class Namesakes:
    """Renames what the second engine of a name sends, or passes it over as long as it has no name of its own. `root_of(tgid)` is
    the process that was started as the engine that a sender belongs to; who has none is taken at its word.

    `of` is called by the thread that receives, the rest by others: what it reads is replaced as a whole.
    """

    def __init__(self, root_of: Callable[[int], int | None]) -> None:
        self._root_of = root_of
        self._holders: Mapping[str, int] = {}
        self._own: Mapping[tuple[str, int], str] = {}
        self._deliveries = 0
        self._firsts: dict[str, int] = {}
        self._roots: dict[int, int | None] = {}
        self._tags: dict[tuple[int, Tags], Tags | None] = {}

    def know(self, holders: Mapping[str, int], own: Mapping[tuple[str, int], str]) -> None:
        """`holders` are the roots of the engines that have a name, `own` the other name of an engine by the one that it announces
        and its root."""
        changed = (holders, own) != (self._holders, self._own)
        self._deliveries += 1
        if changed or self._deliveries >= _DELIVERIES:  # a number may be another process by now
            self._holders, self._own, self._deliveries = dict(holders), dict(own), 0
            self._firsts, self._roots, self._tags = {}, {}, {}

    def engine(self, name: str, tgid: int) -> str | None:
        """The engine that a sender means by `name`; None while that is another one's, and it has no other yet."""
        roots = self._roots
        if tgid not in roots:
            if len(roots) >= _MAX_REMEMBERED:
                roots.clear()
            roots[tgid] = self._root_of(tgid)
        root = roots[tgid]
        if root is None:
            return name
        own = self._own.get((name, root))
        if own is not None:
            return own
        holder = self._holders.get(name)
        if holder is None:  # nobody was told yet: the first that is heard
            holder = self._firsts.setdefault(name, root) if len(self._firsts) < _MAX_REMEMBERED else root
        return name if holder == root else None

    def sample(self, sample: Sample, tgid: int) -> Sample | None:
        """The sample as its own engine's, or None to pass it over."""
        known = self._tags
        key = (tgid, sample.tags)
        if key not in known:
            if len(known) >= _MAX_REMEMBERED:
                known.clear()
            known[key] = self._renamed(sample.tags, tgid)
        tags = known[key]
        if tags is None or tags is sample.tags or tags == sample.tags:
            return None if tags is None else sample
        return msgspec.structs.replace(sample, tags=tags)

    def _renamed(self, tags: Tags, tgid: int) -> Tags | None:
        name = dict(tags).get("engine")
        own = None if name is None else self.engine(name, tgid)
        if name is None or own == name:
            return tags
        return None if own is None else tuple((key, own if key == "engine" else value) for key, value in tags)
