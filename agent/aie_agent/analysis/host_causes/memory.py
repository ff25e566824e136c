"""Memory that is not where it is needed: pages that come from the disk, swap, and a host that is nearly out of it.

What is reported although nothing is broken: an engine that maps its weights and is asked first for one part of them and then, after
more than half of `WINDOW_S`, for another (a mixture of experts that warms up); a host that is packed on purpose so that less than
`LOW_SHARE` stays available. An engine that loads is not judged, since no request runs then; page cache counts as available, and
pages that only go out to swap are no harm. On a host with memory to spare the rate of false alarms is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.explain import CPU_DEVICE, HOST
from aie_agent.analysis.findings import View
from aie_agent.analysis.lock_contention import WAIT_SECONDS, Episode
from aie_agent.analysis.sustained import level_since, limit, live, rising
from aie_agent.analysis.window import rate
from aie_agent.progress import RUNNING
from aie_telemetry.api import Evidence, Finding, Severity

MAJOR_FAULTS: Final = "aie_process_major_faults_total"
SWAP_IN: Final = "aie_host_swap_in_pages_total"
SWAPPED: Final = "aie_process_swap_bytes"
AVAILABLE: Final = "aie_host_memory_available_bytes"
TOTAL: Final = "aie_host_memory_total_bytes"
PRESSURE: Final = "aie_host_pressure_seconds_total"

WINDOW_S: Final = 10.0
FAULTS_PER_SECOND: Final = 50.0
"""Each costs a thread 0.1 ms (NVMe) to 10 ms (a disk that turns, a network)."""
FAULT_THREADS: Final = 0.1
SWAP_PAGES_PER_SECOND: Final = 100.0
LOW_SHARE: Final = 0.05
VERY_LOW_SHARE: Final = 0.02
LOW_FOR_S: Final = 5.0
STALLED_SHARE: Final = 0.1
"""Of the time: no task at all could run, since all waited for memory."""

_MIB: Final = float(1 << 20)
_NO_PROBES: Final = "for how long its threads waited for those pages: no probe sees page faults here (`aie-agent check` says why)"


def page_faults(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `page_faults` at `now_s`, or None: while requests run, at least `FAULTS_PER_SECOND` pages a second have to come
    from the disk; where probes see what that costs, its threads also wait for at least `FAULT_THREADS` s a second."""
    store = view.store
    before_s = view.held_since_s("page_faults", engine)
    held = rising(store.scalars(MAJOR_FAULTS, engine=engine), FAULTS_PER_SECOND, WINDOW_S, now_s, before_s)
    if held is None or not store.current(RUNNING, now_s, engine=engine) or view.state(engine) == "down":
        return None
    waited = rate(live(store.scalars(WAIT_SECONDS, engine=engine, reason="page_fault"), now_s), now_s - WINDOW_S, now_s)
    if waited is not None and waited < FAULT_THREADS:
        return None
    return Finding(
        cause="page_faults",
        subject=engine,
        severity="warning",
        since_s=held.since_s,
        summary=f"engine {engine} waits for its own memory: pages of it come from the disk",
        evidence=tuple(_of_faults(held, waited, view, engine, now_s)),
        advice=(
            "Its memory does not fit, or its weights are mapped and pushed out: give it more memory (memory.max, the pod's limit),"
            " take away what else fills the page cache, or keep the weights in memory (llama.cpp --mlock or --no-mmap; no swap)."
        ),
        not_visible=() if waited is not None else (_NO_PROBES,),
        runbook="docs/runbooks/page_faults.md",
    )


def _of_faults(held: Episode, waited: float | None, view: View, engine: str, now_s: float) -> Iterator[Evidence]:
    bound = limit(held, FAULTS_PER_SECOND, f"{FAULTS_PER_SECOND:g}")
    text = f"{held.mean:.0f} page faults a second needed the disk over the last {WINDOW_S:g} s ({bound})"
    yield Evidence(text=text, metric=MAJOR_FAULTS)
    if waited is not None:
        text = f"its threads waited for them {waited:.2f} s a second in total (limit {FAULT_THREADS:g})"
        yield Evidence(text=text, metric=WAIT_SECONDS)
    swapped = view.store.current(SWAPPED, now_s, engine=engine)
    if swapped:
        yield Evidence(text=f"{swapped / _MIB:.0f} MiB of it are in swap", metric=SWAPPED)


