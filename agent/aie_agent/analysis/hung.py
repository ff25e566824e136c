"""When an engine hangs, whatever its health page says: requests run and nothing moves, its page does not answer while it lives, or
one of its processes is stopped.

The rule has no statistics. It raises no false alarm as long as an engine with a request running shows one sign of life within
`hung_after`: any change of any series in `SIGNS`. Chunked prefill, load spikes, long queues, restarts (a counter that falls has
moved) and gaps between scrapes all do. What does not, and is reported although nothing is broken: one step of the model loop that
takes longer than `hung_after` (a long prompt prefilled in one piece on a slow host, a compilation at a first shape). Where such
steps are normal, `findings.hung_after` has to be longer than they are; the default of 30 s is beyond any step of a GPU engine that
we know of. A page that does not answer, or a process that is stopped, for `hung_after` is wrong by itself: nothing has to be
assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from aie_agent.analysis.findings import ProcessState, View
from aie_agent.series import HistogramSeries, Series
from aie_agent.store import AnySeries
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "engine_hung"

RUNNING: Final = "aie_engine_requests_running"
TOKENS: Final = "aie_engine_generation_tokens_total"

_STEPWISE: Final = (
    "aie_engine_step_seconds",
    "aie_engine_step_tokens",
    "aie_engine_step_batch_size",
    "aie_engine_inter_token_seconds",
    "aie_engine_kv_usage_ratio",
    "aie_engine_kv_used_tokens",
    "aie_engine_kv_written_tokens",
    "aie_engine_last_token_timestamp_seconds",
)
SIGNS: Final = (
    TOKENS,
    "aie_engine_prompt_tokens_total",
    *_STEPWISE,
    "aie_engine_time_to_first_token_seconds",
    "aie_engine_queue_seconds",
)
"""What only an engine that computes can move. Of the requests that end, those with an outcome in `_DONE` count too: clients leave
and deadlines pass in an engine that hangs. Engines differ in what they have: some (vLLM) count a prompt only when all of it is
computed, and their steps all along."""

COUNT_AT_THE_END: Final = frozenset({"llama.cpp", "tgi", "tensorrt-llm", "triton"})
"""Kinds of engines that count tokens only when a request ends, so that a long answer looks like a hang. Such an engine is judged
only where its page also has something that moves with every step, and else only by whether its page answers."""

_DONE: Final = ("ok", "error")
_STOPPED: Final = "Tt"
_GLANCE_S: Final = 3.0
_NOT_SEEN: Final = (
    "what the GPU does: this version reads no GPUs, so a kernel that never ends is not told from a deadlock on the host"
)


class _Stalled(NamedTuple):
    """Requests run and nothing moves: since when, and how many run."""

    since_s: float
    running: float
    tokens: float


def engine_hung(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `engine_hung` at `now_s`, or None. Critical when requests are in it or a process is stopped, else a warning."""
    if view.state(engine) == "down":
        return None
    limit_s = view.limits.hung_after_s
    processes = view.processes(engine)
    stopped = [process for process in processes if process.state in _STOPPED]
    stalled = _stalled(view, engine, now_s, now_s)
    silent_s = _silent_since(view, engine, now_s)
    halted_s = [process.state_since_s for process in stopped if now_s - process.state_since_s >= limit_s]
    if stalled is None and silent_s is None and not halted_s:
        return None
    if stalled is None and silent_s is not None:
        # What its page said last may be old, and still tells what it was at when it fell silent.
        stalled = _stalled(view, engine, now_s, silent_s)
    moments = [*halted_s, *([stalled.since_s] if stalled else []), *([silent_s] if silent_s is not None else [])]
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="critical" if stalled is not None or stopped else "warning",
        since_s=min(moments),
        summary=_summary(engine, stalled, stopped),
        evidence=tuple(_evidence(stalled, silent_s, processes, limit_s, now_s)),
        advice=_advice(processes),
        not_visible=(_NOT_SEEN,),
    )


def _stalled(view: View, engine: str, now_s: float, fresh_s: float) -> _Stalled | None:
    """Whether requests ran and nothing moved over the last `hung_after` seconds; the gauge must have been current at `fresh_s`."""
    start_s = now_s - view.limits.hung_after_s
    store = view.store
    running = [series for series in store.scalars(RUNNING, engine=engine) if series.valid_until_s >= fresh_s and series.value > 0]
    tokens = store.scalars(TOKENS, engine=engine)
    if not running or any(_moved(series, max(start_s, now_s - _GLANCE_S)) for series in tokens):
        return None  # as nearly always, for a few microseconds
    busy = [series for series in running if _runs_since(series, start_s, view.limits.hung_after_s / 2)]
    if not busy or not any(_first_s(series) <= start_s for series in tokens) or not _counts_as_it_goes(view, engine):
        return None
    signs = list(_signs(view, engine))
    if any(_moved(series, start_s) for series in signs):
        return None
    moves = [last for series in signs if (last := _last_move_s(series)) is not None]
    idle = [_busy_from_s(series) for series in busy]
    return _Stalled(max([*moves, min(idle)]), sum(series.value for series in busy), sum(series.value for series in tokens))


def _signs(view: View, engine: str) -> Iterator[AnySeries]:
    """The series that show life, the most telling first: one that moved ends the search."""
    for name in SIGNS:
        yield from view.store.scalars(name, engine=engine)
        yield from view.store.histograms(name, engine=engine)
    for outcome in _DONE:
        yield from view.store.scalars("aie_engine_requests_total", engine=engine, outcome=outcome)


