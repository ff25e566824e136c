"""How requests end badly: with errors and timeouts (`error_rate`), refused because more come than before (`client_flood`), or
refused for another reason (`requests_rejected`).

The rules count requests, and estimate nothing. Where little comes, a share says little: so `LEAST` of them must have ended badly,
within the same window. One client that sends five broken requests in a quiet minute is `requests_rejected`, and "info": that much
is true. Clients that leave (cancelled) never count. `error_rate` is wrong where an engine counts what a client did wrong among
its errors; the map of pages counts HTTP 4xx as rejected. There is no other false alarm, at any length of time.

What is found goes on while half of a limit is reached; where it is no want of places also while that is so of the last four
minutes, and any ended so in the last. So a share that stays near a limit is one finding (nine simulated half hours at the limit
itself: at most two each; 22 in nine of 0.4 requests a second of which a tenth fails). What is mended is gone a minute after the
last that failed; after two, where a tenth of the last four minutes did: most of few, or all of many for half a minute. Half of a
limit keeps it and makes it no graver: critical are `CRITICAL_LEAST` that failed in a window, whichever, that reaches its whole
limit (none in 27 half hours of 0.4, 0.5 and 1 request a second of which 10, 20 and 20 % fail).

A flood is told from bad requests by the engine's own count of what it refused for want of a place (aie-engine, vLLM, TGI, Triton).
Where a page does not tell why it refuses, a queue of at least `FULL_QUEUE` at most looks is taken to be the reason: a client that
sends broken requests while such a queue stands is then called a flood, and `not_visible` says so.

It is a flood only where more come than before it began (`arrivals`), and the engine serves no fewer: requests that are refused
while as many come as ever are those of an engine that became slow, or is too small; they are evidence of `queue_saturation`, as are
those of which nobody knows whether more come. So are those of clients that ask again at once because they are refused: then more
come as well, but fewer are served. Where as many are served, and no more came before the first refusal, or that is not known,
`not_visible` says that the same requests may be asked again. An engine that was next to idle before may as well be slow: that is no
flood. What was a flood stays one for as long as more come than before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.engine_causes.arrivals import FELL, GREW, Arrivals, arrivals
from aie_agent.analysis.engine_causes.readings import REQUESTS, RUNNING, WAITING, has_moved, risen
from aie_agent.analysis.findings import View
from aie_agent.analysis.sustained import ease, limit_of
from aie_telemetry.api import Evidence, Finding, Severity

ERRORS: Final = "error_rate"
FLOOD: Final = "client_flood"
REJECTED: Final = "requests_rejected"
FULL: Final = "aie_engine_requests_refused_full_total"
LEAST: Final = 5
CRITICAL_SHARE: Final = 0.5
CRITICAL_LEAST: Final = 10
"""Five of nine fail by chance, where few come."""
QUEUED_SHARE: Final = 0.5
FULL_QUEUE: Final = 8
"""Where nobody tells why requests are refused: with so many waiting at so much of the window's looks, the queue is why."""

_ENDS: Final = ("ok", "error", "timeout")
_REFUSED: Final = ("rejected",)


class _Window(NamedTuple):
    """So many seconds, the share of requests that must have ended badly in it, and in which last part of it any must have."""

    seconds: float
    share: float
    lately_s: float | None = None


ERROR_WINDOWS: Final = (_Window(10.0, 0.2), _Window(60.0, 0.05), _Window(240.0, 0.2, 120.0))
"""The first that holds counts: a sudden failure, some of many, and most of few. The last does not ask how many came, and holds
until two minutes after the last that failed."""
REJECTED_WINDOWS: Final = (_Window(10.0, 0.1), _Window(60.0, 0.1))
ERRORS_GO_ON: Final = _Window(240.0, 0.05, 60.0)
REFUSALS_GO_ON: Final = _Window(240.0, 0.1, 60.0)
"""Looked at as well where it is found already: few come at random, and a minute may have half of what the one before had."""
_GO_ON: Final = (*REJECTED_WINDOWS, REFUSALS_GO_ON)


class _Bad(NamedTuple):
    """What ended badly, of how many, in which window; and what the limits are multiplied by (`ease`)."""

    counts: dict[str, float]
    ended: float
    window: _Window
    eased: float

    @property
    def bad(self) -> float:
        return sum(self.counts.values())

    @property
    def share(self) -> float:
        return self.bad / self.ended

    @property
    def is_enough(self) -> bool:
        """Whether its limits are reached."""
        return self.bad >= self.eased * LEAST and self.share >= self.eased * self.window.share

    @property
    def limit(self) -> str:
        """In words."""
        return limit_of(self._replace(eased=1.0).is_enough, f"{self.window.share:.0%} and {LEAST} requests")


