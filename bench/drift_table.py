"""How often the rules of drift raise a false alarm, how soon they find a shift, and what they cost: by simulation, as tables.

    make bench-drift          one to two minutes of CPU time; every figure of docs/drift.md that is not of a real model

Fails where the rule raises more false alarms than it was calibrated to, for a day or, as it is shipped, for 30, finds a shift of
half a standard deviation later than in 900 requests, costs more than drift_cost.py allows, or where a canary raises more false
alarms than stands in canary.py.
What a request costs, beside scipy's `ks_2samp` and river's KSWIN, is measured first (drift_cost.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from scipy.signal import lfilter
from scipy.stats import chi2, norm

from aie_agent.analysis.drift.bounds import bounds_of
from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.calibrate import waiting_time
from aie_agent.analysis.drift.canary import CONSECUTIVE_RUNS, LEARNT, MARGIN, CanaryWatch
from aie_agent.analysis.drift.canary_learning import LATER
from aie_agent.analysis.drift.critical import critical_integer
from aie_agent.analysis.drift.reference import About, Aim, Reference
from aie_agent.analysis.drift.rule import ALPHA, CONSECUTIVE, WINDOW
from drift_cost import cost

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

KNOWN: Final = 0
"""The size of a reference that is the distribution itself."""

_KNOWN_CRITICAL: Final = 0.1608  # of p < 0.01, n = 100, one sample: Kolmogorov's exact distribution
_CHUNK: Final = 200_000


def stream(rng: np.random.Generator, count: int, rho: float = 0.0) -> Floats:
    """Standard normal values; each depends on the one before by `rho`."""
    noise = rng.normal(size=count) * np.sqrt(1 - rho * rho)
    noise[0] /= np.sqrt(1 - rho * rho)
    values: Floats = lfilter([1], [1, -rho], noise)
    return values


def distances(reference: Floats, windows: Floats) -> Floats:
    """D of each row of windows; an empty reference stands for the standard normal distribution."""
    found = []
    for start in range(0, len(windows), _CHUNK):
        rows = np.sort(windows[start : start + _CHUNK], axis=1)
        n = rows.shape[1]
        index = np.arange(n) / n
        if len(reference):
            low, high = (
                np.searchsorted(reference, rows) / len(reference),
                np.searchsorted(reference, rows, "right") / len(reference),
            )
        else:
            low = high = norm.cdf(rows)
        found.append(np.maximum((low - index).max(axis=1), (index + 1 / n - high).max(axis=1)))
    return np.concatenate(found)


def critical(m: int) -> float:
    """The distance of p < 0.01."""
    return _KNOWN_CRITICAL if m == KNOWN else critical_integer(m, WINDOW, ALPHA) / (m * WINDOW)


def reference(rng: np.random.Generator, m: int) -> Floats:
    """A reference of `m` independent values."""
    return np.sort(rng.normal(size=m))


def beyond(rng: np.random.Generator, m: int, values: Floats, stride: int) -> Flags:
    """Whether each window is beyond the threshold, one every `stride` values."""
    windows = sliding_window_view(values, WINDOW)[::stride]
    return distances(reference(rng, m), windows) >= critical(m) - 1e-12


def alarms(flags: Flags, k: int, stride: int) -> int:
    """Alarms of `k` in a row; after each the window is filled anew."""
    count = run = at = 0
    rest = -(-WINDOW // stride)
    flagged = flags.tolist()
    while at < len(flagged):
        run = run + 1 if flagged[at] else 0
        if run == k:
            count, run, at = count + 1, 0, at + rest
        else:
            at += 1
    return count


def run_length(seed: int, m: int, stride: int, k: int, requests: int, rho: float = 0.0, references: int = 1) -> str:
    """Mean requests between false alarms, with how many there were."""
    rng = np.random.default_rng(seed)
    each = requests // references
    count = sum(alarms(beyond(rng, m, stream(rng, each, rho), stride), k, stride) for _ in range(references))
    return f"{requests / count:,.0f} ({count})" if count else f"none in {requests:,}"


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """In Markdown."""
    print(f"\n### {title}\n\n| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


def overlapping() -> None:
    """What windows that overlap do to five in a row."""
    cases = [(1, 1, 400_000, "1,480"), (1, 5, 800_000, "2,620"), (10, 5, 4_000_000, "26.6k"), (25, 5, 20_000_000, "1.65M")]
    rows = []
    for stride, k, requests, told in cases:
        known = run_length(1, KNOWN, stride, k, requests)
        finite = run_length(2, 1000, stride, k, requests, references=20)
        rows.append([str(stride), str(k), known, told, finite])
    header = ["a window every", "in a row", "known distribution (alarms)", "reference notes", "m = 1000 (alarms)"]
    print_table("Requests between false alarms, independent values, p < 0.01", header, rows)


def disjoint() -> None:
    """The probability of five disjoint windows, given the reference's own error."""
    rows = []
    for m, references, told in ((500, 60, "6.0e-8"), (1000, 60, "5.1e-10"), (10_000, 40, "1.07e-10")):
        rng = np.random.default_rng(3)
        shares = np.array([beyond(rng, m, stream(rng, 1_000_000), WINDOW).mean() for _ in range(references)])
        rows.append([f"{m:,}", f"{shares.mean():.4f}", f"{np.mean(shares**CONSECUTIVE):.1e}", told])
    print_table("Five disjoint windows beyond p < 0.01", ["m", "one window", "five in a row", "reference notes"], rows)


