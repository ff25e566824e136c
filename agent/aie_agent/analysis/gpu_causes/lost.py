"""A GPU that does not answer: lost from the bus, hung, or in need of a reset; and the XIDs by which its driver says what happened.

Both are exact: nothing is estimated, and there is no false alarm as long as the driver tells the truth. A GPU that was given back
on purpose (SIGUSR1), or of which nobody can be asked since the driver cannot be used at all, is not lost: the latter is
`agent_blind`. Of those that the configuration expects and nobody ever saw (no row is theirs), how many are missing is told once;
false alarms of that: `gpu.expected` set too high. XIDs are told for `RECENT_S`, also those that came while no agent ran: what they
mean and what to do is NVIDIA's catalogue (`aie_telemetry/xids.py`). Those of which an application is to blame are information: the
GPU is well.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from aie_agent.analysis.findings import View
from aie_agent.analysis.gpu_causes.naming import subject, title
from aie_agent.analysis.sustained import level_since, live
from aie_telemetry.api import Evidence, Finding, Gpu, Severity
from aie_telemetry.gpu_states import NOT_UP
from aie_telemetry.xids import BY_NUMBER

GPUS: Final = "gpus"
"""The subject of those that nobody has seen: no engine is known to be on them, so it explains none's trouble."""
MISSING_FOR_S: Final = 60.0
"""A driver that is being loaded has one GPU after the other."""
PRESENT: Final = "aie_gpu_present"

XIDS: Final = "aie_gpu_xid_errors_total"
LAST: Final = "aie_gpu_xid_last_timestamp_seconds"
RECENT_S: Final = 600.0
"""For so long an XID is news."""

XID_FAMILIES: Final = ("application", "memory", "link", "gpu", "driver", "report", "unknown")
"""Who is to blame, as the catalogue has it, and what it does not have."""

_NOT_LOST: Final = ("released", "closed")
_RANK: Final[dict[Severity, int]] = {"critical": 0, "warning": 1, "info": 2}


def gpu_lost(view: View, now_s: float) -> list[Finding]:
    """The finding `gpu_lost` for each GPU that should be there and does not answer, and one for those that were never seen."""
    lost = [_lost(gpu, now_s) for gpu in view.gpus() if not gpu.up and gpu.reason not in _NOT_LOST]
    return [*lost, *_missing(view, now_s)]


def _missing(view: View, now_s: float) -> Iterator[Finding]:
    """What AieGpuMissing tells: fewer than are expected, besides those that are known to be down. Nothing where the driver could
    not be used since the agent started, as on a host where it is loaded late: which GPUs there are is not known."""
    if not view.gpus() and any(source.name == "nvml" and source.reason is not None for source in view.sources):
        return
    expected, down = view.store.current("aie_gpu_expected", now_s) or 0.0, sum(not gpu.up for gpu in view.gpus())
    for series in live(view.store.scalars(PRESENT), now_s):
        missing = expected - down - series.value
        # How many were down at a look before is not known: one that falls now was there, and makes nobody less missing.
        since_s = level_since(series, lambda present: present < expected, MISSING_FOR_S, now_s) if missing > 0 else None
        if since_s is None:
            continue
        held = f"for {now_s - since_s:.0f} s (limit {MISSING_FOR_S:g} s)"
        yield Finding(
            cause="gpu_lost",
            subject=GPUS,
            severity="critical",
            since_s=since_s,
            summary=f"{missing:.0f} of {expected:.0f} expected GPUs {'is' if missing == 1 else 'are'} missing",
            evidence=(Evidence(text=f"{series.value:.0f} GPUs answer and {down} are known to be down, {held}", metric=PRESENT),),
            advice=(
                "See whether the bus has all of them (`lspci | grep -i nvidia`); reboot; then see to seating, power and BIOS. Where"
                " fewer are meant to be there, set gpu.expected."
            ),
            runbook="docs/runbooks/gpu_lost.md",
        )


