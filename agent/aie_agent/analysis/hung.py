"""When an engine hangs, whatever its health page says: requests run and nothing moves, in all of it or in one of its replicas; its
page does not answer while it lives; or one of its processes is stopped.

Where a page goes on to show requests running when none does any more (`progress.STALE`: SGLang, for half a minute), that time is
waited for first; where nobody knows when that ends, requests that run prove nothing, and the engine is judged only by whether its
page answers and its processes run.

The rule has no statistics. It raises no false alarm as long as an engine with a request running shows one sign of life within
`hung_after`: any change of any series in `SIGNS`, and whatever else its page has that moves with every step (`Progress`). Chunked
prefill, load spikes, long queues, restarts (a counter that falls has moved) and gaps between scrapes all do. A page that does not
answer, or a process that is stopped, for `hung_after` is wrong by itself: nothing has to be assumed.

Whether an engine shows signs while its requests run, or only when they end, is decided page by page: by the families that the map
says to move with every step, else by what the page did until now (`_was_seen_moving`). Where neither says so, a flat counter says
nothing, and the engine is judged only by whether its page answers: so Triton, and TensorRT-LLM and older SGLang as long as nothing
of theirs was seen to move between the ends of requests. A replica is judged by itself where the page tells replicas apart (vLLM's
`engine`, SGLang's `dp_rank`) and has such a family for each: vLLM, and SGLang with `realtime_tokens_total`.

What is reported although nothing is broken: an engine judged by what it did, whose signs come more than twice as far apart as ever
before as far back as is remembered; one step of the model loop that takes longer than `hung_after` (a long prompt prefilled in one
piece on a slow host, a compilation at a first shape), and an engine that was paused on purpose with requests in it and does not
say so (SGLang's `pause_generation`, vLLM's without sleep). vLLM that sleeps says so, and is left alone. Where such things are
normal, `findings.hung_after` has to be longer than they are; the default of 30 s is beyond any step of a GPU engine that we know
of.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf
from typing import Final, NamedTuple

from aie_agent.analysis.findings import ProcessState, Stacks, View
from aie_agent.progress import RUNNING, SIGNS, STALE, TOKENS, Progress, ReplicaState
from aie_agent.series import HistogramSeries, Series
from aie_agent.store import AnySeries
from aie_telemetry.api import Evidence, Finding

SYNC_WAIT: Final = "aie_cuda_sync_longest_wait_seconds"
SYNC_WAIT_S: Final = 5.0
FRESH_S: Final = 5.0
"""A page that may show requests that have ended is believed for so long after something moved."""
CAUSE: Final = "engine_hung"

_NOW_AND_THEN: Final = (
    "aie_engine_kv_usage_ratio",
    "aie_engine_kv_used_tokens",
    "aie_engine_inter_token_seconds",
)
"""Signs that some pages renew with every step, some every so many steps, and some when a request ends: only what a page did until
now tells which. vLLM moves the first with every chunk of a prompt that it computes, and counts neither tokens nor steps before the
prompt is done."""

_ENDS: Final = ("aie_engine_requests_total", "aie_engine_request_duration_seconds", TOKENS)
_QUIET_S: Final = 3.0
_QUIET_MOVES: Final = 5
"""So many moves of a sign without an end of a request in the seconds before show that it moves while requests run."""

_DONE: Final = ("ok", "error")
_STOPPED: Final = "Tt"
_GLANCE_S: Final = 3.0
_NOT_SEEN: Final = {
    True: "which kernel a GPU runs: that GPUs are busy is seen, and one that never ends keeps them as busy as work does",
    False: "what a GPU does: none is read here, so a kernel that never ends is not told from a deadlock on the host",
}
"""What cannot be seen, by whether GPUs are read."""


class _Stalled(NamedTuple):
    """Requests run and nothing moves: since when, how many run, how long that must be, and in which replicas (none where it is all
    of the engine)."""

    since_s: float
    running: float
    tokens: float
    limit_s: float
    replicas: tuple[str, ...] = ()


def looks_back_s(hung_after_s: float) -> float:
    """How far back the store has to remember for `engine_hung`: over the limit after what a page may show late, and over the same
    time before, in which a sign was seen moving."""
    return 2 * hung_after_s + max(stale.for_s for stale in STALE.values())


def engine_hung(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `engine_hung` at `now_s`, or None. Critical when requests are in it or a process is stopped, else a warning."""
    if view.state(engine) == "down":
        return None
    limit_s = view.limits.hung_after_s
    processes = view.processes(engine)
    stopped = [process for process in processes if process.state in _STOPPED]
    progress = view.progress(engine)
    flat_s = limit_s + (progress.stale_s if progress is not None else 0.0)
    stalled = _stalled(view, engine, now_s, now_s, flat_s) or _stalled_replicas(progress, now_s, limit_s)
    silent_s = _silent_since(view, engine, now_s)
    halted_s = [process.state_since_s for process in stopped if now_s - process.state_since_s >= limit_s]
    if stalled is None and silent_s is None and not halted_s:
        return _while_unanswered(view, engine, now_s)
    if stalled is None and silent_s is not None:
        stalled = _before_silence(view, engine, now_s, silent_s)
    stacks = view.stacks(engine, CAUSE) or Stacks()
    moments = [*halted_s, *([stalled.since_s] if stalled else []), *([silent_s] if silent_s is not None else [])]
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="critical" if stalled is not None or stopped else "warning",
        since_s=min(moments),
        summary=_summary(engine, stalled, stopped),
        evidence=(
            *_evidence(stalled, silent_s, processes, limit_s, now_s),
            *_of_device(view, engine, now_s),
            *_of_stacks(stacks),
        ),
        advice=advice(processes),
        not_visible=(_NOT_SEEN[view.store.current("aie_gpu_utilization_ratio", now_s) is not None], *stacks.problems),
    )


