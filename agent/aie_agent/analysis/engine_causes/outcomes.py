"""How requests end badly: with errors and timeouts (`error_rate`), refused because too many come (`client_flood`), or refused for
another reason (`requests_rejected`).

The rules count requests, and estimate nothing. Where little comes, a share says little: so `LEAST` of them must have ended badly,
within the same window. One client that sends five broken requests in a quiet minute is `requests_rejected`, and "info": that much
is true. Clients that leave (cancelled) never count. `error_rate` is wrong where an engine counts what a client did wrong among
its errors; the map of pages counts HTTP 4xx as rejected. There is no other false alarm, at any length of time.

A flood is told from bad requests by the engine's own count of what it refused for want of a place (aie-engine, vLLM, TGI, Triton).
Where a page does not tell why it refuses, a queue of at least `FULL_QUEUE` at most looks is taken to be the reason: a client that
sends broken requests while such a queue stands is then called a flood, and `not_visible` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.readings import REQUESTS, RUNNING, WAITING, has_moved, risen
from aie_agent.analysis.findings import View
from aie_telemetry.api import Evidence, Finding, Severity

RECEIVED: Final = "aie_engine_requests_received_total"
FULL: Final = "aie_engine_requests_refused_full_total"
LEAST: Final = 5
CRITICAL_SHARE: Final = 0.5
QUEUED_SHARE: Final = 0.5
FULL_QUEUE: Final = 8
"""Where nobody tells why requests are refused: with so many waiting at so much of the window's looks, the queue is why."""

_ENDS: Final = ("ok", "error", "timeout")
_REFUSED: Final = ("rejected",)


class _Window(NamedTuple):
    """So many seconds, and the share of requests that must have ended badly in it."""

    seconds: float
    share: float


ERROR_WINDOWS: Final = (_Window(10.0, 0.2), _Window(60.0, 0.05), _Window(240.0, 0.2))
"""The first that holds counts: a sudden failure, some of many, and most of few."""
REJECTED_WINDOWS: Final = (_Window(10.0, 0.1), _Window(60.0, 0.1))


class _Bad(NamedTuple):
    """What ended badly, of how many, in which window."""

    counts: dict[str, float]
    ended: float
    window: _Window

    @property
    def bad(self) -> float:
        return sum(self.counts.values())

    @property
    def share(self) -> float:
        return self.bad / self.ended