def error_rate(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `error_rate` at `now_s`, or None. Critical where half of all fail, and enough of them by the limits that it
    begins with: three of five requests are enough for it to go on, and too few to page anybody."""
    bad, eased = ("error", "timeout"), ease(view, ERRORS, engine)
    found = _bad(view, engine, bad, _ENDS, ERROR_WINDOWS, 1.0, now_s)
    if found is None and eased < 1.0:
        found = _bad(view, engine, bad, _ENDS, (*ERROR_WINDOWS, ERRORS_GO_ON), eased, now_s)
    if found is None:
        return None
    gravest = _gravest(found, (_bad(view, engine, bad, _ENDS, (window,), 1.0, now_s) for window in ERROR_WINDOWS), CRITICAL_LEAST)
    is_critical, found = gravest is not None, gravest or found
    kinds = " and ".join(f"{count:.0f} {kind}s" for kind, count in found.counts.items() if count)
    text = f"of {found.ended:.0f} requests that ended in the last {found.window.seconds:g} s {kinds} ({found.share:.0%}"
    severity: Severity = "critical" if is_critical else "warning"
    advice = (
        "Timeouts: requests take longer than their deadline; see what else is found of this engine, or allow more time."
        if found.counts["timeout"] > found.counts["error"]
        else "The engine's log says why; look for the first error, not the last. See what changed just before."
    )
    return Finding(
        cause=ERRORS,
        subject=engine,
        severity=severity,
        since_s=now_s - found.window.seconds,
        summary=f"engine {engine}: {found.share:.0%} of its requests fail",
        evidence=(Evidence(text=f"{text}, {found.limit})", metric=REQUESTS),),
        advice=advice,
    )


def _gravest(found: _Bad, windows: Iterable[_Bad | None], least: float) -> _Bad | None:
    """The first window that reaches its whole limit in which half and more, and so many, ended badly: where little comes a short
    one never has so many. None, too, where what is found only goes on."""
    if found.eased < 1.0:
        return None
    return next((each for each in windows if each is not None and each.share >= CRITICAL_SHARE and each.bad >= least), None)


class Overload(NamedTuple):
    """Requests are refused for want of a place: how many, what came and was served before and since, since when, what is not
    known, and whether it is because more come."""

    share: float
    arrivals: Arrivals
    evidence: tuple[Evidence, ...]
    not_visible: tuple[str, ...]
    is_flood: bool


def client_flood(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `client_flood` at `now_s`, or None: requests are refused because more come than before."""
    found = overload(view, engine, ease(view, FLOOD, engine), now_s)
    if found is None or not found.is_flood:
        return None
    waiting, running = (view.store.current(metric, now_s, engine=engine) for metric in (WAITING, RUNNING))
    beside = "" if running is None else f" beside {running:.0f} that run"
    queue = () if waiting is None else (Evidence(text=f"{waiting:.0f} requests wait now{beside}", metric=WAITING),)
    return Finding(
        cause=FLOOD,
        subject=engine,
        severity="warning",
        since_s=found.arrivals.since_s,
        summary=f"engine {engine}: more requests come than before and than it takes in, {found.share:.0%} are refused",
        evidence=(*found.evidence[:2], *queue, *found.evidence[2:]),
        advice="Find the client (the proxy's or the engine's access log) and limit it there; make clients wait as Retry-After says."
        " If all of it is wanted, add replicas; a longer queue only makes everybody wait.",
        not_visible=found.not_visible,
    )


def overload(view: View, engine: str, eased: float, now_s: float) -> Overload | None:
    """What is refused for want of a place, if it is enough; `eased` is what its limits are multiplied by."""
    found = _rejected(view, engine, REJECTED_WINDOWS, eased, now_s, for_room=True)
    if found is None:
        return None
    tells_why = _tells_why(view, engine, now_s)
    refused = (
        view.store.scalars(FULL, engine=engine) if tells_why else view.store.scalars(REQUESTS, engine=engine, outcome="rejected")
    )
    came = arrivals(view, engine, refused, now_s)
    is_flood = came.goes_on if view.held_since_s(FLOOD, engine) is not None else came.grew and not came.was_idle
    hidden = [] if tells_why else ["why requests are refused: its page does not tell; a long queue stands"]
    if not came.is_known:
        hidden.append("whether more come than before, or it became slower: what came before it refused any is not known")
    elif came.was_idle and not is_flood:
        hidden.append("whether it is slower than it was: before, it was next to idle")
    elif is_flood and not came.came_first:
        before = "no more came before it refused any" if came.filling.seconds > 0 else "what came just before is not known"
        hidden.append(f"whether these are new requests, or the same asked again: {before}")
    evidence = (_of_refused(found), *_of_arrivals(came))
    return Overload(found.share, came, evidence, tuple(hidden), is_flood and not came.fell)


def _of_arrivals(came: Arrivals) -> Iterator[Evidence]:
    for words, now, before, metric, limit in (
        ("came", came.came, came.came_before, came.metric, f"a flood is {GREW:g} times as many, beyond chance"),
        ("were served", came.served, came.served_before, REQUESTS, f"at most {FELL:.0%} of that is fewer, beyond chance"),
    ):
        if now.seconds > 0:
            known = f"; {before.rate:.1f} in the {before.seconds:.0f} s known before that ({limit})" if came.is_known else ""
            yield Evidence(text=f"{now.rate:.1f} requests a second {words} since it refuses some{known}", metric=metric)


def requests_rejected(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `requests_rejected` at `now_s`, or None: requests are refused, and not for want of room."""
    eased = ease(view, REJECTED, engine)
    found = _rejected(view, engine, REJECTED_WINDOWS if eased == 1.0 else _GO_ON, eased, now_s, for_room=False)
    if found is None:
        return None
    whole = (_rejected(view, engine, (window,), 1.0, now_s, for_room=False) for window in REJECTED_WINDOWS)
    gravest = _gravest(found._replace(eased=1.0), whole, 4 * LEAST)
    found = gravest or found
    return Finding(
        cause=REJECTED,
        subject=engine,
        severity="info" if gravest is None else "warning",
        since_s=now_s - found.window.seconds,
        summary=f"engine {engine}: {found.share:.0%} of the requests that come are refused, and not for want of a place",
        evidence=(_of_refused(found),),
        advice="Most likely clients ask for what it does not give (another model's name, a prompt that is too long, malformed"
        " JSON): the engine's access log shows the status and who it is. See whether model, version or limits changed just before.",
    )


def _of_refused(found: _Bad) -> Evidence:
    text = f"of {found.ended:.0f} requests that ended in the last {found.window.seconds:g} s {found.bad:.0f} were refused"
    return Evidence(text=f"{text} ({found.share:.0%}, {found.limit})", metric=REQUESTS)


def _rejected(view: View, engine: str, windows: Sequence[_Window], eased: float, now_s: float, *, for_room: bool) -> _Bad | None:
    """The first window in which enough were refused for want of a place, or for another reason."""
    if not _tells_why(view, engine, now_s):
        found = _bad(view, engine, _REFUSED, (*_ENDS, *_REFUSED), windows, eased, now_s)
        return found if found is not None and _queue_is_long(view, engine, found, now_s) == for_room else None
    for window in windows:
        found = _bad(view, engine, _REFUSED, (*_ENDS, *_REFUSED), (window,), eased, now_s)
        if found is not None:
            full = min(risen(view, engine, FULL, now_s - window.seconds, now_s) or 0.0, found.bad)
            found = found._replace(counts={"rejected": full if for_room else found.bad - full})
            if found.is_enough and (window.lately_s is None or _refused_otherwise(view, engine, now_s - window.lately_s, now_s)):
                return found
    return None


def _refused_otherwise(view: View, engine: str, start_s: float, now_s: float) -> bool:
    """Whether any was refused since then that was not for want of a place."""
    refused = risen(view, engine, REQUESTS, start_s, now_s, outcome="rejected") or 0.0
    return refused > (risen(view, engine, FULL, start_s, now_s) or 0.0)


def _tells_why(view: View, engine: str, now_s: float) -> bool:
    return any(series.valid_until_s >= now_s for series in view.store.scalars(FULL, engine=engine))


def _bad(
    view: View, engine: str, bad: Sequence[str], ends: Sequence[str], windows: Sequence[_Window], eased: float, now_s: float
) -> _Bad | None:
    """The first window in which enough requests ended badly; None where there is none, or where nobody says how they end well."""
    longest_s = max(window.seconds for window in windows)
    if not any(has_moved(view, engine, REQUESTS, now_s - longest_s, outcome=end) for end in bad):
        return None  # as nearly always
    for window in windows:
        counts = {end: risen(view, engine, REQUESTS, now_s - window.seconds, now_s, outcome=end) for end in ends}
        if counts["ok"] is None:
            return None
        found = _Bad({end: counts[end] or 0.0 for end in bad}, sum(count or 0.0 for count in counts.values()), window, eased)
        if found.is_enough and (window.lately_s is None or _any_since(view, engine, bad, now_s - window.lately_s, now_s)):
            return found
    return None


def _any_since(view: View, engine: str, bad: Sequence[str], start_s: float, now_s: float) -> bool:
    return any(risen(view, engine, REQUESTS, start_s, now_s, outcome=end) for end in bad)


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