def _while_unanswered(view: View, engine: str, now_s: float) -> Finding | None:
    """What was found goes on while its page does not answer in time, until that itself is found (`_silent_since`). No longer of one
    of which no process is seen: its host may be switched off, and that its page is not read is `agent_blind`."""
    since_s = view.unanswered_since_s(engine)
    is_late = since_s is not None and now_s - since_s < view.limits.hung_after_s
    return view.held(CAUSE, engine) if is_late and _is_found_already(view, engine) else None


def _before_silence(view: View, engine: str, now_s: float, silent_s: float) -> _Stalled | None:
    """What its page said last may be old, and still tells what it was at when it fell silent. Requests that may have ended before
    are none: the page must have moved just then, or have stood for longer than it may show them."""
    stalled = _stalled(view, engine, now_s, silent_s, view.limits.hung_after_s)
    progress = view.progress(engine)
    if stalled is None or progress is None:
        return stalled
    return stalled if not FRESH_S < silent_s - stalled.since_s < progress.stale_s else None


def _stalled(view: View, engine: str, now_s: float, fresh_s: float, limit_s: float) -> _Stalled | None:
    """Whether requests ran and nothing moved over the last `limit_s` seconds; the gauge must have been current at `fresh_s`."""
    start_s = now_s - limit_s
    store = view.store
    running = [series for series in store.scalars(RUNNING, engine=engine) if series.valid_until_s >= fresh_s and series.value > 0]
    tokens = store.scalars(TOKENS, engine=engine)
    if not running or any(_moved(series, max(start_s, now_s - _GLANCE_S)) for series in tokens):
        return None  # as nearly always, for a few microseconds
    is_found = _is_found_already(view, engine)
    most_apart_s = inf if is_found else view.limits.hung_after_s / 2  # across looks further apart nothing moved either
    busy = [series for series in running if _runs_since(series, start_s, most_apart_s)]
    if not busy or not any(_first_s(series) <= start_s for series in tokens):
        return None
    progress = view.progress(engine)
    if _is_paused(progress, start_s) or (progress is not None and (progress.beat_s or 0.0) > start_s):
        return None
    signs = list(_signs(view, engine))
    if any(_moved(series, start_s) for series in signs):
        return None
    if not (is_found or _shows_steps(view, engine, progress)):
        return None
    beat_s = progress.beat_s if progress is not None else None
    moves = [last for last in (*map(_last_move_s, signs), beat_s) if last is not None]
    idle = [_busy_from_s(series) for series in busy]
    in_it, generated = sum(series.value for series in busy), sum(series.value for series in tokens)
    return _Stalled(max([*moves, min(idle)]), in_it, generated, limit_s)


