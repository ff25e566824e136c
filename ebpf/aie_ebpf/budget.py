"""What probes take from an engine, and which of them must go. Pure: hits, periods and times come from the caller.

The budget is a share of one CPU for each engine, as an average over 60 s. Two rules hold it:

* slow: the sets that are attached took more than the budget over the last 60 s; or all that was ever attached did, and those that
  still are go on above the budget (the last 5 s). The second half keeps a second flood from spending the budget again while the
  first one is remembered, and spares a set that is itself within the budget.
* fast: within the last second the attached sets took more than ten seconds' worth of the budget.

What they leave to a flood of r CPUs (at most the threads that take part), with budget b, p seconds between two `charge`, and d
seconds to detach (0.1 a perf event, 0.05 a link, and four links at once; the flood goes on in it):

* When it begins at once: at most 10 b + r (p + d) seconds before it is gone.
* When 60 b seconds, the whole budget, are spent already: r (p + d) more. So the average is at most b + r (p + d) / 60.
* With k sets 2 b + (k - 1) b / 12 takes the place of b: one is detached, another goes on just below the budget, and each other one
  spends what the budget is for five seconds, at once.

For b = 1 %, r = 1, d = 0.2 and p = 1, a flood out of the blue costs (0.1 + 1.2) / 60 = 2.2 % over the minute. So the caller
looks every LOOK_S while uprobes are attached: then it costs (0.1 + 0.4) / 60 = 0.8 %, within the budget. Events come
off one by one, those of the functions that are called most first (detaching.py): d is theirs, and not the whole set's.

Programs count hits by what they cost: a link tells them which kind of place they are at. An event cannot (kernels before 6.6):
there entries are charged by the mix of those that are attached, as if each were hit as often as the others. Where an instruction
that is stepped over costs far more than one that is emulated (under a hypervisor 30 times as much), a set that has both is then
charged too much where only the cheap ones are called, and too little where only the dear ones are: by the factor of the dear cost
to the mean, at most. A set whose functions are of one kind is charged right.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from aie_ebpf.calibrate import TRACEPOINT, UNKNOWN, UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.messages import Cost
from aie_ebpf.probes import PERF_EVENTS, TRACEPOINTS, UPROBES

WINDOW_S: Final = 60.0
LEAST_KNOWN_S: Final = 5.0
RECENT_S: Final = 5.0
FAST_S: Final = 1.0
FAST_FACTOR: Final = 10.0
LOOK_S: Final = 0.2
"""How often to call `charge` and `judge` while uprobes are attached."""

FIRST_HOLD_S: Final = 600.0
LONGEST_HOLD_S: Final = 4 * 3600.0

_USDT_SETS: Final = ("gc",)


Key = tuple[str, str]
"""An engine and a set."""

Mix = Mapping[str, float]
"""Which share of a set's hits is of which kind; the shares add up to 1."""


class Held(NamedTuple):
    """A set that was detached from an engine for its cost: why, a sentence; until when it stays so, on the caller's clock."""

    reason: str
    until_s: float
    hold_s: float


def mix_of(kinds: Iterable[str]) -> dict[str, float]:
    """The mix of a set whose probes are of these kinds and are hit equally often."""
    all_kinds = list(kinds)
    return {kind: all_kinds.count(kind) / len(all_kinds) for kind in dict.fromkeys(all_kinds)}


def mix_seen(hits: Mapping[str, int], attached: Mix) -> Mix:
    """The mix of hits that were counted by kind. Those of UNKNOWN kind are of entries that cannot be told apart, or of tracepoints:
    `attached` is the mix of all that is attached, of which returns have no part in them."""
    total = sum(hits.values())
    if not total:
        return attached
    mix = {kind: count / total for kind, count in hits.items()}
    unknown = mix.pop(UNKNOWN, 0.0)
    if unknown:
        entries = {kind: share for kind, share in attached.items() if kind != URETPROBE}
        for kind, share in entries.items():
            mix[kind] = mix.get(kind, 0.0) + unknown * share / sum(entries.values())
    return mix


@functools.cache
def usual_mix(set_name: str) -> Mix:
    """The mix of a set by the tables of probes, every row hit equally often. Entries are of the dearer kind, as long as nobody has
    looked at the functions; a USDT probe lies on a nop, which the kernel emulates. Raises KeyError for a set that has no probes."""
    kinds = [TRACEPOINT for row in TRACEPOINTS if row.set == set_name]
    kinds += [TRACEPOINT for event in PERF_EVENTS if event.set == set_name]
    for row in UPROBES:
        if row.set == set_name:
            kinds += [UPROBE] if row.on_return is None else [UPROBE, URETPROBE]
    if set_name in _USDT_SETS:
        kinds.append(UPROBE_EMULATED)
    if not kinds:
        raise KeyError(set_name)
    return mix_of(kinds)


