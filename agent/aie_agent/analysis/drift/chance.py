"""How often chance gives what a recorded stream shows where nothing changed: over streams, and over the references that might have
been recorded. Pure.

All windows of a stream are compared with one reference and share its error. Of an unlucky one a larger share of windows is beyond
the threshold, for ever: of 500 values 1 in 100,000 has a sixth of them and more, though one in a hundred is the mean. So a number
of windows is no binomial but a mixture of such. How that share is distributed: a window's distance is beyond c with Smirnov's
exp(-2 (c - d)^2) on the one side and exp(-2 (c + d)^2) on the other, of a reference that is d off where it matters, both in units
of the window's own error; d is normal. Its variance would be n / 4m at the median; fitted to what simulated references of 500 to
5000 values do, it is `_WHERE_IT_MATTERS` times that, and c is where the mean is that of the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.drift.rule import ALPHA, CONSECUTIVE, WINDOW

_WHERE_IT_MATTERS: Final = 0.7

_STEP: Final = 0.05
_FARTHEST: Final = 6.0
"""Standard deviations of the reference's error that are summed over, in such steps."""


def windows_beyond(beyond: int, windows: int, m: int, false_alarm: float) -> float:
    """The probability that so many of a stream's windows, or more, are beyond the threshold of a reference of `m` values, of which
    five in a row are beyond it with the probability `false_alarm`. At most twice too much."""
    return math.fsum(weight * _at_least(beyond, windows, share) for weight, share in _shares(m, false_alarm))


def _shares(m: int, false_alarm: float) -> Iterator[tuple[float, float]]:
    """The shares of windows that references have beyond their threshold, by how likely each is. Where the threshold comes of the
    replay, five in a row say how far they are to be raised: values that hang together are beyond it more often."""
    errors = [number * _STEP for number in range(round(_FARTHEST / _STEP) + 1)]
    weights = [math.exp(-error * error / 2.0) * (1.0 if error else 0.5) for error in errors]
    total = math.fsum(weights)
    variance = _WHERE_IT_MATTERS * WINDOW / (4.0 * m)
    wider = 1.0 + 4.0 * variance
    c = math.sqrt(wider * math.log(2.0 / (ALPHA * math.sqrt(wider))) / 2.0)
    offs = [error * math.sqrt(variance) for error in errors]
    shares = [math.exp(-2.0 * (c - off) ** 2) + math.exp(-2.0 * (c + off) ** 2) for off in offs]
    five = math.fsum(weight * share**CONSECUTIVE for weight, share in zip(weights, shares, strict=True)) / total
    raised = max(1.0, false_alarm / five) ** (1.0 / CONSECUTIVE)
    return ((weight / total, min(1.0, raised * share)) for weight, share in zip(weights, shares, strict=True))


def _at_least(successes: int, trials: int, p: float) -> float:
    """The probability of so many successes and more; 1 where no more than the mean are asked for."""
    if successes <= trials * p:
        return 1.0
    log = math.lgamma(trials + 1) - math.lgamma(successes + 1) - math.lgamma(trials - successes + 1)
    term = math.exp(log + successes * math.log(p) + (trials - successes) * math.log1p(-p))
    total = 0.0
    for k in range(successes, trials + 1):  # beyond the mean each term is smaller than the one before
        total += term
        term *= (trials - k) / (k + 1) * p / (1.0 - p)
        if term < 1e-9 * total:
            break
    return total


def beyond_extremes(n: float, k: float, m: float) -> float:
    """The probability that k and more of n values are beyond the extremes of m others; 1 where so few have no extremes. The share
    beyond the extremes of m independent values is Beta(2, m - 1) distributed, whatever the distribution, and their number in n more
    beta-binomial."""
    if m <= 2:
        return 1.0
    norm = math.lgamma(m + 1) - math.lgamma(m - 1) + math.lgamma(n + 1) - math.lgamma(n + m + 1)
    total = 0.0
    while k <= n:
        log = norm + math.log(k + 1) + math.lgamma(n - k + m - 1) - math.lgamma(n - k + 1)
        total += math.exp(log)
        if math.exp(log) < 1e-9 * total:
            break
        k += 1
    return total