def _signs(view: View, engine: str) -> Iterator[AnySeries]:
    """The series that show life, the most telling first: one that moved ends the search."""
    for name in SIGNS:
        yield from _all(view, engine, name)
    for outcome in _DONE:
        yield from view.store.scalars("aie_engine_requests_total", engine=engine, outcome=outcome)


def _stalled_replicas(progress: Progress | None, now_s: float, limit_s: float) -> _Stalled | None:
    """Replicas in which requests ran and nothing moved over the last `limit_s` seconds, and those in which the page may show
    requests that have ended, while others of the engine go on."""
    if progress is None or len(progress.replicas) < 2 or _is_paused(progress, now_s - limit_s):
        return None
    if now_s - progress.time_s > limit_s / 2:
        return None  # too old to say what is
    flat_s = limit_s + progress.stale_s
    hung = [each for each in progress.replicas if each.is_stepwise and _is_flat(each, now_s, flat_s, limit_s / 2)]
    if not hung:
        return None
    since_s = min(max(each.moved_s, each.busy_since_s) for each in hung)
    names = tuple(each.name for each in hung)
    return _Stalled(since_s, sum(each.running for each in hung), sum(each.tokens for each in hung), flat_s, names)


def _is_flat(replica: ReplicaState, now_s: float, flat_s: float, most_apart_s: float) -> bool:
    """As `_runs_since`, looks that are too far apart say nothing of the time between them."""
    is_long = now_s - max(replica.moved_s, replica.busy_since_s) >= flat_s
    return replica.running > 0 and is_long and replica.apart_s <= most_apart_s


def _is_paused(progress: Progress | None, start_s: float) -> bool:
    """Whether its page said since `start_s` that it is paused on purpose."""
    return progress is not None and progress.paused_s is not None and progress.paused_s >= start_s


def _shows_steps(view: View, engine: str, progress: Progress | None) -> bool:
    """Whether it shows signs of life while requests run, and not only when they end. Our own engine and the hooks always do."""
    if progress is None or progress.stepwise is None or progress.stepwise or progress.beat_s is not None:
        return True
    of_hooks = (series for name in SIGNS for series in _all(view, engine, name) if series.source == "statsd")
    return any(True for _ in of_hooks) or _was_seen_moving(view, engine)


def _is_found_already(view: View, engine: str) -> bool:
    """Whether it was found that nothing moves: then signs were seen moving before, which are forgotten while the hang goes on."""
    held = view.held(CAUSE, engine)
    return held is not None and any(each.metric == TOKENS for each in held.evidence)


def _was_seen_moving(view: View, engine: str) -> bool:
    """Whether a sign moved several times while requests ran and none ended, and never stood still for half of `hung_after` between
    two of its moves, as far back as is remembered."""
    running = view.store.scalars(RUNNING, engine=engine)
    ends = sorted(time_s for name in _ENDS for series in _all(view, engine, name) for time_s in _moves_s(series))
    idle = sorted(time_s for series in running for time_s, value in series.ring.since(0.0) if not value > 0)
    for name in _NOW_AND_THEN:
        for series in _all(view, engine, name):
            moves = list(_moves_s(series))
            quiet = [at for at in moves if bisect_left(ends, at - _QUIET_S) == bisect_right(ends, at)]
            stood = [after - before for before, after in pairwise(moves) if bisect_left(idle, before) == bisect_right(idle, after)]
            if len(quiet) >= _QUIET_MOVES and max(stood, default=0.0) <= view.limits.hung_after_s / 2:
                return True
    return False