def dependent() -> None:
    """What dependence does, and what calibration does about it."""
    rows = []
    failures = 0
    for rho, told in ((0.0, "0.010; 2,620"), (0.3, "0.044; 711"), (0.5, "0.10; 365"), (0.7, "0.23; 198"), (0.9, "-")):
        rng = np.random.default_rng(4)
        single = beyond(rng, KNOWN, stream(rng, 2_000_000, rho), WINDOW).mean()
        made = build({"x": stream(rng, 10_000, rho).tolist()}, About(model="m"), Aim(days=1))
        column = made.header.columns[0]
        values = stream(rng, 8_000_000, rho)
        found = distances(np.array(made.values["x"]), values.reshape(-1, WINDOW))
        count = alarms(found >= column.threshold - 1e-12, CONSECUTIVE, WINDOW)
        raw = alarms(found >= column.critical_p01 / (column.m * WINDOW) - 1e-12, CONSECUTIVE, WINDOW)
        failures += count > 2 * len(values) / made.header.aim.requests
        rows.append(
            [
                f"{rho:g}",
                f"{single:.3f}",
                run_length(5, KNOWN, 1, 5, 400_000, rho),
                told,
                f"{len(values) / raw:,.0f}" if raw else f"none in {len(values):,}",
                f"{column.critical / column.critical_p01:.2f}",
                f"{len(values) / count:,.0f}" if count else f"none in {len(values):,}",
            ]
        )
    header = [
        "rho",
        "one disjoint window",
        "every request, 5",
        "reference notes",
        "disjoint, p < 0.01",
        "threshold, calibrated",
        "disjoint, calibrated",
    ]
    print_table("Values that depend on each other: requests between false alarms, calibrated to 86,400 (m = 10,000)", header, rows)
    if failures:
        sys.exit("more false alarms than calibrated to")


_SHIPPED_REFERENCES: Final = 4
_SHIPPED_STREAM: Final = 6_480_000


