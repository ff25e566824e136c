"""Single numbers of requests, in the order in which they came, for the analysis that needs more than a histogram: drift.

StatsD's thread only appends them to a list beside the histogram (sources/statsd_aggregate.py) and hands the lists over with the
batch; this keeps the last of them until the analysis has taken them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from aie_agent.samples import Batch, Values


class Statistic(NamedTuple):
    """One number of a request: what it is called in references and recordings, the metric that hooks send it as, whether it tells
    of the prompt alone, and what it is, for people."""

    name: str
    metric: str
    of_prompt: bool
    means: str


STATISTICS: Final = (
    Statistic("entropy", "aie_engine_output_entropy_nats", False, "how unsure the model was of its tokens"),
    Statistic("surprisal", "aie_engine_output_surprisal_nats", False, "how unlikely the chosen tokens were"),
    Statistic(
        "first_token_logsumexp", "aie_engine_first_token_logsumexp_nats", True, "how large the logits were before the answer"
    ),
    Statistic("log_length", "aie_engine_output_log_length", False, "how long the answers were"),
)
STATISTIC_OF: Final = {each.metric: each for each in STATISTICS}
"""By metric: the histograms of which single values are kept."""

_NOT_OF_ANSWERS: Final = frozenset({"log_length"} | {each.name for each in STATISTICS if each.of_prompt})


def tells_of_answers(statistic: str) -> bool:
    """Whether a statistic that hardly varies says that answers hardly do: not so that of the prompt, nor the length, which clients
    set. One that no hook of ours sends is taken to."""
    return statistic not in _NOT_OF_ANSWERS


MOST_HELD: Final = 20_000
"""Values that wait for the analysis, which takes them once a second."""


class Arrived(NamedTuple):
    """Values of one statistic of one engine and model. `lost` were more than was kept."""

    engine: str
    model: str
    statistic: str
    values: Sequence[float]
    lost: int


class RequestValues:
    """Bounded: the oldest make room. `canonical` maps an engine's name to the one that it is known by."""

    def __init__(self, canonical: Callable[[str], str] = str) -> None:
        self._canonical = canonical
        self._waiting: deque[Values] = deque()
        self._held = 0
        self._next = 0  # the number of the one that comes next

    def take(self, batch: Batch) -> None:
        """Takes in what a batch brought."""
        for values in batch.values:
            self._waiting.append(values)
            self._held += len(values.values)
            self._next += 1
            while self._held > MOST_HELD and len(self._waiting) > 1:
                self._held -= len(self._waiting.popleft().values)

    def since(self, position: int) -> tuple[int, list[Arrived]]:
        """What came since a position (0: the start), and the position from which to ask the next time. What nobody asked for in
        time is passed over."""
        first = self._next - len(self._waiting)
        new = list(self._waiting)[max(0, position - first) :]
        return self._next, [self._arrived(values) for values in new]

    def _arrived(self, values: Values) -> Arrived:
        labels = dict(values.tags)
        engine = self._canonical(labels.get("engine", ""))
        return Arrived(engine, labels.get("model", ""), STATISTIC_OF[values.name].name, values.values, values.lost)
