"""What the leak analysis has found, as findings: cause, evidence with numbers, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any, Final, NamedTuple

from msgspec import structs

from aie_agent.analysis.leaks.accounting import LOST_SHARE_PER_HOUR, Kv
from aie_agent.analysis.leaks.lines import IN_WORDS, LeakClass
from aie_agent.analysis.leaks.past_lives import PastLife
from aie_agent.analysis.leaks.probes import STEP_WORDS, Answer
from aie_agent.analysis.leaks.sentences import confidence, in_hours, rate, rule, size
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.standing import Standing, level_with
from aie_agent.analysis.leaks.watch import Found
from aie_telemetry.api import Evidence, Finding, Severity
from aie_telemetry.memory_probe import LEFT_OUT

LEAK: Final = "memory_leak"
FRAGMENTATION: Final = "memory_fragmentation"
RETENTION: Final = "memory_retention"
KV_ACCOUNTING: Final = "kv_accounting"

_KV_USED: Final = "aie_engine_kv_used_tokens"
_KV_CAPACITY: Final = "aie_engine_kv_capacity_tokens"

_ADVICE: Final[dict[LeakClass, str]] = {
    "live_tensors": (
        "Something in Python keeps tensors alive. See who asks for them (`aie-agent stacks --engine {subject} --kind memory`, as"
        " root); compare two of torch's memory snapshots (torch.cuda.memory._record_memory_history) that lie some requests apart:"
        " lists, caches without a limit, requests that were aborted. Restart it before the memory is full."
    ),
    "fragmentation": (
        "The allocator cannot reuse what is freed. PYTORCH_ALLOC_CONF=expandable_segments:True (not beside vLLM's sleep mode), or"
        " max_split_size_mb; fewer different sizes (bucketed lengths). empty_cache() at idle gives back what is whole."
    ),
    "outside_allocator": (
        "It is none of the allocator's: NCCL communicators, cuBLAS and cuDNN handles, captured graphs, IPC maps; on a CPU Python"
        " objects, native heap or mappings. On a CPU compare tracemalloc snapshots; if Python is flat, use bcc's memleak or"
        " jemalloc's profile. Retention is no leak: malloc_trim(0) gives it back."
    ),
    "python_objects": (
        "Python keeps objects alive: lists, dicts and caches without a limit, requests that were aborted. Compare two snapshots of"
        " tracemalloc some requests apart, or count gc.get_objects() by type; gc.freeze() hides what was there before it."
    ),
    "native_heap": (
        "A library keeps what it asks of malloc: bcc's memleak on the process, jemalloc's or tcmalloc's profile, or heaptrack shows"
        " who asks. Large Python objects (bytes, lists, tensors on the CPU) lie there as well."
    ),
    "anonymous_mappings": (
        "Memory is mapped past malloc and not unmapped: a communication library's registration cache (UCX_MEM_MMAP_HOOK_MODE=none,"
        " UCX_RCACHE_MAX_UNRELEASED), thread stacks, another allocator. bpftrace or strace on mmap and munmap shows who."
    ),
    "another_process": "It is not the engine: see which process it is (`nvidia-smi`), and move or restart that one.",
    "kv_accounting": (
        "Blocks of the KV cache are not given back: look at aborted and retracted requests. Restarting the engine frees them."
    ),
    "unknown": (
        "Have the engine tell what its allocator holds (aie_hooks' AllocatorHook), so that one sees where the memory goes. Restart"
        " it before the memory is full."
    ),
}
_PLAIN_ADVICE: Final = "Restart it before the memory is full."

_RETENTION_ADVICE: Final = {
    "gc_collect": (
        "It lies in reference cycles until a full collection comes, and those are rare: break the cycles (weakref, del), or call"
        " gc.collect() at idle now and then. Large objects in cycles are the worst."
    ),
    "empty_cache": (
        "torch's allocator keeps it for requests to come. Where it grows without end, sizes differ too much:"
        " PYTORCH_ALLOC_CONF=expandable_segments:True, or torch.cuda.empty_cache() at idle."
    ),
    "malloc_trim": (
        "glibc's malloc keeps what was freed, an arena for each thread: MALLOC_ARENA_MAX=2 or MALLOC_TRIM_THRESHOLD_=131072 in its"
        " environment, another malloc (jemalloc, tcmalloc), or malloc_trim(0) at idle."
    ),
}


class Rising(NamedTuple):
    """A line that rises on a device: what it is, how much memory is left there (None: not known), which modules and sizes of
    allocations grew meanwhile, in sentences, and what the engine answered last when it was asked to give back what it retains."""

    device: str
    found: Found
    free_bytes: float | None
    grew: tuple[Evidence, ...] = ()
    answer: Answer | None = None

    @property
    def time_to_full_s(self) -> float | None:
        """At the present rate."""
        return None if self.free_bytes is None else self.free_bytes / self.found.standing.slope.value

    @property
    def answer_since(self) -> Answer | None:
        """What it answered since this rises."""
        return self.answer if self.answer is not None and self.answer.time_s >= self.found.standing.since_s else None


class Retained(NamedTuple):
    """Memory that rose and came back when it was asked for, at `at_s`: on which device, of which line, since when it rose and by
    how much; how much came back in all, by which step most, how much by that and how long it took."""

    device: str
    words: str
    metric: str
    since_s: float
    at_s: float
    risen_bytes: float
    given_bytes: float
    step: str
    step_bytes: float
    step_s: float

    @classmethod
    def restored(cls, values: Sequence[Any]) -> Retained:
        """What stood in a saved state. Raises ValueError or TypeError for anything else."""
        device, words, metric, since_s, at_s, risen, given, step, step_bytes, step_s = values
        if step not in STEP_WORDS:
            raise ValueError(f"no step of a memory probe: {step!r}")
        since, at, rose, gave, by_step, took = map(float, (since_s, at_s, risen, given, step_bytes, step_s))
        return cls(str(device), str(words), str(metric), since, at, rose, gave, str(step), by_step, took)


def retained(found: Found, answer: Answer, device: str) -> Retained | None:
    """What an answer settled; None where it names no step for it."""
    spec, standing = found.line, found.standing
    best, given = answer.best_step(spec.name, device), answer.given(spec.name, device)
    if best is None or given is None:
        return None
    risen = standing.peak.size_bytes - standing.base.size_bytes
    step, step_bytes = best
    return Retained(
        device, spec.words, spec.metric, standing.since_s, answer.time_s, risen, given, step.name, step_bytes, step.seconds
    )


def retention(subject: str, what: Retained) -> Finding:
    """The finding of memory that is retained: no leak, and worth knowing where it is much."""
    step = STEP_WORDS[what.step]
    rose = f"{what.words} on {what.device} had risen by {size(what.risen_bytes)}, as a leak does"
    gave = (
        f"asked to give back what it retains, the engine gave back {size(what.given_bytes)}: {size(what.step_bytes)} by {step}"
        f" in {what.step_s:.3g} s (limit: half of the rise), and the floors since confirm it"
    )
    return Finding(
        cause=RETENTION,
        subject=subject,
        severity="info",
        since_s=what.since_s,
        summary=f"{subject}: memory is retained on {what.device}, not leaked: {step} gave back {size(what.step_bytes)}",
        evidence=(Evidence(text=rose, metric=what.metric), Evidence(text=gave, metric=what.metric)),
        advice=_RETENTION_ADVICE[what.step],
        device=what.device,
    )


def finding(subject: str, rising: Sequence[Rising], requests_per_s: float | None, settings: LeakSettings) -> Finding:
    """The finding of one cause for a subject: what rises, the worst first; several where an engine has several devices."""
    worst = rising[0]
    standing, leak_class = worst.found.standing, worst.found.leak_class
    fragmented = leak_class == "fragmentation"
    left_s = worst.time_to_full_s
    held = "leaks" if level_with(standing, left_s, settings) == "leak" else "may leak"
    what = "memory is fragmented more and more" if fragmented else f"memory {held} ({IN_WORDS[leak_class]})"
    full = f", full in {in_hours(left_s)}" if left_s is not None else ""
    return Finding(
        cause=FRAGMENTATION if fragmented else LEAK,
        subject=subject,
        severity=_severity(standing, left_s, settings),
        since_s=standing.since_s,
        summary=f"{subject}: {what} on {worst.device}: {rate(standing.slope.value)}{full}",
        evidence=tuple(_evidence(rising, requests_per_s, settings)),
        advice=_ADVICE.get(leak_class, _PLAIN_ADVICE).format(subject=subject),
        confidence=confidence(standing),
        not_visible=tuple(_not_visible(worst)),
        device=worst.device,
    )


def lived(lives: Sequence[PastLife], device: str) -> Evidence:
    """That it rose so on a device in lives before, which restarts ended."""
    risen, slope = median(each.risen_bytes for each in lives), median(each.standing.slope.value for each in lives)
    text = (
        f"{lives[-1].line.words} on {device} rose in each of {len(lives)} lives by {size(risen)}, at {rate(slope)} from the same"
        " level, and a restart ended each: a leak that is restarted before it is a day old looks so, and a cache without a limit"
    )
    return Evidence(text=text, metric=lives[-1].line.metric)


def over_lives(subject: str, rising: Sequence[Rising], settings: LeakSettings) -> Finding:
    """The finding of what rose in each life before, until the life that runs tells: a suspicion. `rising` is the last life of each
    device, the worst first."""
    worst = rising[0]
    slope = rate(worst.found.standing.slope.value)
    summary = f"{subject}: memory may leak on {worst.device}: it rises in each of its lives, by {slope}, until a restart"
    evidence = tuple(evidence for each in rising for evidence in each.grew)
    return structs.replace(finding(subject, rising, None, settings), summary=summary, severity="info", evidence=evidence)


def _severity(standing: Standing, left_s: float | None, settings: LeakSettings) -> Severity:
    """A leak is worth a look before the horizon; a suspicion only where memory will be full before it can become more."""
    if left_s is None:
        return "warning" if standing.level == "leak" else "info"
    return "warning" if left_s < (settings.horizon_s if standing.level == "leak" else settings.full_soon_s) else "info"


def _evidence(rising: Sequence[Rising], requests_per_s: float | None, settings: LeakSettings) -> Iterator[Evidence]:
    for each in rising:
        spec, standing = each.found.line, each.found.standing
        low, high = rate(standing.slope.low), rate(standing.slope.high)
        text = f"{spec.words} on {each.device} rises by {rate(standing.slope.value)} ({low} to {high}): {rule(standing.tier)}"
        yield Evidence(text=f"{text} (limit {rate(settings.limit_bytes_per_s)})", metric=spec.metric)
        floors = f"from {size(standing.base.size_bytes)} to {size(standing.peak.size_bytes)}"
        yield Evidence(text=f"its floor rose {floors}", metric=spec.metric)
        if requests_per_s:
            text = f"{size(standing.slope.value / requests_per_s)} a request, at {requests_per_s:.3g} requests a second"
            yield Evidence(text=text, metric="aie_engine_requests_total")
        if each.free_bytes is not None and each.time_to_full_s is not None:
            soonest = in_hours(each.free_bytes / standing.slope.high)
            full = f"full in {in_hours(each.time_to_full_s)}, {soonest} at the earliest"
            text = f"{size(each.free_bytes)} are left on {each.device}: {full}"
            yield Evidence(text=text, metric="aie_leak_time_to_full_seconds")
        yield from each.grew
        yield from _kept(each)


def _kept(rising: Rising) -> Iterator[Evidence]:
    """What came of asking for it: of a line that still rises it was not enough."""
    answer, spec, standing = rising.answer_since, rising.found.line, rising.found.standing
    if answer is None:
        return
    given = answer.given(spec.name, rising.device)
    if given is None:
        yield Evidence(text=f"the engine was asked for it, and it rises after {answer.done}", metric=spec.metric)
        return
    risen = size(standing.peak.size_bytes - standing.base.size_bytes)
    claim = rising.found.claim
    if claim is not None and claim.time_s >= answer.time_s:
        told = "which the next floors do not confirm: it is kept" if claim.is_refuted else "which the next floors must confirm"
        text = f"after {answer.done} the engine says that it gave back {size(claim.given_bytes)} of {risen}, {told}"
        yield Evidence(text=text, metric=spec.metric)
        return
    text = f"kept after {answer.done}: they gave back {size(max(given, 0.0))} of {risen} (limit: half of the rise)"
    yield Evidence(text=text, metric=spec.metric)


def _not_visible(rising: Rising) -> Iterator[str]:
    found = rising.found
    answer = rising.answer_since
    for name, reason in answer.left_out if answer is not None else ():
        yield f"what {STEP_WORDS.get(name, name)} would give back: {LEFT_OUT.get(reason, reason)}"
    if found.leak_class == "unknown":
        yield "what the engine's allocator holds: it does not tell, so neither is told whose memory grows"
    if found.leak_class == "outside_allocator" and rising.device == "cpu":
        yield "whether it is Python objects, native heap or mappings: neither hooks nor the kernel tell, or not yet"
    if found.standing.level == "suspect":
        yield "whether it is a cache that fills or a leak: half a day does not tell"
    if rising.free_bytes is None:
        yield f"when the memory is full: how much is left on {rising.device} is not known"


def kv_short(subject: str, kv: Kv, since_s: float) -> Finding:
    """Free and used tokens of a KV cache do not add up to its capacity."""
    used, free, capacity = kv.used or 0.0, kv.free or 0.0, kv.capacity or 0.0
    text = f"{used:.0f} used and {free:.0f} free are not the capacity of {capacity:.0f} tokens (limit 0 apart)"
    return Finding(
        cause=KV_ACCOUNTING,
        subject=subject,
        severity="warning",
        since_s=since_s,
        summary=f"{subject}: its KV cache has lost account of {abs(used + free - capacity):.0f} tokens",
        evidence=(Evidence(text=text, metric=_KV_CAPACITY),),
        advice=_ADVICE["kv_accounting"],
    )


def kv_idle(subject: str, kv: Kv, standing: Standing, settings: LeakSettings) -> Finding:
    """What a KV cache holds while no request is in flight rises and rises."""
    an_hour = standing.slope.value * 3600
    capacity = kv.capacity or 0.0
    limit = f"(limit {LOST_SHARE_PER_HOUR:.1%} of {capacity:.0f})"
    lost = f"what is used of its KV cache at idle rises by {an_hour:.0f} tokens an hour: {rule(standing.tier)} {limit}"
    rose = f"it rose from {standing.base.size_bytes:.0f} to {standing.peak.size_bytes:.0f} tokens while no request was in flight"
    return Finding(
        cause=KV_ACCOUNTING,
        subject=subject,
        severity="warning" if standing.level == "leak" else "info",
        since_s=standing.since_s,
        summary=f"{subject}: its KV cache loses {an_hour:.0f} tokens an hour",
        evidence=(Evidence(text=lost, metric=_KV_USED), Evidence(text=rose, metric=_KV_USED)),
        advice=_ADVICE["kv_accounting"],
        confidence=confidence(standing),
    )