def _lost(gpu: Gpu, now_s: float) -> Finding:
    word = NOT_UP.get(gpu.reason or "lost") or NOT_UP["error"]._replace(words=gpu.reason or "")
    since_s = now_s if gpu.not_up_since_s is None else gpu.not_up_since_s
    text = f"it has not answered for {now_s - since_s:.0f} s (limit 0 s): {gpu.reason or 'lost'}"
    return Finding(
        cause="gpu_lost",
        subject=subject(gpu),
        severity=word.severity,
        since_s=since_s,
        summary=f"{title(gpu)} is lost: {word.words}",
        evidence=(Evidence(text=text, metric="aie_gpu_up"), *_seen(gpu)),
        advice=word.do,
        runbook="docs/runbooks/gpu_lost.md",
    )


def _seen(gpu: Gpu) -> Iterator[Evidence]:
    for number, times in gpu.xids.items():
        known = BY_NUMBER.get(int(number))
        meaning = f": {known.meaning}" if known is not None else ""
        yield Evidence(text=f"XID {number} came {_times(times)}{meaning}", metric=XIDS)


class _Came(NamedTuple):
    """One XID of one GPU, lately."""

    number: int
    last_s: float
    times: float

    @property
    def severity(self) -> Severity:
        known = BY_NUMBER.get(self.number)
        return "warning" if known is None else known.severity


def gpu_xids(view: View, now_s: float) -> list[Finding]:
    """A finding `gpu_xid_FAMILY` for each GPU and family (`XID_FAMILIES`) of the XIDs of the last `RECENT_S`."""
    titles = {str(gpu.index): title(gpu) for gpu in view.gpus()}
    families: dict[tuple[str, str], list[_Came]] = {}
    for gpu, came in _recent(view, now_s):
        known = BY_NUMBER.get(came.number)
        families.setdefault((gpu, "unknown" if known is None else known.blame), []).append(came)
    return [
        _of_family(gpu, titles.get(gpu, f"GPU {gpu}"), family, sorted(came, key=_worst_first), now_s)
        for (gpu, family), came in families.items()
    ]


def _worst_first(came: _Came) -> tuple[int, float]:
    return _RANK[came.severity], -came.last_s


def _recent(view: View, now_s: float) -> Iterator[tuple[str, _Came]]:
    """What came lately, by what the GPU is called in the metrics; `times` is 0 where it came before the agent started."""
    for series in live(view.store.scalars(LAST), now_s):
        tags = dict(series.tags)
        if now_s - series.value <= RECENT_S:
            times = view.store.current(XIDS, now_s, gpu=tags["gpu"], xid=tags["xid"])
            yield tags["gpu"], _Came(int(tags["xid"]), series.value, times or 0.0)


def _of_family(gpu: str, name: str, family: str, came: list[_Came], now_s: float) -> Finding:
    worst = came[0]
    known = BY_NUMBER.get(worst.number)
    return Finding(
        cause=f"gpu_xid_{family}",
        subject=f"gpu{gpu}" if gpu.isdecimal() else f"gpu {gpu}",
        severity=worst.severity,
        since_s=min(each.last_s for each in came),
        summary=f"{name}: XID {worst.number}: {known.meaning if known else 'an error of the GPU or its driver'}",
        evidence=tuple(
            Evidence(text=f"XID {each.number} came {_since(each, now_s)} (limit 0)", metric=XIDS if each.times else LAST)
            for each in came
        ),
        advice=known.action if known else "Look it up in NVIDIA's XID catalogue.",
        runbook=f"docs/runbooks/gpu_xid_{family}.md",
    )


def _since(came: _Came, now_s: float) -> str:
    if came.times:
        return f"{_times(came.times)} since the agent started"
    return f"before the agent started, {now_s - came.last_s:.0f} s ago"


def _times(number: float) -> str:
    return "once" if number == 1 else f"{number:.0f} times"