def cost_s(set_name: str, hits: int, cost_ns: Mapping[str, float], mix: Mix | None = None) -> float:
    """Seconds that hits of a set took: hits x the sum over kinds of (share of hits x calibrated nanoseconds). `mix` where more is
    known than the tables say (`calibrate.entry_kind`). Raises KeyError for a set without probes and for an unknown kind."""
    each_ns = sum(share * _of_kind(cost_ns, kind) for kind, share in (usual_mix(set_name) if mix is None else mix).items())
    return hits * each_ns * 1e-9


class Ledger:
    """What each set took from each engine over the last minute, and what had to go for it.

    False alarms: none by chance. Hits are counted, not sampled: a set goes when they were beyond the budget at the calibrated cost,
    and the judgement is as wrong as the calibration and the mix are.
    """

    def __init__(self, budget_ratio: float, cost_ns: Mapping[str, float]) -> None:
        """`budget_ratio` is a share of one CPU; `cost_ns` is by kind, from `calibrate.measure`. Raises ValueError for a budget that
        is not positive."""
        if budget_ratio <= 0:
            raise ValueError(f"a budget of {budget_ratio} is none: leave the probes out instead")
        self.budget_ratio = budget_ratio
        self._cost_ns = dict(cost_ns)
        self._engines: dict[str, _Engine] = {}
        self._held: dict[Key, Held] = {}

    def charge(
        self, hits: Mapping[Key, int], period_s: float, now_s: float, mixes: Mapping[Key, Mix] | None = None
    ) -> tuple[Cost, ...]:
        """Notes hits of the last `period_s`; returns what they took, a row a key. To be called for every period, with 0 hits too:
        silence is part of the average. Hits of a set that is being detached still count, as far as its programs still run: a
        breakpoint outlives them by a moment. Raises KeyError as `cost_s` does."""
        spent_s = {key: self.spend(key, count, period_s, now_s, (mixes or {}).get(key)) for key, count in hits.items()}
        return tuple(
            Cost(engine=engine, set=name, hits=count, seconds=spent_s[engine, name], ratio=self.ratio(engine, name))
            for (engine, name), count in hits.items()
        )

    def spend(self, key: Key, hits: int, period_s: float, now_s: float, mix: Mix | None = None) -> float:
        """As `charge`, of one key: returns the seconds that the hits took."""
        engine, name = key
        spent_s = cost_s(name, hits, self._cost_ns, mix) if hits else 0.0
        known = self._engines.get(engine)
        if known is None:
            known = self._engines[engine] = _Engine(now_s - period_s)
        known.add(name, spent_s, period_s, now_s)
        return spent_s

    def ratio(self, engine: str, set_name: str | None = None) -> float:
        """Average share of one CPU over the last 60 s, or over the time known when that is shorter (but at least 5 s), of a set or
        of all. Raises KeyError when nothing was ever charged."""
        known = self._engines[engine]
        return known.average(known.sets if set_name is None else (set_name,))

    def over(self, engine: str, now_s: float) -> str | None:
        """The set to detach now: the greediest of an engine that is beyond its budget. None: nothing is to be done."""
        known = self._engines.get(engine)
        if known is None:
            return None
        known.now_s = max(known.now_s, now_s)
        attached = [name for name in known.sets if self.held(engine, name, now_s) is None]
        budget = self.budget_ratio
        if known.spent_s(attached, FAST_S) > FAST_FACTOR * budget * FAST_S:
            return max(attached, key=lambda name: known.spent_s((name,), FAST_S))
        goes_on = known.spent_s(attached, RECENT_S) > budget * RECENT_S
        if known.average(attached) > budget or (goes_on and known.average(known.sets) > budget):
            return max(attached, key=lambda name: known.spent_s((name,), WINDOW_S))
        return None

    def detach(self, engine: str, set_name: str, now_s: float) -> Held:
        """Notes that the caller detaches this set now, and says why and for how long: 10 minutes, twice as long each time it comes
        back too greedy, 4 hours at most. Raises KeyError when nothing was ever charged."""
        known = self._engines[engine]
        before = self._held.get((engine, set_name))
        # One that behaved for as long as it was kept away starts anew.
        relapsed = before is not None and now_s - before.until_s < before.hold_s
        hold_s = min(LONGEST_HOLD_S, before.hold_s * 2) if before is not None and relapsed else FIRST_HOLD_S
        reason = f"detached: took {self._in_words(known, set_name)}; tried again after {hold_s / 60:.0f} minutes"
        held = Held(reason, now_s + hold_s, hold_s)
        self._held[engine, set_name] = held
        return held

    def judge(self, engine: str, now_s: float) -> tuple[str, ...] | None:
        """Notes as detached, now, every set that must go from an engine to bring it within its budget: the caller detaches them.
        None: nothing is to be done."""
        gone: list[str] = []
        while (name := self.over(engine, now_s)) is not None:
            self.detach(engine, name, now_s)
            gone.append(name)
        return tuple(gone) or None

    def held(self, engine: str, set_name: str, now_s: float) -> Held | None:
        """Why a set may not be attached to an engine now; None: it may."""
        held = self._held.get((engine, set_name))
        return held if held is not None and now_s < held.until_s else None

    def off(self, engine: str, now_s: float) -> dict[str, str]:
        """The sets that may not be attached to an engine now, each with the sentence that says why."""
        return {name: held.reason for (owner, name), held in self._held.items() if owner == engine and now_s < held.until_s}

    def forget(self, engine: str, now_s: float) -> None:
        """The engine is gone. What was detached from it stays so, for an engine of the same name, as long as it would have."""
        self._engines.pop(engine, None)
        self._held = {key: held for key, held in self._held.items() if now_s < held.until_s + held.hold_s}

    def _in_words(self, known: _Engine, set_name: str) -> str:
        budget = f"budget {self.budget_ratio * 100:.3g} %"
        fast_s = known.spent_s((set_name,), FAST_S)
        if fast_s > FAST_FACTOR * self.budget_ratio * FAST_S:
            return f"{fast_s:.2g} s of CPU within a second, {budget}"
        return f"{known.average((set_name,)) * 100:.2g} % of a CPU over {known.known_s:.0f} s, {budget}"


