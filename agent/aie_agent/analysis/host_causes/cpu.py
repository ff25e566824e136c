"""An engine does not get the CPU that it asks for: threads that wait for one, a quota that stops them, a hypervisor that lends the
CPUs to others.

Each is an average over `WINDOW_S`, held in most of its seconds, so that a burst (a load, a compilation, a fork) is none. A quota
that stops the engine twice as often in each of `UNBROKEN_S` seconds is told then: its counter may be younger than a window, since
there is none before there is a quota. Where it is older, so many such seconds are enough for the window as well: no false alarm is
new.

Where no request runs, or none is known to, they are information: an engine that loads uses all that it gets, and nobody waits.

What is reported although nothing is broken: an engine that starts more threads than it has CPUs and does so on purpose (a
compilation with a worker for each CPU that takes longer than half of `WINDOW_S`); a quota set so low that it is reached by design.
On a host with a CPU to spare for each thread that is ready none of them says a thing, whatever the load: the time waited is then
that of a wake-up, some ten microseconds. The rate of false alarms is 0 there (a simulated hour with bursts of three seconds has
none), and elsewhere one for each such compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.engine_causes.readings import highest
from aie_agent.analysis.explain import HOST
from aie_agent.analysis.findings import View
from aie_agent.analysis.lock_contention import Episode, Unbroken
from aie_agent.analysis.sustained import limit, live, rising
from aie_agent.analysis.window import rate
from aie_agent.neighbour import called
from aie_agent.progress import RUNNING
from aie_telemetry.api import Evidence, Finding, Severity

RUN_QUEUE: Final = "aie_process_run_queue_seconds_total"
CPU: Final = "aie_process_cpu_seconds_total"
PERIODS: Final = "aie_process_cgroup_periods_total"
THROTTLED_PERIODS: Final = "aie_process_cgroup_throttled_periods_total"
THROTTLED_S: Final = "aie_process_cgroup_throttled_seconds_total"
HOST_CPU: Final = "aie_host_cpu_seconds_total"

WINDOW_S: Final = 8.0
UNBROKEN_S: Final = 5.0
STARVED_THREADS: Final = 0.5
STARVED_SHARE: Final = 0.3
"""Of the time in which its threads could have run. A busy engine of as many threads as it has CPUs waits for below a tenth."""
THROTTLED_SHARE: Final = 0.25
"""Of the quota's periods. The same as in Kubernetes' own rule (CPUThrottlingHigh), over a shorter time."""
STEAL_SHARE: Final = 0.1
STEAL_WINDOW_S: Final = 10.0

_NAMED: Final = 3
_NOT_USED: Final = ("idle", "iowait", "steal")
_OWN_THREADS: Final = (
    "It runs more threads than it gets CPUs: let it start fewer (OMP_NUM_THREADS, torch.set_num_threads, vLLM --api-server-count),"
    " or give it more CPUs (its cpuset, the pod's CPU request)."
)
_NEIGHBOURS: Final = (
    "See who takes the CPUs (`top`), and move it away, or keep CPUs for the engine: a cpuset, systemd's AllowedCPUs= or CPUWeight=,"
    " in Kubernetes the guaranteed class with whole CPUs and the static CPU manager."
)


def cpu_starved(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `cpu_starved` at `now_s`, or None: threads of the engine are ready and wait for a CPU, at least `STARVED_THREADS`
    of them on average, and for `STARVED_SHARE` of the time in which they could have run. Information unless requests run."""
    store = view.store
    before_s = view.held_since_s("cpu_starved", engine)
    held = rising(store.scalars(RUN_QUEUE, engine=engine), STARVED_THREADS, WINDOW_S, now_s, before_s)
    ran = rate(live(store.scalars(CPU, engine=engine), now_s), now_s - WINDOW_S, now_s) if held else None
    if held is None or ran is None or view.state(engine) == "down" or held.mean < STARVED_SHARE * (held.mean + ran):
        return None
    share = held.mean / (held.mean + ran)
    others = _used_by_others(view, ran, now_s)
    return Finding(
        cause="cpu_starved",
        subject=engine,
        severity=_severity(view, engine, now_s),
        since_s=held.since_s,
        summary=f"engine {engine} does not get enough CPU: {held.mean:.1f} of its threads are ready and wait for one",
        evidence=tuple(_starved(held, share, ran, others, view, now_s)),
        advice=_OWN_THREADS if others is not None and others < ran / 2 else _NEIGHBOURS,
        runbook="docs/runbooks/cpu_starved.md",
        not_visible=_not_visible(view, engine, now_s),
    )


