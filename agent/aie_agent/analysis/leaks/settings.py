"""What counts as a leak: thresholds and windows, with the reason for each. One time scale divides every window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal, NamedTuple

MEGABYTE: Final = 1e6
CELLS_PER_BIN: Final = 6
"""Cells (5 min) of a bin (30 min), out of which all blocks are made."""

Level = Literal["none", "suspect", "leak"]


class Tier(NamedTuple):
    """Floors of `blocks` blocks of `bins` bins each must rise, at most `flats` steps between them may stand still. `sudden` tiers
    are short and ask for more than a drift or a warm-up takes; what fills a host's cache of KV blocks does not differ from it."""

    name: str
    bins: int
    blocks: int
    flats: int
    level: Level
    sudden: bool = False


DAYS: Final = Tier("6 floors of 8 h", bins=16, blocks=6, flats=1, level="leak")
SUSPECT: Final = Tier("6 floors of 2 h", bins=4, blocks=6, flats=0, level="suspect")
TIERS: Final = (
    Tier("6 floors of 4 h", bins=8, blocks=6, flats=1, level="leak"),
    DAYS,
    Tier("8 floors of 30 min", bins=1, blocks=8, flats=0, level="suspect", sudden=True),
    SUSPECT,
)
"""The gravest first. A day (6 x 4 h) holds a whole cycle of traffic; blocks of 8 h hold one reset of a sawtooth of 6 h, and a step
of a slow staircase."""

MOST_BINS: Final = max(tier.bins * tier.blocks for tier in TIERS) + 8
"""Bins that a line keeps: what the longest tier needs, and four hours more."""

RECORDED_BINS: Final = 14 * 48
"""Bins that are kept of a recording beside what its lines judge by: two weeks."""

FAST_CELLS: Final = 8
"""Cells of the fast lane, whose noise must be a fraction of what it rises by: 40 minutes."""


@dataclass(frozen=True, slots=True)
class LeakSettings:
    """Thresholds. Times are seconds as they pass: `scaled` divides them.

    `warm_up_s` and `warm_up_requests`: kernels are compiled, pools grow and caches fill with the first requests. It ends after
    both, and after `warm_up_most_s` in any case. `idle_most_s`: an engine that gets no request for so long is as warm as it will
    be. `cell_s`: minima are taken over it first. `limit_bytes_per_s`: slower growth is none (0.5 MB a minute, 720 MB a day): it
    takes weeks to matter, and allocators' own drift is of this size. `horizon_s`: memory that lasts longer than that is no matter
    either, where its size is known. `sudden_bytes`: what is suspected within four hours has taken at least so much, and as much as
    there was before. `full_soon_s`: memory that is full so soon makes a suspicion a warning, and a sudden one a leak."""

    time_scale: float = 1.0
    warm_up_s: float = 1800.0
    warm_up_requests: float = 100.0
    warm_up_most_s: float = 6 * 3600.0
    idle_most_s: float = 2 * 3600.0
    cell_s: float = 300.0
    sample_s: float = 10.0
    limit_bytes_per_s: float = 0.5 * MEGABYTE / 60
    horizon_s: float = 30 * 86_400.0
    sudden_bytes: float = 8e9
    full_soon_s: float = 6 * 3600.0

    @property
    def day_s(self) -> float:
        """A day."""
        return 86_400.0 / self.time_scale

    @property
    def bin_s(self) -> float:
        """Length of a bin."""
        return self.cell_s * CELLS_PER_BIN

    def scaled(self, time_scale: float) -> LeakSettings:
        """For a time that runs `time_scale` times as fast: every window is shorter, and every limit of a rate higher, by as much.
        Raises ValueError for a scale that is not positive."""
        if not time_scale > 0:
            raise ValueError(f"time scale: expected a number above 0, got {time_scale:g}")
        return replace(
            self,
            time_scale=self.time_scale * time_scale,
            warm_up_s=self.warm_up_s / time_scale,
            warm_up_most_s=self.warm_up_most_s / time_scale,
            idle_most_s=self.idle_most_s / time_scale,
            cell_s=self.cell_s / time_scale,
            sample_s=self.sample_s / time_scale,
            limit_bytes_per_s=self.limit_bytes_per_s * time_scale,
            horizon_s=self.horizon_s / time_scale,
            full_soon_s=self.full_soon_s / time_scale,
        )