def shipped() -> None:
    """The calibration as it is shipped, of traffic that depends on itself: false alarms, and how soon shifts are found."""
    rows = []
    for rho in (0.0, 0.3, 0.5, 0.7, 0.9):
        rng = np.random.default_rng(10)
        made = [build({"x": stream(rng, 10_000, rho).tolist()}, About(model="m")) for _ in range(_SHIPPED_REFERENCES)]
        count, aim = sum(_found(rng, each, rho, 0.0, _SHIPPED_STREAM) for each in made), made[0].header.aim.requests
        requests = _SHIPPED_STREAM * len(made)
        low, high = interval(count, requests)
        if high < aim:
            sys.exit(f"at rho {rho:g} a false alarm comes in {low:,.0f} to {high:,.0f} requests, {aim:,.0f} are promised")
        columns = [each.header.columns[0] for each in made]
        delays = [_delay(rng, made, rho, shift) for shift in (0.3, 0.5, 1.0)]
        thresholds = [column.threshold for column in columns]
        compared = sum(not column.untested for column in columns)
        between = f"{requests / count:,.0f} ({low:,.0f} to {high:,.0f})" if count else f"none in {requests:,} (above {low:,.0f})"
        whole = f"{compared} of {len(made)}"
        rows.append([f"{rho:g}", f"{min(thresholds):.2f} to {max(thresholds):.2f}", whole, between, *delays])
    title = f"As shipped, one false alarm in {aim:,.0f} requests (30 days at 1 a second), m = 10,000: false alarms and delays"
    header = ["rho", "threshold", "compared", "requests between false alarms (95 %)", "+0.3 sd", "+0.5 sd", "+1 sd"]
    print_table(title, header, rows)


def interval(count: int, requests: int) -> tuple[float, float]:
    """Between which the mean number of requests between alarms lies, to 95 %, where `count` came (Poisson, exact); without any the
    lower end, one-sided."""
    if not count:
        return requests / -float(np.log(0.05)), float("inf")
    return requests / float(chi2.ppf(0.975, 2 * count + 2) / 2), requests / float(chi2.ppf(0.025, 2 * count) / 2)


def _found(rng: np.random.Generator, made: Reference, rho: float, shift: float, requests: int) -> int:
    found = distances(np.array(made.values["x"]), (stream(rng, requests, rho) + shift).reshape(-1, WINDOW))
    return alarms(found >= made.header.columns[0].threshold - 1e-12, CONSECUTIVE, WINDOW)


def _delay(rng: np.random.Generator, made: Sequence[Reference], rho: float, shift: float) -> str:
    """Requests until a shift is found, on average, found again and again."""
    requests = 500_000
    count = sum(_found(rng, each, rho, shift, requests) for each in made)
    return f"{requests * len(made) / count:,.0f}" if count else f"not in {requests * len(made):,}"


CHANGES: Final[tuple[tuple[str, Callable[[Floats], Floats], str], ...]] = (
    ("mean +0.3 sd", lambda x: x + 0.3, "6,824; 754"),
    ("mean +0.5 sd", lambda x: x + 0.5, "580; 192"),
    ("mean +1 sd", lambda x: x + 1.0, "500; 145"),
    ("sd x1.5", lambda x: x * 1.5, "31k; 1,232"),
    ("sd x2", lambda x: x * 2.0, "588; 193"),
    ("sd x0.5", lambda x: x * 0.5, "523; 194"),
)


def delays() -> None:
    """Requests until a change is found."""
    rng = np.random.default_rng(6)
    made = build({"x": rng.normal(size=1000).tolist()}, About(model="m"))
    column, ordered = made.header.columns[0], np.array(made.values["x"])
    bounds = bounds_of(column, made.values["x"])
    rows = []
    for name, change, told in CHANGES:
        changed = change(rng.normal(size=(20_000, WINDOW)))
        share = float((distances(ordered, changed) >= column.threshold - 1e-12).mean())
        outside = float((((changed < bounds.low) | (changed > bounds.high)).sum(axis=1) >= bounds.too_many).mean())
        rows.append([name, _requests(share), _requests(outside), _stride_delay(rng, ordered, change, column.threshold), told])
        if name == "mean +0.5 sd" and not WINDOW * (waiting_time(share) or 1e9) <= 900:
            sys.exit("half a standard deviation is found too late")
    header = [
        "change",
        "shipped rule: KS",
        "shipped rule: out of range",
        "every 25 requests, 5 (information)",
        "reference notes (m = inf)",
    ]
    print_table("Requests until a change is found, on average (m = 1000, calibrated as shipped)", header, rows)


