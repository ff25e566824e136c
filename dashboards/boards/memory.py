"""Whether memory is lost, by whom, and for how long it lasts: physical memory against what the allocator knows of."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import HEALTHY, Board, Column, Query, Row, Situation, Step, Word, lines, nothing_here, stat, table, timeline

LEAK_STATES: Final = (("0", Word("no leak", "green")), ("1", Word("suspect", "orange")), ("2", Word("leak", "red")))
_E: Final = "instance, engine"
_DEVICE: Final = "instance, engine, device"
_LINE: Final = f"{_DEVICE}, line"
_OF_DEVICE: Final = "{{engine}} {{device}} ({{instance}})"
_RISES: Final = f"{p.by(_LINE, p.of('aie_leak_state', p.ENGINE), 'max')} > 0"
_LEAK: Final = ("memory_leak",)
_NO_ALLOCATOR: Final = "needs aie_hooks' AllocatorHook, or an engine whose page tells it"
_LONG_ENOUGH: Final = "no line of memory was followed for long enough, which takes 70 minutes of requests"
_SOON: Final = (Step(None, "red"), Step(6 * 3600, "orange"), Step(7 * 86400, "green"))
"""Full within six hours is a warning to the agent, too."""
HELD: Final = 0.95
"""What AieMemoryNearlyFull stands at."""

_ANSWER: Final = Row(
    "",
    (
        stat(
            "Leaks",
            "Does any line of memory rise as only a leak does, for a day?",
            "none",
            Query(p.by("", f"{p.of('aie_leak_state', p.ENGINE)} == bool 2"), "{{job}}"),
            steps=HEALTHY,
            situation=Situation.HOOKS,
            empty=_LONG_ENOUGH,
        ),
        stat(
            "Suspects",
            "Does any rise as a leak does, and not for long enough to be sure?",
            "none",
            Query(p.by("", f"{p.of('aie_leak_state', p.ENGINE)} == bool 1"), "{{job}}"),
            steps=(Step(None, "green"), Step(1, "orange")),
            situation=Situation.HOOKS,
            empty=_LONG_ENOUGH,
        ),
        stat(
            "Full in",
            "For how long does memory last, at the rate of what leaks?",
            "s",
            Query(p.by("", p.of("aie_leak_time_to_full_seconds", p.ENGINE), "min"), "{{job}}"),
            steps=_SOON,
            situation=Situation.HOOKS,
            empty="nothing leaks",
            runbooks=("AieMemoryFullSoon",),
        ),
        stat(
            "Out of memory",
            "Did allocations fail in the time shown?",
            "none",
            Query(p.by("", p.increase("aie_engine_allocator_ooms_total", p.ENGINE)), "{{job}}"),
            steps=HEALTHY,
            situation=Situation.HOOKS,
            empty=_NO_ALLOCATOR,
        ),
        stat(
            "Killed for lack of memory",
            "Did the kernel kill a process of these hosts in the time shown?",
            "none",
            Query(p.by("", p.increase("aie_host_oom_kills_total")), "{{job}}"),
            steps=HEALTHY,
        ),
        stat(
            "Swapped out",
            "How much of the engines' memory is on disk?",
            "bytes",
            Query(p.by("", p.of("aie_process_swap_bytes", p.ENGINE)), "{{job}}"),
            empty="no engine's process is known",
        ),
        table(
            "What leaks",
            "Which line of memory rises as a leak does, whose, and how fast?",
            Query(_RISES),
            Query(p.among(p.by(_LINE, p.of("aie_leak_rate_bytes_per_second", p.ENGINE), "max"), _LINE, _RISES)),
            columns=(
                Column("Value #A", "verdict", width=110, words=LEAK_STATES),
                Column("engine", "engine"),
                Column("device", "device", width=100),
                Column("line", "line", width=120),
                Column("Value #B", "rises by", unit="binBps", width=130),
                Column("instance", "instance", link="host"),
                Column("job", "job", width=140),
            ),
            sort="rises by",
            situation=Situation.HOOKS,
            empty="nothing rises as a leak does",
            trouble=True,
            height=7,
        ),
        timeline(
            "Verdicts",
            "Since when is each line of memory held to be a leak? docs/leaks.md tells the rules.",
            Query(p.by(_LINE, p.of("aie_leak_state", p.ENGINE), "max"), "{{line}}: {{engine}} {{device}} ({{instance}})"),
            words=LEAK_STATES,
            situation=Situation.HOOKS,
            empty=_LONG_ENOUGH,
            runbooks=_LEAK,
        ),
    ),
)

_LINES: Final = Row(
    "The three lines of memory",
    (
        lines(
            "In use by tensors",
            "Does the engine keep what it should drop? A rise here is a leak in Python.",
            "bytes",
            Query(p.by(_DEVICE, p.of("aie_engine_allocator_allocated_bytes", p.ENGINE)), _OF_DEVICE),
            empty=_NO_ALLOCATOR,
            runbooks=_LEAK,
        ),
        lines(
            "Reserved and not in use",
            "Does the allocator hold ever more than is used? A rise here, while use is flat, is fragmentation.",
            "bytes",
            Query(
                p.by(
                    _DEVICE,
                    f"{p.of('aie_engine_allocator_reserved_bytes', p.ENGINE)}"
                    f" - {p.of('aie_engine_allocator_allocated_bytes', p.ENGINE)}",
                ),
                _OF_DEVICE,
            ),
            empty=_NO_ALLOCATOR,
            runbooks=("memory_fragmentation", "AieAllocatorGap"),
        ),
        lines(
            "Unknown to the allocator",
            "Does memory rise that the allocator does not know of: NCCL, handles, graphs, mappings?"
            " Below 0 where reserved memory was never touched.",
            "bytes",
            Query(p.by(_DEVICE, p.of("aie_engine_memory_unaccounted_bytes", p.ENGINE)), _OF_DEVICE),
            signed=True,
            empty=_NO_ALLOCATOR,
            runbooks=_LEAK,
        ),
        lines(
            "Physical memory",
            "How much do the engine's processes hold in all?",
            "bytes",
            Query(p.by(_DEVICE, p.of("aie_engine_memory_physical_bytes", p.ENGINE)), _OF_DEVICE),
            empty="no engine's process is known",
            runbooks=("AieMemoryGrows", "AieMemoryNearlyFull"),
        ),
        lines(
            "Parts of what is reserved",
            "What keeps reserved memory from being given back: fragments, or pools such as those of CUDA graphs?",
            "bytes",
            Query(p.by(_DEVICE, p.of("aie_engine_allocator_inactive_split_bytes", p.ENGINE)), f"fragments {_OF_DEVICE}"),
            Query(p.by(_DEVICE, p.of("aie_engine_allocator_private_pool_bytes", p.ENGINE)), f"private pools {_OF_DEVICE}"),
            Query(p.by(_DEVICE, p.of("aie_engine_allocator_pinned_bytes", p.ENGINE)), f"pinned on the host {_OF_DEVICE}"),
            colours=("orange", "purple", "blue"),
            situation=Situation.HOOKS,
            empty=_NO_ALLOCATOR,
            runbooks=("memory_fragmentation",),
        ),
        lines(
            "Allocations that failed at first",
            "Does the allocator empty its cache to find room, or find none?",
            "short",
            Query(p.total("aie_engine_allocator_retries_total", _DEVICE, p.ENGINE), f"retries {_OF_DEVICE}"),
            Query(p.total("aie_engine_allocator_ooms_total", _DEVICE, p.ENGINE), f"failed {_OF_DEVICE}"),
            colours=("orange", "red"),
            situation=Situation.HOOKS,
            empty=_NO_ALLOCATOR,
            runbooks=("cuda_oom", "out_of_memory", "AieAllocatorRetries"),
        ),
    ),
)

_DRIVER: Final = Row(
    "Asked of the CUDA driver (eBPF)",
    (
        lines(
            "Outstanding, by kind",
            "How much was asked of the driver and not freed, since probes watch?",
            "bytes",
            Query(
                p.by("instance, engine, kind", p.of("aie_cuda_memory_outstanding_bytes", p.ENGINE)),
                "{{kind}} {{engine}} ({{instance}})",
            ),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
            runbooks=_LEAK,
        ),
        lines(
            "Outstanding, by who asked",
            "Whose code asked for it?",
            "bytes",
            Query(
                p.by("instance, engine, module", p.of("aie_cuda_memory_module_bytes", p.ENGINE)),
                "{{module}} {{engine}} ({{instance}})",
            ),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
            runbooks=_LEAK,
        ),
        lines(
            "Allocations and frees",
            "Is more taken than given back?",
            "binBps",
            Query(p.total("aie_cuda_memory_allocated_bytes_total", "instance, engine", p.ENGINE), f"taken {p.OF_ENGINE}"),
            Query(p.total("aie_cuda_memory_freed_bytes_total", "instance, engine", p.ENGINE), f"given back {p.OF_ENGINE}"),
            colours=("orange", "blue"),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
        ),
        lines(
            "Calls that the driver refused",
            "What does the driver refuse, and why? 2 is out of memory.",
            "short",
            Query(
                p.total("aie_cuda_failures_total", "instance, engine, call, code", p.ENGINE),
                f"{{{{call}}}}: {{{{code}}}} {p.OF_ENGINE}",
            ),
            situation=Situation.CUDA,
            width=12,
            empty="no call was refused since probes watch",
            runbooks=("cuda_oom",),
        ),
        lines(
            "Outstanding, by size",
            "Are there ever more small allocations, or ever larger ones?",
            "bytes",
            Query(
                p.by("instance, engine, size_class", p.of("aie_cuda_memory_class_bytes", p.ENGINE)),
                "{{size_class}} {{engine}} ({{instance}})",
            ),
            situation=Situation.CUDA,
            width=12,
            stacked=True,
            empty="needs eBPF, and an engine that uses CUDA",
        ),
    ),
    folded=True,
)

_HOST: Final = Row(
    "On the host",
    (
        lines(
            "Resident memory of engines",
            "Does the heap grow, or what is mapped or shared?",
            "bytes",
            Query(p.by("instance, engine", p.of("aie_process_resident_anon_bytes", p.ENGINE)), f"heap {p.OF_ENGINE}"),
            Query(p.by("instance, engine", p.of("aie_process_resident_file_bytes", p.ENGINE)), f"files {p.OF_ENGINE}"),
            Query(p.by("instance, engine", p.of("aie_process_resident_shmem_bytes", p.ENGINE)), f"shared {p.OF_ENGINE}"),
            colours=("blue", "green", "purple"),
            width=6,
            empty="no engine's process is known",
            runbooks=("memory_leak", "host_memory_low"),
        ),
        lines(
            "Memory of malloc",
            "Is what was asked for not freed, or is it free and kept by malloc? The second is given back by malloc_trim.",
            "bytes",
            Query(p.by("instance, engine", p.of("aie_engine_malloc_used_bytes", p.ENGINE), "max"), f"in use {p.OF_ENGINE}"),
            Query(p.by("instance, engine", p.of("aie_engine_malloc_held_bytes", p.ENGINE), "max"), f"held {p.OF_ENGINE}"),
            colours=("blue", "purple"),
            situation=Situation.HOOKS,
            width=6,
            empty="needs aie_hooks in the engine",
            runbooks=("memory_leak",),
        ),
        lines(
            "Memory of the control group",
            "How near is the limit at which the kernel kills? Page cache counts, and is given back before that.",
            "bytes",
            Query(p.by("instance, engine", p.of("aie_process_cgroup_memory_bytes", p.ENGINE), "max"), f"used {p.OF_ENGINE}"),
            Query(p.by("instance, engine", p.of("aie_process_cgroup_memory_limit_bytes", p.ENGINE), "min"), f"limit {p.OF_ENGINE}"),
            colours=("blue", "red"),
            situation=Situation.LIMITS,
            width=6,
            empty="no limit is set",
            runbooks=("oom_killed", "AieMemoryNearlyFull"),
        ),
        lines(
            "Held of the control group's limit",
            "How much of the limit can the kernel not take back? At the limit it kills; the alert stands at the line.",
            "percentunit",
            Query(p.by(_E, p.of("aie_process_cgroup_memory_held_ratio", p.ENGINE), "max"), p.OF_ENGINE),
            most=1,
            steps=(Step(None, "transparent"), Step(HELD, "red")),
            situation=Situation.LIMITS,
            width=6,
            empty="no limit is set",
            runbooks=("oom_killed", "AieMemoryNearlyFull"),
        ),
    ),
)

_NOTHING: Final = nothing_here(
    "Verdicts take 70 minutes of requests, and a leak is told after a day: `docs/leaks.md` has the rules.",
    "What the allocator knows comes from `AllocatorHook` of `aie_hooks`, or from the engine's page, where that tells it.",
    "What was asked of CUDA's driver is seen by eBPF: `aie-agent check` says what is missing.",
)

MEMORY: Final = Board(
    "memory",
    "aie / Memory and leaks",
    "Is memory lost, by whom, and for how long does it last?",
    ("job", "instance", "engine"),
    (_ANSWER, _LINES, _HOST, _DRIVER, _NOTHING),
    range="now-24h",
)