class _Window:
    """What was spent in the last `horizon_s`: whole nanoseconds, so that the running sum stays exact."""

    def __init__(self, horizon_s: float) -> None:
        self._horizon_s = horizon_s
        self._entries: deque[tuple[float, int]] = deque()
        self._total_ns = 0

    def add(self, spent_ns: int, period_s: float, now_s: float) -> None:
        """Of a period longer than the horizon, the part within it: hits are taken to be spread evenly."""
        within_ns = round(spent_ns * min(1.0, self._horizon_s / period_s)) if period_s > 0 else spent_ns
        self._entries.append((now_s, within_ns))
        self._total_ns += within_ns

    def total_s(self, now_s: float) -> float:
        """What has not aged out. A period that did so in part counts whole."""
        while self._entries and self._entries[0][0] <= now_s - self._horizon_s:
            self._total_ns -= self._entries.popleft()[1]
        return self._total_ns * 1e-9


class _Engine:
    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self.now_s = since_s
        self.sets: dict[str, dict[float, _Window]] = {}

    def add(self, set_name: str, spent_s: float, period_s: float, now_s: float) -> None:
        self.now_s = max(self.now_s, now_s)
        windows = self.sets.get(set_name)
        if windows is None:
            windows = self.sets[set_name] = {horizon_s: _Window(horizon_s) for horizon_s in {WINDOW_S, RECENT_S, FAST_S}}
        spent_ns = round(spent_s * 1e9)
        if spent_ns:
            for window in windows.values():
                window.add(spent_ns, period_s, now_s)

    @property
    def known_s(self) -> float:
        """What an average is taken over."""
        return min(WINDOW_S, max(LEAST_KNOWN_S, self.now_s - self._since_s))

    def average(self, names: Iterable[str]) -> float:
        return self.spent_s(names, WINDOW_S) / self.known_s

    def spent_s(self, names: Iterable[str], horizon_s: float) -> float:
        return sum(self.sets[name][horizon_s].total_s(self.now_s) for name in names)


def _of_kind(cost_ns: Mapping[str, float], kind: str) -> float:
    """Where the host showed only one of the two kinds of entries, the other is taken to cost the same."""
    instead = {UPROBE: UPROBE_EMULATED, UPROBE_EMULATED: UPROBE}.get(kind, kind)
    return cost_ns[kind] if kind in cost_ns else cost_ns[instead]
