"""What is wrong with one GPU, from its own row: the same for its line, its page and the list of problems. Pure.

Each rule is exact and has no threshold of its own: on a healthy GPU none of them says a thing, however busy it is. (A GPU at
its power limit is a GPU at work, and a link that is slow while idle is the agent's to judge.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aie_telemetry import clock_events
from aie_telemetry.api import Event, Gpu, GpuFault, GpuProcess, Severity
from aie_top import format as fmt
from aie_top import gpu_words

XID: Final = "gpu_xid"
HEAT: Final = "gpu_thermal"
_RANK: Final[dict[Severity | None, int]] = {"critical": 0, "warning": 1, "info": 2, None: 3}


class Condition(NamedTuple):
    """`severity` None: worth a word, not wrong. `detail` is what only this GPU has of it: numbers, names.

    `cause` is that of a finding of the agent for the same thing (of XIDs, what it begins with); `time_s` is when it happened or
    began, where that is known, in the time of the snapshot.
    """

    severity: Severity | None
    cause: str
    short: str
    words: str
    detail: str = ""
    do: str = ""
    time_s: float | None = None


def conditions(gpu: Gpu, recent_xids: Mapping[str, Event] | None = None, heat: Severity | None = None) -> list[Condition]:
    """Worst first; among equals in the order of the rules.

    `heat` is how bad the agent finds it that the GPU is hot, where it does: by the mean of seconds, and not by one look.

    `recent_xids` are what the agent told of lately, by number. Counts of XIDs never fall, and an error of last week is no alarm:
    what is not among them is a note.
    """
    xids = list(_xids(gpu, recent_xids or {}))
    found = [*(xids if gpu.up else _not_up(gpu, xids)), *(one for rule in _RULES for one in rule(gpu))]
    if heat is not None:
        found = [one._replace(severity=heat) if one.cause == HEAT else one for one in found]
    return sorted(found, key=lambda one: _RANK[one.severity])


def badness(found: Sequence[Condition]) -> tuple[int, int]:
    """Sorts the worst GPUs first, by their conditions: the worst one, then how many there are."""
    return (_RANK[found[0].severity], -len(found)) if found else (_RANK[None] + 1, 0)


def when(condition: Condition, now_s: float | None) -> str:
    """For 3 min, of what holds; 20 s ago, of what happened; nothing where that is not known."""
    if condition.time_s is None or now_s is None:
        return ""
    age = fmt.age(max(now_s - condition.time_s, 0.0))
    return f"{age} ago" if condition.cause == XID else f"for {age}"


def is_wrong(condition: Condition) -> bool:
    return condition.severity in ("critical", "warning")


def orphans(gpu: Gpu) -> list[GpuProcess]:
    return [one for one in gpu.processes if one.orphan]


def _not_up(gpu: Gpu, xids: Sequence[Condition]) -> Iterator[Condition]:
    """Its XIDs are why, not one more thing that is wrong. One that was given back on request is not lost."""
    word = gpu_words.not_up(gpu.reason)
    why = "; ".join(f"{one.words}, {one.detail}" for one in xids)
    cause = "gpu_released" if gpu.reason == "released" else "gpu_lost"
    yield Condition(word.severity, cause, word.short, f"{word.short}: {word.words}", why, word.do, gpu.not_up_since_s)


def _clocks(gpu: Gpu) -> Iterator[Condition]:
    """The hardware's reasons come in pairs: that for heat or brake explains the general one."""
    explained = {"hw_slowdown"} if {"hw_thermal", "hw_power_brake"} & set(gpu.clock_events) else set()
    for name in gpu.clock_events:
        if name not in explained:
            word = gpu_words.clock_event(name)
            severity = clock_events.severity_now(
                name, gpu.clock_events, gpu.sm_clock_hertz, gpu.sm_clock_max_hertz, gpu.utilization_ratio
            )
            detail = ", ".join(part for part in (_clock(gpu), _heat(gpu), _power(gpu)) if part)
            since_s = gpu.clock_events_since_s.get(name)
            yield Condition(
                severity, clock_events.FINDINGS.get(name, "gpu_slowed"), word.short, word.words, detail, word.do, since_s
            )


