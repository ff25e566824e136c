"""What an engine's page says of its progress beyond the metrics of the store: of each replica, of steps that have no metric, of
being paused. Internal to the agent: only the search for engines that hang (`analysis.hung`) asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

RUNNING: Final = "aie_engine_requests_running"
TOKENS: Final = "aie_engine_generation_tokens_total"

SIGNS: Final = (
    TOKENS,
    "aie_engine_prompt_tokens_total",
    "aie_engine_step_seconds",
    "aie_engine_step_tokens",
    "aie_engine_step_batch_size",
    "aie_engine_inter_token_seconds",
    "aie_engine_kv_usage_ratio",
    "aie_engine_kv_used_tokens",
    "aie_engine_kv_written_tokens",
    "aie_engine_last_token_timestamp_seconds",
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_queue_seconds",
)
"""Metrics that only an engine that computes can move, the most telling first."""


class Stale(NamedTuple):
    """Of a page that shows requests running when none does any more: on pages with one of `families` it ends within `for_s`, on
    others nobody knows when."""

    for_s: float
    families: frozenset[str]


STALE: Final[Mapping[str, Stale]] = {
    # The scheduler's gauges are written with its log lines: the last one before it falls idle has the requests that end in that
    # step, and stays for 30 s (sglang#26495; mended by #31517). One that sleeps while idle wakes once a second. Versions older than
    # these families may never write them while idle.
    "sglang": Stale(35.0, frozenset({"sglang:num_grammar_queue_reqs", "sglang:realtime_tokens_total"})),
}
"""By the kind of engine (`aie_engine_info`)."""

Numbers = Mapping[Any, float]
"""By whatever tells them apart: they are only ever compared with those of the page before."""

_NONE: Final[Mapping[Any, Any]] = MappingProxyType({})


class ReplicaSigns(NamedTuple):
    """One replica on one page: requests in it, the tokens that it generated, and all numbers of it that show life. `is_stepwise` is
    whether one of them moves with every step."""

    running: float
    tokens: float
    numbers: Numbers
    is_stepwise: bool


class PageSigns(NamedTuple):
    """What one page says. `stepwise` are the metrics that move with every step of the model loop, None for all of them; `beats` are
    numbers that do and are no metric; `replicas` are by name, those only that the page tells apart; `stale_s` is for how long it
    may show requests running when none does any more, infinite where nobody knows."""

    stepwise: frozenset[str] | None = None
    beats: Numbers = _NONE
    is_paused: bool = False
    replicas: Mapping[str, ReplicaSigns] = _NONE
    stale_s: float = 0.0


class ReplicaState(NamedTuple):
    """One replica over time: since when requests run in it, when something of it moved last (or it was first seen), and the longest
    time between two looks since the later of the two."""

    name: str
    running: float
    tokens: float
    busy_since_s: float
    moved_s: float
    apart_s: float
    is_stepwise: bool


class Progress(NamedTuple):
    """What the pages until `time_s` say: `beat_s` is when a beat moved last (or was first seen), None without any; `paused_s` when
    the page said last that the engine is paused. The rest as in `PageSigns`."""

    time_s: float
    stepwise: frozenset[str] | None = None
    beat_s: float | None = None
    paused_s: float | None = None
    replicas: tuple[ReplicaState, ...] = ()
    stale_s: float = 0.0


class PageWatch:
    """Follows one page."""

    def __init__(self) -> None:
        self._before: PageSigns | None = None
        self._progress: Progress | None = None

    def update(self, now_s: float, signs: PageSigns) -> Progress:
        """Takes the page of `now_s`, which must not go back. A number that falls, appears or goes has moved."""
        before, last = self._before, self._progress
        states = {state.name: state for state in last.replicas} if last is not None else {}
        old = before.replicas if before is not None else {}
        waited_s = now_s - last.time_s if last is not None else 0.0
        self._progress = Progress(
            now_s,
            signs.stepwise,
            _beat_s(now_s, signs.beats, before, last),
            now_s if signs.is_paused else last.paused_s if last is not None else None,
            tuple(
                _followed(name, now_s, waited_s, now, old.get(name), states.get(name))
                for name, now in sorted(signs.replicas.items())
            ),
            signs.stale_s,
        )
        self._before = signs
        return self._progress


def _beat_s(now_s: float, beats: Numbers, before: PageSigns | None, last: Progress | None) -> float | None:
    if not beats:
        return None
    stands = before is not None and before.beats == beats and last is not None
    return last.beat_s if stands and last is not None else now_s


def _followed(
    name: str, now_s: float, waited_s: float, now: ReplicaSigns, before: ReplicaSigns | None, state: ReplicaState | None
) -> ReplicaState:
    has_moved = state is None or before is None or before.numbers != now.numbers
    was_busy = state is not None and state.running > 0
    moved_s = now_s if state is None or has_moved else state.moved_s
    busy_since_s = state.busy_since_s if state is not None and was_busy else now_s
    is_new = state is None or has_moved or not was_busy
    apart_s = 0.0 if state is None or is_new else max(state.apart_s, waited_s)
    return ReplicaState(name, now.running, now.tokens, busy_since_s, moved_s, apart_s, now.is_stepwise)
