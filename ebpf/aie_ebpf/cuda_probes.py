"""Which functions of CUDA's driver API are probed, as data: one row a function, its variants by suffix beside it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Uprobe(NamedTuple):
    """A program at a function's entry, and one at its return where the result matters (each costs a trap).

    `library` is the beginning of the file's name. `symbols` are the exported names of the same call: the base and its per-thread
    default stream variants (`_ptsz`, `_ptds`); names that share an address are probed once. `since` is the CUDA version that
    brought it; a library without it is older, which is no fault.
    """

    set: str
    library: str
    symbols: tuple[str, ...]
    entry: str
    on_return: str | None
    signature: str
    since: str
    optional: bool = False


CUDA_UPROBES: Final[tuple[Uprobe, ...]] = ()