def _faults(gpu: Gpu) -> Iterator[Condition]:
    """What the agent found, each once. Where the row shows the same by itself, the words are those from here: they are the same for
    all GPUs that have it, and the numbers stand apart."""
    if gpu.problems and not gpu.faults:  # an agent from before faults had names: its sentences cover all of this
        yield from (Condition("warning", "gpu_fault", "see page", sentence) for sentence in gpu.problems)
        return
    seen = {one.cause: one for rule in (_memory, _orphans) for one in rule(gpu)}
    for fault in gpu.faults:
        mine = seen.pop(fault.cause, None)
        yield mine._replace(severity=fault.severity, time_s=fault.since_s) if mine is not None else _told(gpu, fault)
    yield from seen.values()


def _told(gpu: Gpu, fault: GpuFault) -> Condition:
    """In the agent's words: what is wrong (numbers that move), then what to do."""
    what, _, do = fault.text.partition(": ")
    what, _, detail = what.removesuffix(")").partition(" (") if what.endswith(")") else (what, "", "")
    short = gpu_words.FAULTS.get(fault.cause) or fault.cause.removeprefix("gpu_").replace("_", " ")
    if fault.cause == "gpu_link_width" and gpu.pcie_width is not None:
        short = f"x{gpu.pcie_width} link"
    return Condition(fault.severity, fault.cause, short, what, detail, _sentence(do), fault.since_s)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def _xids(gpu: Gpu, recent: Mapping[str, Event]) -> Iterator[Condition]:
    """The agent's own word on what to do knows more than the table here."""
    for number, times in sorted(gpu.xids.items(), key=lambda pair: (len(pair[0]), pair[0])):  # 13 before 119
        word, event = gpu_words.xid(number), recent.get(number)
        action = event.details.get("action") if event is not None else None
        yield Condition(
            word.severity if event is not None else "info",
            XID,
            word.short,
            f"{word.short}: {word.words}",
            f"seen {times_seen(times)}",
            action if isinstance(action, str) else word.do,
            event.time_s if event is not None else None,
        )


def _memory(gpu: Gpu) -> Iterator[Condition]:
    if gpu.remap_pending:
        do = "Reset the GPU at the next quiet moment."
        yield Condition("warning", "gpu_row_remap", "remap", "a memory row waits to be replaced", "", do)
    if gpu.ecc_uncorrected:
        do = "Reset the GPU at the next quiet moment; if it comes again, have the board replaced."
        detail = f"{fmt.count(gpu.ecc_uncorrected)} since the driver was loaded"
        yield Condition("warning", "gpu_ecc", "ECC", "ECC errors that could not be corrected", detail, do)


def _unified(gpu: Gpu) -> Iterator[Condition]:
    if gpu.unified_memory:
        yield Condition(None, "gpu_unified", "unified", "its memory is the host's: used and total are of the host")


def _orphans(gpu: Gpu) -> Iterator[Condition]:
    left = orphans(gpu)
    if left:
        held = [one.memory_bytes for one in left if one.memory_bytes is not None]
        size = fmt.size(sum(held)) if len(held) == len(left) else "an unknown amount"
        who = ", ".join(f"{one.tgid} {one.command}" for one in left)
        do = "Look at who started them; `kill` frees the memory, a process in state D needs a reset of the GPU."
        yield Condition("warning", "gpu_orphan", "orphan", "orphan processes hold memory", f"{size} by {who}", do)


_RULES: Final[Sequence[Callable[[Gpu], Iterator[Condition]]]] = (_clocks, _faults, _unified)


def _clock(gpu: Gpu) -> str:
    if gpu.sm_clock_hertz is None:
        return ""
    return f"SM clock {fmt.megahertz(gpu.sm_clock_hertz)} of {fmt.megahertz(gpu.sm_clock_max_hertz)} MHz"


def _heat(gpu: Gpu) -> str:
    if gpu.temperature_celsius is None:
        return ""
    limit = f" (slows down at {fmt.celsius(gpu.slowdown_celsius)})" if gpu.slowdown_celsius is not None else ""
    return f"{fmt.celsius(gpu.temperature_celsius)}{limit}"


def _power(gpu: Gpu) -> str:
    return f"{fmt.watts_of(gpu.power_watts, gpu.power_limit_watts)}" if gpu.power_watts is not None else ""


def times_seen(number: float) -> str:
    return "once" if number == 1 else f"{fmt.count(number)} times"
