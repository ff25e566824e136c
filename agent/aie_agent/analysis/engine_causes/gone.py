"""An engine whose last process ended (`engine_down`), or of which the kernel killed a process for lack of memory (`oom_killed`).

`engine_down` is exact: no process of it is left. How bad that is depends on what ran in it when it was last heard (last_heard.py):
with requests it is critical, they are lost; without any it may have been stopped on purpose. One that the configuration names
should run: idle, it has `RESTART_S` to come back (a rolling restart) and is a warning from then on; it stays as grave as it is
until it is back. One that was only discovered is an info, with requests in it after `OLD_NEWS_S`. One that ended while the agent
was restarted is known from the agent's state on disk; what ran in it then is not, nor in one that was down before, or that told
nothing since it was started (a crash loop): a configured one is a warning then. Who stops an engine on purpose sees it reported:
there is no other false alarm. Restarts that take less than `STEADINESS` allows are none.

What ran long before it went is not taken to be lost: a server that is asked to end closes its page first, works off what it has,
and goes. It counts as idle, and summary and evidence say what is not known. So what is told too mildly is one that is killed as a
whole some seconds after its page closed or fell silent: above all a server whose time to work off what it had was over (30 s on
Kubernetes). Where hooks tell what runs in it, they do so until then. One whose page did not answer for `hung_after_s`, rather
than refuse, was told as hung before. And one that drains within `FRESH_S`, or of which a process goes within that time, is told as
if it had been killed.

`oom_killed` is exact where a probe saw the kill: it names the process. Where none is on, an engine that went down within `NEAR_S`
of a kill that the kernel counted is taken to be the one: another process may have been, and the engine have ended just then for a
reason of its own. Two such events within 12 s by chance come once in centuries on a host that has one of each in a month.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from aie_agent.analysis.engine_causes.readings import RUNNING, size
from aie_agent.analysis.explain import CPU_DEVICE
from aie_agent.analysis.findings import Heard, View
from aie_telemetry.api import Event, Evidence, Finding, Severity
from aie_telemetry.durations import in_words

UP: Final = "aie_engine_up"
KILLS: Final = "aie_host_oom_kills_total"
KILL: Final = "oom_kill"

OLD_NEWS_S: Final = 600.0
RESTART_S: Final = 180.0
"""For so long an engine that was idle may be away for a restart."""
TOLD_S: Final = 600.0
NEAR_S: Final = 10.0
_AFTER_S: Final = 2.0  # the host and its processes are looked at once a second each

_RESTART: Final = (
    "Restart it; its own log, and the kernel's (`dmesg`), say how it ended. If it is gone for good, the agent forgets it after an"
    " hour, one that is configured when it is taken out there."
)
_MORE_MEMORY: Final = (
    "Whoever ran out (the host, or a control group with its memory.max: `dmesg` says which) needs more memory, or less has to run"
    " there. See whether the engine's memory grew for hours before (a leak), or jumped. What must live gets a lower oom_score_adj."
)


def engine_down(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `engine_down` at `now_s`, or None."""
    since_s = view.down_since_s(engine)
    if view.state(engine) != "down" or since_s is None:
        return None
    heard = view.last_heard(engine)
    how = "stopped while idle" if heard is not None and heard.running == 0 else "is gone"
    ago = in_words(now_s - since_s)
    is_recalled = engine in view.recalled
    text = f"no process of it was found since the agent was restarted; it last had one {ago} ago" if is_recalled else ""
    evidence = [Evidence(text=text or f"it has had no process for {ago}", metric=UP)]
    if heard is not None:
        evidence.append(Evidence(text=_told(heard), metric=RUNNING))
    return Finding(
        cause="engine_down",
        subject=engine,
        severity=_severity(heard, now_s - since_s, engine in view.configured),
        since_s=since_s,
        summary=f"engine {engine} {how}: it has no process left{_of_requests(heard)}",
        evidence=tuple(evidence),
        advice=_RESTART,
        not_visible=() if heard is not None else ("whether requests ran in it: it did not say, or too long ago",),
    )


def _of_requests(heard: Heard | None) -> str:
    """What became of what ran in it, for the summary."""
    if heard is None or heard.running == 0:
        return ""
    requests = f"{heard.running:.0f} requests"
    return f", and {requests} were in it" if heard.are_lost else f"; {requests} ran in it before: they had ended, or are lost"


def _told(heard: Heard) -> str:
    text = f"{heard.running:.0f} requests ran when it was last heard, {heard.before_s:.0f} s before it went (limit 0)"
    return text if heard.is_of_end or not heard.running else f"{text}; they may have ended by then, as on an orderly shutdown"


def _severity(heard: Heard | None, down_s: float, is_configured: bool) -> Severity:
    """Of a configured engine no less than a warning, also where what ran in it is not known."""
    are_lost = heard is not None and heard.are_lost
    if is_configured:
        mild: Severity = "info" if heard is not None and down_s < RESTART_S else "warning"
        return "critical" if are_lost else mild
    return "critical" if are_lost and down_s < OLD_NEWS_S else "info"


def oom_killed(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `oom_killed` at `now_s`, or None. Critical while the engine is down."""
    seen = [event for event in view.events if event.kind == KILL and event.engine == engine and now_s - event.time_s < TOLD_S]
    since_s = max(event.time_s for event in seen) if seen else _counted_s(view, engine, now_s)
    if since_s is None:
        return None
    return Finding(
        cause="oom_killed",
        subject=engine,
        severity="critical" if view.state(engine) == "down" else "warning",
        since_s=since_s,
        summary=f"engine {engine}: the kernel killed " + ("a process of it" if seen else "it, it seems,") + " for lack of memory",
        evidence=tuple(_of_kills(seen, now_s)) if seen else (_of_count(now_s - since_s),),
        advice=_MORE_MEMORY,
        not_visible=() if seen else ("which process the kernel killed: no probe saw it (`dmesg` says)",),
        device=CPU_DEVICE,
    )


def _counted_s(view: View, engine: str, now_s: float) -> float | None:
    """When the kernel counted a kill of which no probe says whose it was, just before this engine went down."""
    down_s = view.down_since_s(engine)
    if view.state(engine) != "down" or down_s is None or now_s - down_s >= TOLD_S:
        return None
    begin_s, end_s = down_s - NEAR_S, down_s + _AFTER_S
    if any(event.kind == KILL and begin_s <= event.time_s <= end_s for event in view.events):
        return None  # of another one
    times = (
        time_s
        for series in view.store.scalars(KILLS)
        for (_, before), (time_s, value) in pairwise(series.ring.since(begin_s))
        if value > before and begin_s <= time_s <= end_s
    )
    return next(times, None)


def _of_kills(kills: list[Event], now_s: float) -> Iterator[Evidence]:
    for event in kills:
        held = {name: value for name in ("anon", "file", "shmem") if isinstance(value := event.details.get(f"{name}_bytes"), float)}
        text = f"{event.summary}, {in_words(now_s - event.time_s)} ago"
        memory = ", ".join(f"{size(value)} {name}" for name, value in held.items() if value)
        yield Evidence(text=f"{text}; it held {memory}" if memory else text, metric=KILLS)


def _of_count(ago_s: float) -> Evidence:
    text = f"the kernel counted a kill for lack of memory {in_words(ago_s)} ago, and the engine was gone within {NEAR_S:g} s"
    return Evidence(text=text, metric=KILLS)