def _requests(share: float) -> str:
    windows = waiting_time(share)
    return "not in a million" if windows is None or windows * WINDOW > 1e6 else f"{windows * WINDOW:,.0f}"


def _stride_delay(rng: np.random.Generator, ordered: Floats, change: Callable[[Floats], Floats], threshold: float) -> str:
    longest = 6000
    found = []
    for _ in range(100):
        values = np.concatenate([rng.normal(size=WINDOW), change(rng.normal(size=longest))])
        flags = distances(ordered, sliding_window_view(values, WINDOW)[::25]) >= threshold - 1e-12
        runs = sliding_window_view(flags, CONSECUTIVE).all(axis=1)
        found.append((int(runs.argmax()) + CONSECUTIVE - 1) * 25 if runs.any() else None)
    hits = [each for each in found if each is not None]
    return f"{np.mean(hits):,.0f}" if len(hits) == len(found) else f"{len(hits)} % in {longest:,}"


NOISES: Final[tuple[tuple[str, Callable[[np.random.Generator, tuple[int, ...]], Floats], float], ...]] = (
    ("normal", lambda rng, shape: rng.normal(size=shape), 1e9),
    ("Laplace", lambda rng, shape: rng.laplace(size=shape), 5e6),
    ("Student's t, 3 degrees", lambda rng, shape: rng.standard_t(3, size=shape), 3e6),
)
"""Of a canary's runs, with how many runs there are between two false alarms, at least."""


def canaries() -> None:
    """How often three runs in a row are further from the level than the learnt ones allow, where nothing changed but noise. What a
    single run does is known to one in millions, so that three are computed, not counted: the mean, over what was learnt, of p^3."""
    rows = []
    for name, draw, promised in NOISES:
        rng = np.random.default_rng(8)
        noise = np.sort(draw(rng, (4_000_000,)))
        learnt = draw(rng, (100_000, LEARNT))
        level = np.median(learnt, axis=1)
        limit = MARGIN * np.abs(learnt - level[:, None]).max(axis=1)
        within = np.searchsorted(noise, level + limit, "right") - np.searchsorted(noise, level - limit)
        beyond = 1.0 - within / len(noise)
        runs = 1.0 / float(np.mean(beyond**CONSECUTIVE_RUNS))
        rows.append([name, f"{beyond.mean():.1e}", f"{runs:.1e}", f"{runs / 525_600:,.0f}"])
        if runs < promised:
            sys.exit(f"a canary with {name} noise raises a false alarm in {runs:.1e} runs, {promised:.1e} are promised")
    header = ["noise of a canary's runs", "one run beyond the limit", "runs between false alarms", "years, at one a minute"]
    print_table(f"Canaries: a level of {LEARNT} runs, {CONSECUTIVE_RUNS} in a row", header, rows)


_TURNS: Final = ("two values by turns (15 %)", lambda rng, shape: (rng.random(shape) < 0.15).astype(float), 0.0)


def learning() -> None:
    """How often a canary's learning begins anew where nothing changed but noise, far beyond its floor and independent."""
    rows = []
    for name, draw, _ in (*NOISES, _TURNS):
        rng = np.random.default_rng(9)
        wrong = 0
        for runs in draw(rng, (4000, LEARNT + LATER)).tolist():
            watch = CanaryWatch(0.0, 0.02)
            for run in runs:
                watch.take(run, 0.0)
            wrong += bool(watch.anew)
        rows.append([name, f"{wrong / 4000:.2%}"])
        if wrong > 400:
            sys.exit(f"of 4000 canaries with {name} noise {wrong} are learnt anew, where nothing changed")
    print_table(f"Canaries: learning that begins anew wrongly, of {LEARNT} runs", ["noise of a canary's runs", "share"], rows)


if __name__ == "__main__":
    for part in (cost, canaries, learning, overlapping, disjoint, dependent, shipped, delays):
        part()
