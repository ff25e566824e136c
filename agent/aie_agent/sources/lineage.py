"""Which known engine a process belongs to, by its parents alone: asked on the spot, between two scans and before it listens."""

from __future__ import annotations

from typing import Final

from aie_agent.sources.known_engines import engine_of, is_title
from aie_agent.sources.procfs import Procfs

_MAX_DEPTH: Final = 32
_ARGV_BYTES: Final = 16384


class Lineage:
    """Reads /proc, and remembers nothing: may be asked from any thread."""

    def __init__(self, procfs: Procfs) -> None:
        self._procfs = procfs

    def root(self, tgid: int) -> int | None:
        """The process that was started as the engine that `tgid` is part of: itself or the furthest of its parents that is such an
        engine of one kind. None where there is none, or it cannot be seen."""
        root, kind = None, None
        for _ in range(_MAX_DEPTH):
            try:
                line = self._procfs.read(f"{tgid}/cmdline") or b""
                stat = self._procfs.stat(tgid)
            except (OSError, ValueError):  # hidden from us, as if it were not there
                break
            argv = tuple(line[:_ARGV_BYTES].rstrip(b"\0").decode("utf-8", "replace").split("\0"))
            known = engine_of(argv)
            if known is not None and kind not in (None, known):
                break
            if known is not None:
                kind = known
                root = tgid if not is_title(argv, known) else root
            if stat is None or stat.parent_tgid <= 1:
                break
            tgid = stat.parent_tgid
        return root
