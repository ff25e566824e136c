"""The ledger, held against a plain simulation of sets that are hit at changing rates: the bounds that its docstring states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aie_ebpf import budget
from aie_ebpf.budget import Ledger
from aie_ebpf.calibrate import KINDS, TRACEPOINT, UNKNOWN, UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.probes import SETS

ENGINE: Final = "e"
COST_NS: Final = dict.fromkeys(KINDS, 1000.0)
SETS_USED: Final = ("locks", "sched", "faults")
HIT_S: Final = 1e-6
RATIO: Final = 0.01


class Phase(NamedTuple):
    """For so many seconds, each set would take this share of a CPU."""

    seconds: float
    rates: Mapping[str, float]


class Run(NamedTuple):
    """What a simulation saw: seconds of CPU by the end of each period, all sets together; and what was detached, when."""

    spent: list[tuple[float, float]]
    detached: list[tuple[float, str]]

    def worst_average(self) -> float:
        """The largest average over 60 s that ended with a period."""
        return (
            max(sum(took for at, took in self.spent if end - budget.WINDOW_S < at <= end) for end, _ in self.spent)
            / budget.WINDOW_S
        )


def simulate(phases: Sequence[Phase], period_s: float, detach_s: float) -> Run:
    """A caller that charges every period and detaches what it is told to; a set goes on for `detach_s` after that."""
    ledger = Ledger(RATIO, COST_NS)
    run = Run([], [])
    now_s, ends_s = 0.0, dict[str, float]()
    for phase in phases:
        for _ in range(round(phase.seconds / period_s)):
            hits: dict[tuple[str, str], int] = {}
            for name, rate in phase.rates.items():
                on_s = min(period_s, max(ends_s.get(name, now_s + period_s) - now_s, 0.0))
                hits[ENGINE, name] = int(rate * on_s / HIT_S)
            now_s += period_s
            run.spent.append((now_s, sum(row.seconds for row in ledger.charge(hits, period_s, now_s))))
            for name in ledger.judge(ENGINE, now_s) or ():
                run.detached.append((now_s, name))
                ends_s[name] = now_s + detach_s
            for name in phase.rates:
                if name in ends_s and now_s >= ends_s[name] and ledger.held(ENGINE, name, now_s) is None:
                    del ends_s[name]
    return run


def phases_of(names: Sequence[str], most: float) -> st.SearchStrategy[list[Phase]]:
    rates = st.fixed_dictionaries({name: st.one_of(st.just(0.0), st.floats(0, RATIO), st.floats(0, most)) for name in names})
    return st.lists(st.builds(Phase, st.sampled_from([1.0, 5.0, 20.0, 55.0]), rates), min_size=1, max_size=6)


PERIODS: Final = st.sampled_from([budget.LOOK_S, 1.0])


@given(phases_of(("locks",), 2.0), PERIODS, st.sampled_from([0.0, 0.2]))
def test_one_set_takes_the_budget_and_what_one_period_and_detaching_steal(
    phases: list[Phase], period_s: float, detach_s: float
) -> None:
    run = simulate(phases, period_s, detach_s)
    fastest = max(phase.rates["locks"] for phase in phases)
    # The moment of detaching is rounded up to a period.
    assert run.worst_average() <= RATIO + fastest * (2 * period_s + detach_s) / budget.WINDOW_S + 1e-6


@given(phases_of(SETS_USED, 2.0), PERIODS, st.sampled_from([0.0, 0.2]))
def test_several_sets_take_twice_the_budget_at_most(phases: list[Phase], period_s: float, detach_s: float) -> None:
    run = simulate(phases, period_s, detach_s)
    fastest = sum(max(phase.rates[name] for phase in phases) for name in SETS_USED)
    several = 2 * RATIO + (len(SETS_USED) - 1) * RATIO * budget.RECENT_S / budget.WINDOW_S
    assert run.worst_average() <= several + fastest * (2 * period_s + detach_s) / budget.WINDOW_S + 1e-6


@given(phases_of(SETS_USED, 0.0).map(lambda phases: [_scaled(phase) for phase in phases]), PERIODS)
def test_nothing_is_detached_below_the_budget(phases: list[Phase], period_s: float) -> None:
    assert simulate(phases, period_s, 0.0).detached == []


def _scaled(phase: Phase) -> Phase:
    """Such that all sets together stay just below the budget, and use it."""
    total = sum(phase.rates.values()) or 1.0
    return Phase(phase.seconds, {name: rate / total * RATIO * 0.95 for name, rate in phase.rates.items()})


@pytest.mark.parametrize("flood", [0.2, 1.0, 8.0])
def test_a_sudden_flood_goes_at_the_first_look(flood: float) -> None:
    run = simulate([Phase(70, {"locks": 0.0}), Phase(5, {"locks": flood})], budget.LOOK_S, 0.0)
    looks = -(-budget.FAST_FACTOR * RATIO // (flood * budget.LOOK_S))  # the first look at which ten budgets are reached
    (at_s, name), *rest = run.detached
    assert (name, rest) == ("locks", [])
    assert 70 < at_s <= 70 + (looks + 1) * budget.LOOK_S


def test_a_slow_excess_goes_when_the_minute_is_spent() -> None:
    run = simulate([Phase(120, {"locks": 0.005}), Phase(120, {"locks": 0.03})], 1.0, 0.0)
    (at_s, _), *rest = run.detached
    # 0.3 s were spent of 0.6, and each second replaces 0.005 by 0.03.
    assert at_s == pytest.approx(120 + (0.6 - 0.3) / (0.03 - 0.005), abs=1.5)
    assert rest == []


def test_who_keeps_within_the_budget_is_spared_when_another_goes() -> None:
    run = simulate([Phase(200, {"locks": 0.005, "sched": 0.004}), Phase(120, {"locks": 0.005, "sched": 0.5})], 1.0, 0.2)
    assert [name for _, name in run.detached] == ["sched"]


def test_a_second_flood_is_not_given_the_budget_again() -> None:
    flood = 0.05
    quiet, first, second = ({"locks": 0.0, "sched": 0.0}, {"locks": flood, "sched": 0.0}, {"locks": 0.0, "sched": flood})
    run = simulate([Phase(60, quiet), Phase(15, first), Phase(30, second)], 1.0, 0.0)
    assert [name for _, name in run.detached] == ["locks", "sched"]
    first_s, second_s = (at_s for at_s, _ in run.detached)
    assert first_s - 60 == pytest.approx(budget.WINDOW_S * RATIO / flood, abs=1.5), "it had the minute's budget"
    assert second_s - 75 == pytest.approx(budget.RECENT_S * RATIO / flood, abs=1.5), "it has that of five seconds"


def test_it_comes_back_and_stays_away_longer_each_time_it_relapses() -> None:
    ledger = Ledger(RATIO, COST_NS)
    now_s, holds = 0.0, []
    for _ in range(7):
        ledger.charge({(ENGINE, "locks"): int(0.5 / HIT_S)}, 1.0, now_s)
        assert ledger.judge(ENGINE, now_s) == ("locks",)
        held = ledger.held(ENGINE, "locks", now_s)
        assert held is not None
        assert ledger.off(ENGINE, now_s) == {"locks": held.reason}
        assert ledger.judge(ENGINE, now_s) is None, "it is detached already"
        assert ledger.held(ENGINE, "locks", held.until_s) is None
        holds.append(held.hold_s)
        now_s = held.until_s + 1
    assert holds == [600, 1200, 2400, 4800, 9600, 14400, 14400]
    now_s += holds[-1]
    ledger.charge({(ENGINE, "locks"): int(0.5 / HIT_S)}, 1.0, now_s)
    ledger.judge(ENGINE, now_s)
    after = ledger.held(ENGINE, "locks", now_s)
    assert after is not None
    assert after.hold_s == 600, "it behaved for as long as it had been kept away"


def test_the_reason_is_a_sentence_with_numbers() -> None:
    ledger = Ledger(RATIO, COST_NS)
    for second in range(1, 61):
        ledger.charge({(ENGINE, "locks"): 31_000, (ENGINE, "sched"): 0}, 1.0, float(second))
    assert ledger.detach(ENGINE, "locks", 60.0).reason == (
        "detached: took 3.1 % of a CPU over 60 s, budget 1 %; tried again after 10 minutes"
    )
    ledger.charge({(ENGINE, "sched"): 870_000}, 1.0, 61.0)
    assert ledger.detach(ENGINE, "sched", 61.0).reason == (
        "detached: took 0.87 s of CPU within a second, budget 1 %; tried again after 10 minutes"
    )


def test_averages_are_over_what_is_known() -> None:
    ledger = Ledger(RATIO, COST_NS)
    (row,) = ledger.charge({(ENGINE, "locks"): 20_000}, 1.0, 1.0)
    assert (row.engine, row.set, row.hits) == (ENGINE, "locks", 20_000)
    assert row.seconds == pytest.approx(0.02)
    assert row.ratio == pytest.approx(0.02 / budget.LEAST_KNOWN_S)
    ledger.charge({(ENGINE, "sched"): 10_000}, 1.0, 10.0)
    assert ledger.ratio(ENGINE) == pytest.approx(0.03 / 10)
    assert ledger.ratio(ENGINE, "sched") == pytest.approx(0.01 / 10)
    ledger.charge({(ENGINE, "locks"): 0}, 1.0, 65.0)
    assert ledger.ratio(ENGINE) == pytest.approx(0.01 / 60), "the first second is out of the window"


def test_engines_are_apart_and_go() -> None:
    ledger = Ledger(RATIO, COST_NS)
    ledger.charge({("a", "locks"): int(0.5 / HIT_S), ("b", "locks"): 10}, 1.0, 1.0)
    assert ledger.judge("b", 1.0) is None
    assert ledger.judge("a", 1.0) == ("locks",)
    assert ledger.judge("nobody", 1.0) is None
    ledger.forget("a", 2.0)
    assert set(ledger.off("a", 2.0)) == {"locks"}, "a restarted engine is no reason to try again"
    with pytest.raises(KeyError):
        ledger.ratio("a")
    ledger.forget("a", 2.0 + 2 * budget.FIRST_HOLD_S)
    ledger.charge({("a", "locks"): int(0.5 / HIT_S)}, 1.0, 5000.0)
    assert ledger.detach("a", "locks", 5000.0).hold_s == budget.FIRST_HOLD_S


def test_hits_cost_by_their_mix() -> None:
    cost_ns = {UPROBE: 20_000.0, UPROBE_EMULATED: 700.0, URETPROBE: 500.0, TRACEPOINT: 200.0}
    assert budget.mix_of([UPROBE, URETPROBE, URETPROBE, URETPROBE]) == {UPROBE: 0.25, URETPROBE: 0.75}
    assert budget.cost_s("locks", 10, cost_ns) == pytest.approx(10 * 200e-9)
    mix = {UPROBE_EMULATED: 0.5, URETPROBE: 0.5}
    assert budget.cost_s("locks", 10, cost_ns, mix) == pytest.approx(10 * 600e-9)
    del cost_ns[UPROBE_EMULATED]
    assert budget.cost_s("locks", 10, cost_ns, mix) == pytest.approx(10 * 10_250e-9), "the host showed the other kind only"
    with pytest.raises(KeyError):
        budget.cost_s("locks", 1, cost_ns, {"kprobe": 1.0})


def test_the_mix_of_hits_that_were_counted_by_kind() -> None:
    attached = budget.mix_of([UPROBE, UPROBE, UPROBE_EMULATED, URETPROBE])
    assert budget.mix_seen({}, attached) == attached
    assert budget.mix_seen({UPROBE: 1, URETPROBE: 3}, attached) == {UPROBE: 0.25, URETPROBE: 0.75}
    # What is not told apart is of entries: two in three of them are dear.
    seen = budget.mix_seen({UNKNOWN: 30, URETPROBE: 30}, attached)
    assert seen == pytest.approx({UPROBE: 1 / 3, UPROBE_EMULATED: 1 / 6, URETPROBE: 1 / 2})
    both = budget.mix_seen({UNKNOWN: 30, UPROBE: 10, URETPROBE: 60}, attached)
    assert both == pytest.approx({UPROBE: 0.3, UPROBE_EMULATED: 0.1, URETPROBE: 0.6})
    assert budget.mix_seen({UNKNOWN: 7}, budget.usual_mix("locks")) == {TRACEPOINT: 1.0}


@pytest.mark.parametrize("name", [each.name for each in SETS])
def test_every_set_has_a_mix(name: str) -> None:
    mix = budget.usual_mix(name)
    assert sum(mix.values()) == pytest.approx(1)
    assert set(mix) <= set(KINDS)


def test_no_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="leave the probes out"):
        Ledger(0.0, COST_NS)


def test_shares_of_sets_are_those_of_the_engine() -> None:
    ledger = Ledger(RATIO, COST_NS)
    total: dict[str, float] = defaultdict(float)
    for second in range(1, 100):
        for row in ledger.charge({(ENGINE, "locks"): second * 10, (ENGINE, "sched"): 500}, 1.0, float(second)):
            total[row.set] = row.ratio
    assert ledger.ratio(ENGINE) == pytest.approx(sum(total.values()))