def _starved(held: Episode, share: float, ran: float, others: float | None, view: View, now_s: float) -> Iterator[Evidence]:
    text = f"{held.mean:.2f} threads waited for a CPU on average over the last {WINDOW_S:g} s"
    yield Evidence(text=f"{text} ({limit(held, STARVED_THREADS, f'{STARVED_THREADS:g}')})", metric=RUN_QUEUE)
    text = f"that is {share:.0%} of the time in which they could have run (limit {STARVED_SHARE:.0%}); they ran on {ran:.2f} CPUs"
    yield Evidence(text=text, metric=CPU)
    cpus = view.store.current("aie_host_cpus", now_s)
    if others is not None and cpus is not None:
        yield Evidence(text=f"everything else on the host used {others:.2f} of its {cpus:.0f} CPUs", metric=HOST_CPU)
    busiest = ", ".join(f"{called(each)} {each.cpu_cores:.1f}" for each in view.neighbours()[:_NAMED])
    if busiest:
        yield Evidence(text=f"processes of no engine used most: {busiest} CPUs", metric=HOST_CPU)


def _used_by_others(view: View, ran: float, now_s: float) -> float | None:
    """CPUs that everything but the engine used; None where the host is not read."""
    used = [series for series in view.store.scalars(HOST_CPU) if dict(series.tags).get("mode") not in _NOT_USED]
    busy = rate(live(used, now_s), now_s - WINDOW_S, now_s)
    return None if busy is None else max(busy - ran, 0.0)


def _severity(view: View, engine: str, now_s: float) -> Severity:
    """A warning where requests ran in the window. An engine that loads compiles on all threads, and has told of none yet."""
    return "warning" if highest(view, engine, RUNNING, now_s - WINDOW_S, now_s) else "info"


def _not_visible(view: View, engine: str, now_s: float) -> tuple[str, ...]:
    is_told = highest(view, engine, RUNNING, now_s - WINDOW_S, now_s) is not None
    return () if is_told else ("whether requests run in it: it does not say, so this is no warning",)


def cpu_throttled(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `cpu_throttled` at `now_s`, or None: the CPU quota of its control group stopped the engine in at least
    `THROTTLED_SHARE` of the quota's periods. Information unless requests run."""
    store = view.store
    periods = rate(live(store.scalars(PERIODS, engine=engine), now_s), now_s - WINDOW_S, now_s)
    if not periods or view.state(engine) == "down":
        return None
    unbroken = Unbroken(UNBROKEN_S, 2 * THROTTLED_SHARE * periods)
    stops, before_s = store.scalars(THROTTLED_PERIODS, engine=engine), view.held_since_s("cpu_throttled", engine)
    held = rising(stops, THROTTLED_SHARE * periods, WINDOW_S, now_s, before_s, unbroken)
    if held is None:
        return None
    stopped = rate(live(store.scalars(THROTTLED_S, engine=engine), now_s), now_s - held.window_s, now_s)
    share = min(held.mean / periods, 1.0)
    bound = limit(held, THROTTLED_SHARE * periods, f"{THROTTLED_SHARE:.0%}")
    text = f"its quota stopped it in {share:.0%} of its periods over the last {held.window_s:.0f} s ({bound})"
    evidence = [Evidence(text=text, metric=THROTTLED_PERIODS)]
    if stopped is not None:
        evidence.append(Evidence(text=f"its CPUs were stopped for {stopped:.2f} s in each second, together", metric=THROTTLED_S))
    return Finding(
        cause="cpu_throttled",
        subject=engine,
        severity=_severity(view, engine, now_s),
        since_s=held.since_s,
        summary=f"engine {engine} is stopped by the CPU quota of its control group",
        evidence=tuple(evidence),
        advice=(
            "Raise the quota (cpu.max; systemd's CPUQuota=; in Kubernetes the CPU limit), or take it away and keep the request; or"
            " let the engine run no more threads than the quota has CPUs (OMP_NUM_THREADS)."
        ),
        runbook="docs/runbooks/cpu_throttled.md",
        not_visible=_not_visible(view, engine, now_s),
    )


def cpu_steal(view: View, now_s: float) -> list[Finding]:
    """The finding `cpu_steal` of the host at `now_s`, or nothing: the hypervisor gave at least `STEAL_SHARE` of its CPU time to
    others. On bare metal it cannot be found; a virtual CPU that is overcommitted and idle has none either."""
    store = view.store
    cpus = store.current("aie_host_cpus", now_s)
    stolen, before_s = store.scalars(HOST_CPU, mode="steal"), view.held_since_s("cpu_steal", HOST)
    held = rising(stolen, STEAL_SHARE * cpus, STEAL_WINDOW_S, now_s, before_s) if cpus else None
    if held is None or not cpus:
        return []
    share = f"{held.mean / cpus:.0%} of the time of {cpus:.0f} CPUs"
    bound = limit(held, STEAL_SHARE * cpus, f"{STEAL_SHARE:.0%}")
    text = f"{share} was stolen over the last {STEAL_WINDOW_S:g} s ({bound})"
    return [
        Finding(
            cause="cpu_steal",
            subject=HOST,
            severity="warning",
            since_s=held.since_s,
            summary="the hypervisor gives this machine's CPUs to others",
            evidence=(Evidence(text=text, metric=HOST_CPU),),
            advice=(
                "Nothing inside this machine mends it: move it to a host with less on it, or to a type with CPUs of its own; ask"
                " whoever runs the hypervisor."
            ),
            runbook="docs/runbooks/cpu_steal.md",
        )
    ]