def _counts_as_it_goes(view: View, engine: str) -> bool:
    kinds = {dict(series.tags).get("kind") for series in view.store.scalars("aie_engine_info", engine=engine)}
    if not kinds & COUNT_AT_THE_END:
        return True
    store = view.store
    return any(store.scalars(name, engine=engine) or store.histograms(name, engine=engine) for name in _STEPWISE)


def _states(series: AnySeries, start_s: float) -> Iterable[tuple[float, object]]:
    return series.since(start_s) if isinstance(series, HistogramSeries) else series.ring.since(start_s)


def _moved(series: AnySeries, start_s: float) -> bool:
    """Whether it changed, in any direction, since the last value at or before `start_s`. A break (NaN, None) is a change."""
    return any(before != value for (_, before), (_, value) in pairwise(_states(series, start_s)))


def _last_move_s(series: AnySeries) -> float | None:
    moves = [time_s for (_, before), (time_s, value) in pairwise(_states(series, 0.0)) if before != value]
    return moves[-1] if moves else None


def _first_s(series: Series) -> float:
    return next((time_s for time_s, _ in series.ring.since(0.0)), float("inf"))


def _runs_since(series: Series, start_s: float, most_apart_s: float) -> bool:
    """Whether a gauge was above 0 all the time since `start_s`, and known then already. Values further apart than `most_apart_s`
    say nothing of the time between them: the agent stood still, or its clock was set."""
    points = list(series.ring.since(start_s))
    known = bool(points) and points[0][0] <= start_s
    apart = any(after - before > most_apart_s for (before, _), (after, _) in pairwise(points))
    return known and not apart and all(value > 0 for _, value in points)


def _busy_from_s(series: Series) -> float:
    """The first moment from which on a gauge was above 0 without a break, as far back as it is remembered."""
    began_s = series.last_time_s
    for time_s, value in reversed(list(series.ring.since(0.0))):
        if not value > 0:
            break
        began_s = time_s
    return began_s


def _silent_since(view: View, engine: str, now_s: float) -> float | None:
    """Since when its page has not answered, where that is too long and a process of it lives."""
    since_s = view.unanswered_since_s(engine)
    too_long = since_s is not None and now_s - since_s >= view.limits.hung_after_s
    return since_s if too_long and view.state(engine) == "up" else None


def _summary(engine: str, stalled: _Stalled | None, stopped: Sequence[ProcessState]) -> str:
    if stopped:
        return f"engine {engine} hangs: process {stopped[0].tgid} is stopped"
    if stalled is not None:
        return f"engine {engine} hangs: {stalled.running:g} requests run and no token moves"
    return f"engine {engine} hangs: its metrics page does not answer and its process lives"


def _evidence(
    stalled: _Stalled | None, silent_s: float | None, processes: Sequence[ProcessState], limit_s: float, now_s: float
) -> Iterator[Evidence]:
    if stalled is not None:
        flat = now_s - stalled.since_s
        text = f"generated tokens stand at {stalled.tokens:.0f} for {flat:.0f} s (limit {limit_s:g} s), and so do prompts and steps"
        yield Evidence(text=text, metric=TOKENS)
        when = "all that time" if silent_s is None else "when its page was last read"
        yield Evidence(text=f"{stalled.running:g} requests ran {when} (limit 0)", metric=RUNNING)
    if silent_s is not None:
        text = f"its page has not answered in time for {now_s - silent_s:.0f} s (limit {limit_s:g} s), and was not refused"
        yield Evidence(text=text, metric="aie_agent_source_up")
    for process in processes:
        if process.state in _STATES:
            held = f"for {now_s - process.state_since_s:.0f} s (limit {limit_s:g} s)"
            text = f"process {process.tgid} {_STATES[process.state].sentence} {held} (state {process.state})"
            yield Evidence(text=text, metric="aie_engine_up")
    cores = [process.cpu_cores for process in processes if process.cpu_cores is not None]
    if cores:
        yield Evidence(text=f"its processes use {sum(cores):.2f} CPU cores", metric="aie_process_cpu_seconds_total")


class _State(NamedTuple):
    """A process state that explains a hang: what it means, and what to do."""

    sentence: str
    advice: Callable[[int], str]


def _continue(tgid: int) -> str:
    return f"Find out who stopped it (a debugger, a job put aside, a freezer); `kill -CONT {tgid}` lets it go on."


def _trace(tgid: int) -> str:
    return f"A debugger holds it: `grep TracerPid /proc/{tgid}/status` says which one."


def _kernel_wait(tgid: int) -> str:
    return (
        f"It waits in the kernel, for a disk, a network file system or a driver: see `cat /proc/{tgid}/stack` and `dmesg`, as root."
    )


_STATES: Final = {
    "T": _State("is stopped", _continue),
    "t": _State("is held by a debugger", _trace),
    "D": _State("waits in the kernel and cannot be interrupted", _kernel_wait),
}


def _advice(processes: Sequence[ProcessState]) -> str:
    for process in processes:
        if process.state in _STATES:
            return _STATES[process.state].advice(process.tgid)
    tgid = str(processes[0].tgid) if processes else "PID"
    return (
        f"Dump its stacks twice, some seconds apart (`py-spy dump --pid {tgid}`, as root): frames that are the same both times are"
        " where it hangs. Then restart it; the requests in it are lost. That its health page answers means nothing."
    )
