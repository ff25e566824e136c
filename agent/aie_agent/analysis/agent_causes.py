"""The agent sees less than it should: a source that does not work, input that it dropped, probes that it may not set.

Exact: each holds while the agent itself says so. A source must be down for `DOWN_FOR_S`, so that one failed look is none. The page
of an engine that was never read is information for `LOADS_S`, since an engine that loads serves none yet; where its oldest process
has run for as long, it has loaded. Information as well is that of one whose processes all began after it was read last: it was
restarted, and loads again. A page that takes too long is read all the same, and not at each look. One that dies while it loads
begins again and again: so that time counts from when its page fell silent, or from when it had processes again after minutes
without. What is switched off in the configuration is not blind. False alarms: an engine that loads for longer than that, or that is
configured and does not run, or is started several times until it serves, together for longer; a client that sends broken StatsD
lines is told as drops, as information, for `DROPS_S`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from aie_agent.analysis.findings import SourceHealth, View
from aie_agent.analysis.sustained import live
from aie_agent.analysis.window import increase
from aie_agent.analysis.words import sentence
from aie_agent.store import SUPERSEDED
from aie_telemetry.api import Evidence, Finding
from aie_telemetry.durations import in_words

CAUSE: Final = "agent_blind"
AGENT: Final = "agent"
PROBES: Final = "probes"
DOWN_FOR_S: Final = 5.0
DROPS_S: Final = 60.0
LOADS_S: Final = 1800.0
"""For so long an engine that was restarted may load: hundreds of gigabytes over a network take minutes."""
STARTED: Final = "aie_process_start_time_seconds"

_PAGE: Final = "scrape:"
_ROUNDED_S: Final = 1.0  # when processes began is told to the second
_RUNBOOK: Final = "docs/runbooks/agent_blind.md"
_LOADING: Final = "An engine serves no page while it loads its model: its own log says how far it is."
_CHECK: Final = "`aie-agent check` on that host says what cannot be seen, why, and what to do."
_DROPS: Final[dict[str, tuple[str, str]]] = {
    "aie_agent_statsd_dropped_total": ("StatsD lines refused", "reason"),
    "aie_agent_statsd_kernel_drops_total": ("StatsD packets dropped by the kernel", "socket"),
    "aie_agent_samples_refused_total": ("samples refused by the store", "reason"),
    "aie_agent_relay_dropped_total": ("packets not passed on", "reason"),
}
"""Counters of the agent that should stand still: what they count, and by what."""
_DROPPED: Final = (
    "Lines that are refused: `aie-agent parse-statsd` says what is wrong with one. Packets that the kernel dropped: send less (a"
    " lower sample rate), or raise net.core.rmem_max. No room: raise store.max_series, or see who sends so many series."
)
_EVERYTHING: Final = "ebpf"  # the set of coverage that stands for all of them
_SWITCHED_OFF: Final = "switched off"


def agent_blind(view: View, now_s: float) -> list[Finding]:
    """The findings `agent_blind`: one for each source that is down (its subject is the source, or the engine whose page it reads),
    one for drops (`agent`), and one where the host does not let the agent set probes (`probes`)."""
    return [*_sources(view, now_s), *_drops(view, now_s), *_probes(view, now_s)]


def _sources(view: View, now_s: float) -> Iterator[Finding]:
    for source in view.sources:
        since_s = source.down_since_s
        if source.reason is not None and since_s is not None and now_s - since_s >= DOWN_FOR_S and not _is_expected(source, view):
            yield _of_source(source, source.reason, since_s, view, now_s)


def _is_expected(source: SourceHealth, view: View) -> bool:
    """The page of an engine that is down cannot answer."""
    return source.name.startswith(_PAGE) and view.state(source.name.removeprefix(_PAGE)) == "down"


def _loads_for_s(source: SourceHealth, since_s: float, view: View, now_s: float) -> float | None:
    """For how long an engine has had time to load whose page was last read of processes that are gone, or never; None of any other
    source, of one that was silent for too long by then, whatever its newest process had time for, and of one whose page was never
    read that has run for too long to load."""
    engine = source.name.removeprefix(_PAGE)
    silent_s = now_s - max(since_s, view.back_since_s(engine) or 0.0)
    if engine == source.name or silent_s >= LOADS_S:
        return None
    started_s, read_s = view.store.current(STARTED, now_s, engine=engine), source.last_read_s
    if started_s is None:
        return silent_s if read_s is None else None
    serves = read_s is not None and started_s + _ROUNDED_S <= read_s
    return now_s - started_s if not serves and now_s - started_s < LOADS_S else None


def _of_source(source: SourceHealth, reason: str, since_s: float, view: View, now_s: float) -> Finding:
    is_page = source.name.startswith(_PAGE)
    engine = source.name.removeprefix(_PAGE)
    what = f"engine {engine}: its metrics page cannot be read" if is_page else f"the agent is blind for {source.name}"
    loads_s = _loads_for_s(source, since_s, view, now_s)
    text = f"source {source.name} has been down for {now_s - since_s:.0f} s (limit {DOWN_FOR_S:g} s): {reason}"
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning" if loads_s is None else "info",
        since_s=since_s,
        summary=f"{what}: {reason}",
        evidence=(Evidence(text=text, metric="aie_agent_source_up"), *_of_start(source, loads_s)),
        advice=_CHECK if loads_s is None else f"{_LOADING} {_CHECK}",
        runbook=_RUNBOOK,
    )


def _of_start(source: SourceHealth, loads_s: float | None) -> Iterator[Evidence]:
    if loads_s is None:
        return
    began = (
        ("it was never read", "aie_agent_source_up")
        if source.last_read_s is None
        else (f"its processes started {in_words(loads_s)} ago, after it was last read", STARTED)
    )
    yield Evidence(text=f"{began[0]}: it may load (limit {in_words(LOADS_S)})", metric=began[1])


def _drops(view: View, now_s: float) -> Iterator[Finding]:
    start_s = now_s - DROPS_S
    found = [
        Evidence(text=f"{gained[0]:.0f} {what} ({dict(series.tags).get(label, '')}) in {DROPS_S:g} s (limit 0)", metric=metric)
        for metric, (what, label) in _DROPS.items()
        for series in live(view.store.scalars(metric), now_s)
        if SUPERSEDED not in dict(series.tags).values()
        if (gained := increase(series, start_s, now_s)) is not None and gained[0] > 0
    ]
    if found:
        yield Finding(
            cause=CAUSE,
            subject=AGENT,
            severity="info",
            since_s=now_s,
            summary="the agent dropped input: what it shows is too low",
            evidence=tuple(found),
            advice=_DROPPED,
            runbook=_RUNBOOK,
        )


def _probes(view: View, now_s: float) -> Iterator[Finding]:
    """Told once for all engines: it is the host that does not allow them."""
    for engine in view.engines:
        for each in view.coverage(engine):
            if each.set == _EVERYTHING and each.state == "off" and not each.reason.startswith(_SWITCHED_OFF):
                yield Finding(
                    cause=CAUSE,
                    subject=PROBES,
                    severity="info",
                    since_s=now_s,
                    summary="the agent cannot set probes: locks, waits and CUDA calls are not seen",
                    evidence=(Evidence(text=f"probes are off: {each.reason}", metric="aie_agent_probes_attached"),),
                    advice=sentence(each.remedy) or _CHECK,
                    runbook=_RUNBOOK,
                )
                return