def swapping(view: View, now_s: float) -> list[Finding]:
    """The finding `swapping` of the host at `now_s`, or nothing: at least `SWAP_PAGES_PER_SECOND` pages a second are read back from
    swap. What goes out and is not missed is no harm, and not reported."""
    held = rising(view.store.scalars(SWAP_IN), SWAP_PAGES_PER_SECOND, WINDOW_S, now_s, view.held_since_s("swapping", HOST))
    if held is None:
        return []
    bound = limit(held, SWAP_PAGES_PER_SECOND, f"{SWAP_PAGES_PER_SECOND:g}")
    text = f"{held.mean:.0f} pages a second came back from swap over the last {WINDOW_S:g} s ({bound})"
    return [
        Finding(
            cause="swapping",
            subject=HOST,
            device=CPU_DEVICE,
            severity="warning",
            since_s=held.since_s,
            summary="the host swaps: memory that is in use is read back from the disk",
            evidence=(Evidence(text=text, metric=SWAP_IN), *_swapped(view, now_s)),
            advice=(
                "See who uses the memory (`top`, sorted by RES), and stop or move it. An engine should never swap: `swapoff -a`, or"
                " memory.swap.max=0 (systemd's MemorySwapMax=0) for its control group, with memory that suffices."
            ),
            runbook="docs/runbooks/swapping.md",
        )
    ]


def _swapped(view: View, now_s: float) -> Iterator[Evidence]:
    for engine in view.engines:
        swapped = view.store.current(SWAPPED, now_s, engine=engine)
        if swapped:
            yield Evidence(text=f"{swapped / _MIB:.0f} MiB of engine {engine} are in swap", metric=SWAPPED)


def host_memory_low(view: View, now_s: float) -> list[Finding]:
    """The finding `host_memory_low` at `now_s`, or nothing: less than `LOW_SHARE` of the memory is available for `LOW_FOR_S`, or
    all tasks together stand still for memory for `STALLED_SHARE` of the time. Critical below `VERY_LOW_SHARE`, and when they stand
    still: the kernel kills next."""
    store = view.store
    total = store.current(TOTAL, now_s)
    levels = live(store.scalars(AVAILABLE), now_s)
    since_s = level_since(levels[0], lambda value: value < LOW_SHARE * total, LOW_FOR_S, now_s) if total and levels else None
    # What the level was held for says nothing of the stalls.
    was_low = bool(total and levels) and any(value < LOW_SHARE * (total or 0.0) for _, value in levels[0].ring.since(0.0))
    before_s = None if was_low else view.held_since_s("host_memory_low", HOST)
    stalled = rising(store.scalars(PRESSURE, resource="memory", kind="full"), STALLED_SHARE, WINDOW_S, now_s, before_s)
    if since_s is None and stalled is None:
        return []
    evidence = []
    severity: Severity = "critical" if stalled is not None else "warning"
    if since_s is not None and total:
        share = levels[0].value / total
        severity = "critical" if share < VERY_LOW_SHARE else severity
        size = f"{levels[0].value / _MIB:.0f} MiB of {total / _MIB:.0f} MiB"
        evidence.append(Evidence(text=f"{size} are available, {share:.1%} (limit {LOW_SHARE:.0%})", metric=AVAILABLE))
    if stalled is not None:
        bound = limit(stalled, STALLED_SHARE, f"{STALLED_SHARE:.0%}")
        text = f"all tasks stood still for memory {stalled.mean:.0%} of the last {WINDOW_S:g} s ({bound})"
        evidence.append(Evidence(text=text, metric=PRESSURE))
    return [
        Finding(
            cause="host_memory_low",
            subject=HOST,
            device=CPU_DEVICE,
            severity=severity,
            since_s=min(each for each in (since_s, stalled.since_s if stalled else None) if each is not None),
            summary="the host is nearly out of memory: the kernel ends a process next",
            evidence=tuple(evidence),
            advice=(
                "See who uses it (`top`, sorted by RES; a leak is a finding of its own), and stop or move it. Let the engine take"
                " less (vLLM --cpu-offload-gb, pinned buffers, fewer workers). A lower oom_score_adj keeps the engine from being"
                " the one that is ended."
            ),
            runbook="docs/runbooks/host_memory_low.md",
        )
    ]