def error_rate(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `error_rate` at `now_s`, or None. Critical where half of all fail."""
    found = _bad(view, engine, ("error", "timeout"), _ENDS, ERROR_WINDOWS, now_s)
    if found is None:
        return None
    kinds = " and ".join(f"{count:.0f} {kind}s" for kind, count in found.counts.items() if count)
    text = f"of {found.ended:.0f} requests that ended in the last {found.window.seconds:g} s {kinds} ({found.share:.0%}"
    severity: Severity = "critical" if found.share >= CRITICAL_SHARE else "warning"
    advice = (
        "Timeouts: requests take longer than their deadline; see what else is found of this engine, or allow more time."
        if found.counts["timeout"] > found.counts["error"]
        else "The engine's log says why; look for the first error, not the last. See what changed just before."
    )
    return Finding(
        cause="error_rate",
        subject=engine,
        severity=severity,
        since_s=now_s - found.window.seconds,
        summary=f"engine {engine}: {found.share:.0%} of its requests fail",
        evidence=(Evidence(text=f"{text}, limit {found.window.share:.0%} and {LEAST} requests)", metric=REQUESTS),),
        advice=advice,
    )


def client_flood(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `client_flood` at `now_s`, or None: requests are refused because too many run and wait."""
    found = _rejected(view, engine, now_s, for_room=True)
    if found is None:
        return None
    received = risen(view, engine, RECEIVED, now_s - found.window.seconds, now_s)
    more = []
    if received is not None:
        more.append(Evidence(text=f"{received / found.window.seconds:.1f} requests a second came", metric=RECEIVED))
    waiting, running = (view.store.current(metric, now_s, engine=engine) for metric in (WAITING, RUNNING))
    if waiting is not None:
        beside = "" if running is None else f" beside {running:.0f} that run"
        more.append(Evidence(text=f"{waiting:.0f} requests wait now{beside}", metric=WAITING))
    return _refused(
        "client_flood",
        engine,
        found,
        now_s,
        "warning",
        f"engine {engine}: more requests come than it takes in, {found.share:.0%} are refused",
        more,
        "Find the client (the proxy's or the engine's access log) and limit it there; make clients wait as Retry-After says. If all"
        " of it is wanted, add replicas; a longer queue only makes everybody wait.",
        () if _tells_why(view, engine, now_s) else ("why requests are refused: its page does not tell; a long queue stands",),
    )


def requests_rejected(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `requests_rejected` at `now_s`, or None: requests are refused, and not for want of room."""
    found = _rejected(view, engine, now_s, for_room=False)
    if found is None:
        return None
    return _refused(
        "requests_rejected",
        engine,
        found,
        now_s,
        "warning" if found.share >= CRITICAL_SHARE and found.bad >= 4 * LEAST else "info",
        f"engine {engine}: {found.share:.0%} of the requests that come are refused, and not for want of a place",
        [],
        "Most likely clients ask for what it does not give (another model's name, a prompt that is too long, malformed JSON): the"
        " engine's access log shows the status and who it is. See whether model, version or limits changed just before.",
        (),
    )


def _refused(
    cause: str,
    engine: str,
    found: _Bad,
    now_s: float,
    severity: Severity,
    summary: str,
    more: Sequence[Evidence],
    advice: str,
    not_visible: tuple[str, ...],
) -> Finding:
    text = f"of {found.ended:.0f} requests that ended in the last {found.window.seconds:g} s {found.bad:.0f} were refused"
    text = f"{text} ({found.share:.0%}, limit {found.window.share:.0%} and {LEAST} requests)"
    return Finding(
        cause=cause,
        subject=engine,
        severity=severity,
        since_s=now_s - found.window.seconds,
        summary=summary,
        evidence=(Evidence(text=text, metric=REQUESTS), *more),
        advice=advice,
        not_visible=not_visible,
    )


def _rejected(view: View, engine: str, now_s: float, *, for_room: bool) -> _Bad | None:
    """The first window in which enough were refused for want of a place, or for another reason."""
    if not _tells_why(view, engine, now_s):
        found = _bad(view, engine, _REFUSED, (*_ENDS, *_REFUSED), REJECTED_WINDOWS, now_s)
        return found if found is not None and _queue_is_long(view, engine, found, now_s) == for_room else None
    for window in REJECTED_WINDOWS:
        found = _bad(view, engine, _REFUSED, (*_ENDS, *_REFUSED), (window,), now_s)
        if found is not None:
            full = min(risen(view, engine, FULL, now_s - window.seconds, now_s) or 0.0, found.bad)
            found = found._replace(counts={"rejected": full if for_room else found.bad - full})
            if _is_enough(found):
                return found
    return None


def _tells_why(view: View, engine: str, now_s: float) -> bool:
    return any(series.valid_until_s >= now_s for series in view.store.scalars(FULL, engine=engine))


def _bad(view: View, engine: str, bad: Sequence[str], ends: Sequence[str], windows: Sequence[_Window], now_s: float) -> _Bad | None:
    """The first window in which enough requests ended badly; None where there is none, or where nobody says how they end well."""
    longest_s = max(window.seconds for window in windows)
    if not any(has_moved(view, engine, REQUESTS, now_s - longest_s, outcome=end) for end in bad):
        return None  # as nearly always
    for window in windows:
        counts = {end: risen(view, engine, REQUESTS, now_s - window.seconds, now_s, outcome=end) for end in ends}
        if counts["ok"] is None:
            return None
        found = _Bad({end: counts[end] or 0.0 for end in bad}, sum(count or 0.0 for count in counts.values()), window)
        if _is_enough(found):
            return found
    return None


def _is_enough(found: _Bad) -> bool:
    return found.bad >= LEAST and found.share >= found.window.share


def _queue_is_long(view: View, engine: str, found: _Bad, now_s: float) -> bool:
    """Whether many requests waited at most looks of the window."""
    start_s = now_s - found.window.seconds
    values = [
        value
        for series in view.store.scalars(WAITING, engine=engine)
        if series.valid_until_s >= now_s
        for _, value in series.ring.since(start_s)
    ]
    return bool(values) and sum(value >= FULL_QUEUE for value in values) >= QUEUED_SHARE * len(values)