def _all(view: View, engine: str, name: str) -> Iterator[AnySeries]:
    yield from view.store.scalars(name, engine=engine)
    yield from view.store.histograms(name, engine=engine)


def _states(series: AnySeries, start_s: float) -> Iterable[tuple[float, object]]:
    return series.since(start_s) if isinstance(series, HistogramSeries) else series.ring.since(start_s)


def _moved(series: AnySeries, start_s: float) -> bool:
    """Whether it changed, in any direction, since the last value at or before `start_s`. A break (NaN, None) is a change."""
    return any(before != value for (_, before), (_, value) in pairwise(_states(series, start_s)))


def _moves_s(series: AnySeries) -> Iterator[float]:
    """When it changed, as far back as it is remembered."""
    return (time_s for (_, before), (time_s, value) in pairwise(_states(series, 0.0)) if before != value)


def _last_move_s(series: AnySeries) -> float | None:
    return max(_moves_s(series), default=None)


def last_move_s(view: View, engine: str) -> float | None:
    """When a sign of life of an engine moved last, as far back as is remembered; None where none did."""
    return max((last for last in map(_last_move_s, _signs(view, engine)) if last is not None), default=None)


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
        where = f" in its replica {', '.join(stalled.replicas)}" if stalled.replicas else ""
        return f"engine {engine} hangs{where}: {stalled.running:g} requests run and no token moves"
    return f"engine {engine} hangs: its metrics page does not answer and its process lives"


def _evidence(
    stalled: _Stalled | None, silent_s: float | None, processes: Sequence[ProcessState], limit_s: float, now_s: float
) -> Iterator[Evidence]:
    if stalled is not None:
        flat = now_s - stalled.since_s
        where = f" in replica {', '.join(stalled.replicas)}" if stalled.replicas else ""
        stood = f"stand at {stalled.tokens:.0f} for {flat:.0f} s (limit {stalled.limit_s:g} s)"
        text = f"generated tokens{where} {stood}, and so do prompts and steps"
        yield Evidence(text=text, metric=TOKENS)
        when = "all that time" if silent_s is None else "when its page was last read"
        yield Evidence(text=f"{stalled.running:g} requests ran{where} {when} (limit 0)", metric=RUNNING)
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


def _of_device(view: View, engine: str, now_s: float) -> Iterator[Evidence]:
    """A thread that the device does not let go: a kernel that does not end, or a collective whose other side is gone."""
    waits_s = view.store.current(SYNC_WAIT, now_s, engine=engine)
    if waits_s is not None and waits_s >= SYNC_WAIT_S:
        text = f"a thread has been inside a CUDA synchronisation for {waits_s:.0f} s (limit {SYNC_WAIT_S:g} s)"
        yield Evidence(text=text, metric=SYNC_WAIT)


def _of_stacks(stacks: Stacks) -> Iterator[Evidence]:
    """Who stands still, and who waits for whom."""
    return (Evidence(text=text, metric="aie_process_threads") for text in stacks.hang + stacks.locks)


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


def sentence(process: ProcessState) -> str:
    """What the state of a process means, where it explains a hang."""
    return _STATES[process.state].sentence


def advice(processes: Sequence[ProcessState]) -> str:
    """What to do about an engine with these processes."""
    for process in processes:
        if process.state in _STATES:
            return _STATES[process.state].advice(process.tgid)
    tgid = str(processes[0].tgid) if processes else "PID"
    return (
        f"See where its threads stand (`aie-agent stacks --pid {tgid} --dumps 2 --interval 6`, as root; it does not stop them):"
        " frames that are the same both times are where it hangs. Then restart it; the requests in it are lost. That its health"
        " page answers means nothing."
    )
