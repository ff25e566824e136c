"""Disks that an engine waits for while it serves.

With probes it is exact whose threads wait. Without them only the host's pressure is known, which does not say for whom: a backup on
a host whose engines have all in memory stalls nothing but itself, and is told as information, never as a warning. So the rate of
false warnings is 0 as long as an engine that serves does not read or write files on purpose; one that offloads its KV cache to a
disk does, and then waits by design.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.explain import HOST
from aie_agent.analysis.findings import View
from aie_agent.analysis.lock_contention import WAIT_SECONDS, Episode
from aie_agent.analysis.sustained import limit, live, rising
from aie_agent.analysis.window import quantiles_of
from aie_agent.progress import RUNNING
from aie_agent.series import HistogramSeries
from aie_telemetry.api import Evidence, Finding

PRESSURE: Final = "aie_host_pressure_seconds_total"
BLOCK_IO: Final = "aie_host_block_io_seconds"

WINDOW_S: Final = 10.0
WAITING_THREADS: Final = 0.2
STALLED_SHARE: Final = 0.3
"""Of the time: no task at all could run, since all that were not idle waited for a disk."""
SLOW_P99_S: Final = 0.1
"""A request that takes longer is named as evidence: NVMe takes 0.1 ms, a disk that turns 10 ms."""

_ADVICE: Final = (
    "See who reads and writes (`iotop -o`, `cat /proc/pressure/io`) and move it away or hold it back (io.max, io.weight). Logs,"
    " checkpoints and a KV cache on a disk belong on one of their own; weights belong in memory."
)
_WHOSE: Final = "whose threads wait: no probe sees disk waits here (`aie-agent check` says why)"


def disk_stall(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `disk_stall` of an engine at `now_s`, or None: while requests run, at least `WAITING_THREADS` of its threads wait
    for a disk, on average, as probes see them."""
    waits, before_s = view.store.scalars(WAIT_SECONDS, engine=engine, reason="disk"), view.held_since_s("disk_stall", engine)
    held = rising(waits, WAITING_THREADS, WINDOW_S, now_s, before_s)
    if held is None or not view.store.current(RUNNING, now_s, engine=engine) or view.state(engine) == "down":
        return None
    text = f"its threads waited for disks {held.mean:.2f} s a second in total over the last {WINDOW_S:g} s"
    return Finding(
        cause="disk_stall",
        subject=engine,
        severity="warning",
        since_s=held.since_s,
        summary=f"engine {engine} waits for a disk while it serves",
        evidence=(
            Evidence(text=f"{text} ({limit(held, WAITING_THREADS, f'{WAITING_THREADS:g}')})", metric=WAIT_SECONDS),
            *_pressure(_stalled(view, now_s)),
            *_devices(view, now_s),
        ),
        advice=_ADVICE,
        runbook="docs/runbooks/disk_stall.md",
    )


def disk_stall_of_host(view: View, now_s: float) -> list[Finding]:
    """The finding `disk_stall` of the host at `now_s`, or nothing: where no probe sees who waits, requests run, and all tasks
    together stand still for a disk for `STALLED_SHARE` of the time."""
    store = view.store
    held = _stalled(view, now_s, view.held_since_s("disk_stall", HOST))
    serves = any(store.current(RUNNING, now_s, engine=engine) for engine in view.engines)
    seen = any(dict(series.tags).get("reason") == "disk" for series in live(store.scalars(WAIT_SECONDS), now_s))
    if held is None or not serves or seen:
        return []
    return [
        Finding(
            cause="disk_stall",
            subject=HOST,
            severity="info",
            since_s=held.since_s,
            summary="the host waits for its disks while engines serve",
            evidence=(*_pressure(held), *_devices(view, now_s)),
            advice=_ADVICE,
            not_visible=(_WHOSE,),
            runbook="docs/runbooks/disk_stall.md",
        )
    ]


def _stalled(view: View, now_s: float, held_since_s: float | None = None) -> Episode | None:
    return rising(view.store.scalars(PRESSURE, resource="io", kind="full"), STALLED_SHARE, WINDOW_S, now_s, held_since_s)


def _pressure(held: Episode | None) -> Iterator[Evidence]:
    if held is not None:
        bound = limit(held, STALLED_SHARE, f"{STALLED_SHARE:.0%}")
        text = f"all tasks stood still for disks {held.mean:.0%} of the last {WINDOW_S:g} s ({bound})"
        yield Evidence(text=text, metric=PRESSURE)


def _devices(view: View, now_s: float) -> Iterator[Evidence]:
    """The disks that are slow, by the time of their requests."""
    by_device: dict[str, list[HistogramSeries]] = {}
    for series in view.store.histograms(BLOCK_IO):
        if series.valid_until_s >= now_s:
            by_device.setdefault(dict(series.tags).get("device", ""), []).append(series)
    for device, all_series in sorted(by_device.items()):
        (p99_s,) = quantiles_of(all_series, now_s - WINDOW_S, (0.99,))
        if p99_s is not None and p99_s >= SLOW_P99_S:
            text = f"one of 100 requests to {device} took longer than {p99_s:.2f} s (limit {SLOW_P99_S:g} s)"
            yield Evidence(text=text, metric=BLOCK_IO)
