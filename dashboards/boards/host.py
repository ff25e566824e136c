"""What the host gives the engines, and what their threads wait for."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.table import HEALTHY, Board, Query, Row, Situation, Step, lines, nothing_here, stat

_E: Final = "instance, engine"
_PROBED: Final = "needs eBPF on that host: `aie-agent check` says what is missing"
_P: Final = Situation.PROBES
_NO_PROCESS: Final = "no engine's process is known"
VERY_LOW_MEMORY: Final = 0.02
LOW_MEMORY: Final = 0.05
STOLEN: Final = 0.1
THROTTLED: Final = 0.25
"""Shares from which on the agent finds something wrong, too."""
_CPU: Final = ("cpu_starved", "cpu_steal")


def _cpu(mode: str) -> str:
    busy = p.total("aie_host_cpu_seconds_total", "instance", extra=f'mode=~"{mode}"')
    return p.share(busy, p.by("instance", p.of("aie_host_cpus"), "max"))


_ANSWER: Final = Row(
    "",
    (
        stat(
            "CPU in use, busiest host",
            "Is there a host without CPU to spare?",
            "percentunit",
            Query(p.by("", _cpu("user|nice|system|irq|softirq|steal"), "max"), "{{job}}"),
        ),
        stat(
            "Stolen, worst host",
            "Does the hypervisor give this CPU to others?",
            "percentunit",
            Query(p.by("", _cpu("steal"), "max"), "{{job}}"),
            steps=(Step(None, "green"), Step(STOLEN, "orange")),
        ),
        stat(
            "Memory available, least",
            "Is a host about to swap, or to kill?",
            "percentunit",
            Query(
                p.by("", p.share(p.of("aie_host_memory_available_bytes"), p.of("aie_host_memory_total_bytes")), "min"), "{{job}}"
            ),
            steps=(Step(None, "red"), Step(VERY_LOW_MEMORY, "orange"), Step(LOW_MEMORY, "green")),
        ),
        stat(
            "Swap traffic",
            "Do hosts move memory to disk and back, in pages a second?",
            "short",
            Query(
                f"{p.total('aie_host_swap_in_pages_total', '')} + {p.total('aie_host_swap_out_pages_total', '')}",
                "{{job}}",
            ),
        ),
        stat(
            "Killed for lack of memory",
            "Did the kernel kill in the time shown?",
            "none",
            Query(p.by("", p.increase("aie_host_oom_kills_total")), "{{job}}"),
            steps=HEALTHY,
        ),
        stat(
            "Threads that wait for a CPU",
            "How many of the engines' threads could run and do not?",
            "short",
            Query(p.total("aie_process_run_queue_seconds_total", "", p.ENGINE), "{{job}}"),
            empty=_NO_PROCESS,
        ),
    ),
)

_WAITS: Final = Row(
    "What engines wait for",
    (
        lines(
            "Waits, by reason",
            "What do the engine's threads wait for? 1 is one thread that waits all the time. Idle threads are left out.",
            "short",
            Query(
                p.total("aie_process_wait_seconds_total", f"{_E}, reason", p.ENGINE, 'reason!~"idle|sleep"'),
                f"{{{{reason}}}} {p.OF_ENGINE}",
            ),
            width=12,
            height=9,
            situation=_P,
            empty=_PROBED,
            runbooks=("lock_contention", "gil_contention", "disk_stall"),
        ),
        lines(
            "CPU, and the wait for it",
            "Does an engine get the CPUs that it asks for? In CPUs.",
            "short",
            Query(p.total("aie_process_cpu_seconds_total", _E, p.ENGINE), f"runs {p.OF_ENGINE}"),
            Query(p.total("aie_process_run_queue_seconds_total", _E, p.ENGINE), f"waits for a CPU {p.OF_ENGINE}"),
            colours=("blue", "orange"),
            width=12,
            height=9,
            empty=_NO_PROCESS,
            runbooks=_CPU,
        ),
        lines(
            "Wait for a CPU, p99",
            "For how long is a thread kept from running once it could?",
            "s",
            Query(p.quantile(0.99, "aie_process_run_queue_delay_seconds", _E, p.ENGINE), p.OF_ENGINE),
            situation=_P,
            empty=_PROBED,
            runbooks=_CPU,
        ),
        lines(
            "Waits for locks a second",
            "How often do threads stand before a lock?",
            "short",
            Query(
                p.total("aie_process_lock_waits_total", f"{_E}, kind", p.ENGINE, 'kind!="idle"'),
                f"{{{{kind}}}} {p.OF_ENGINE}",
            ),
            situation=_P,
            empty=_PROBED,
            runbooks=("lock_contention", "gil_contention"),
        ),
        lines(
            "Stopped by its CPU quota",
            "In which share of periods did the control group's quota stop the engine?",
            "percentunit",
            Query(
                p.share(
                    p.total("aie_process_cgroup_throttled_periods_total", _E, p.ENGINE),
                    p.total("aie_process_cgroup_periods_total", _E, p.ENGINE),
                ),
                p.OF_ENGINE,
            ),
            most=1,
            steps=(Step(None, "transparent"), Step(THROTTLED, "red")),
            situation=Situation.LIMITS,
            empty="no quota is set",
            runbooks=("cpu_throttled",),
        ),
        lines(
            "Page faults that need the disk",
            "Does an engine wait for its own memory?",
            "short",
            Query(p.total("aie_process_major_faults_total", _E, p.ENGINE), p.OF_ENGINE),
            empty=_NO_PROCESS,
            runbooks=("page_faults", "swapping"),
        ),
        lines(
            "Context switches",
            "Do its threads wait (voluntary), or are they pushed off a CPU (involuntary)?",
            "short",
            Query(p.total("aie_process_context_switches_total", f"{_E}, kind", p.ENGINE), f"{{{{kind}}}} {p.OF_ENGINE}"),
            empty=_NO_PROCESS,
        ),
        lines(
            "Threads and processes",
            "Do they become ever more?",
            "none",
            Query(p.by(_E, p.of("aie_process_threads", p.ENGINE)), f"threads {p.OF_ENGINE}"),
            Query(p.by(_E, p.of("aie_process_instances", p.ENGINE)), f"processes {p.OF_ENGINE}"),
            colours=("blue", "green"),
            empty=_NO_PROCESS,
        ),
    ),
)

_CUDA: Final = Row(
    "CUDA calls (eBPF)",
    (
        lines(
            "Synchronisation, p99",
            "How long does the host wait for the GPU in one call?",
            "s",
            Query(p.quantile(0.99, "aie_cuda_sync_seconds", f"{_E}, call", p.ENGINE), f"{{{{call}}}} {p.OF_ENGINE}"),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
            runbooks=("engine_hung",),
        ),
        lines(
            "Waits for the GPU now",
            "Does a call wait for a GPU that answers no more?",
            "s",
            Query(p.by(_E, p.of("aie_cuda_sync_longest_wait_seconds", p.ENGINE), "max"), p.OF_ENGINE),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
            runbooks=("engine_hung",),
        ),
        lines(
            "Copies",
            "How much is copied, which way?",
            "binBps",
            Query(p.total("aie_cuda_copy_bytes_total", f"{_E}, direction", p.ENGINE), f"{{{{direction}}}} {p.OF_ENGINE}"),
            situation=Situation.CUDA,
            empty="needs eBPF, and an engine that uses CUDA",
            runbooks=("pcie_bound",),
        ),
    ),
    folded=True,
)

_HOST: Final = Row(
    "The host",
    (
        lines(
            "CPU, by what it does",
            "Who takes the CPU: programs, the kernel, or the hypervisor?",
            "percentunit",
            *(Query(_cpu(mode), f"{name} {p.OF_HOST}") for mode, name in (("user|nice", "user"), ("system|irq|softirq", "kernel"))),
            Query(_cpu("iowait"), f"waits for the disk {p.OF_HOST}"),
            Query(_cpu("steal"), f"stolen {p.OF_HOST}"),
            colours=("blue", "purple", "yellow", "red"),
            most=1,
            runbooks=_CPU,
        ),
        lines(
            "Stalled, for some tasks",
            "For which share of time did tasks wait for CPU, memory or disk?",
            "percentunit",
            Query(
                p.total("aie_host_pressure_seconds_total", "instance, resource", extra='kind="some"'),
                f"{{{{resource}}}} {p.OF_HOST}",
            ),
            most=1,
            empty="this kernel has no pressure stall information",
            runbooks=("host_memory_low", "disk_stall"),
        ),
        lines(
            "Memory",
            "How much is left?",
            "bytes",
            Query(p.by("instance", p.of("aie_host_memory_available_bytes"), "max"), f"available {p.OF_HOST}"),
            Query(p.by("instance", p.of("aie_host_memory_total_bytes"), "max"), f"total {p.OF_HOST}"),
            Query(p.by("instance", p.of("aie_host_swap_used_bytes"), "max"), f"swap in use {p.OF_HOST}"),
            colours=("green", "text", "orange"),
            runbooks=("host_memory_low", "swapping"),
        ),
        lines(
            "Load, of CPUs",
            "Do more tasks want to run than there are CPUs?",
            "none",
            Query(p.by("instance", p.share(p.of("aie_host_load1"), p.of("aie_host_cpus")), "max"), p.OF_HOST),
            steps=(Step(None, "transparent"), Step(1, "orange")),
        ),
        lines(
            "Disk, p99",
            "How long does a request to a disk take?",
            "s",
            Query(p.quantile(0.99, "aie_host_block_io_seconds", "instance, device, op"), f"{{{{device}}}} {{{{op}}}} {p.OF_HOST}"),
            situation=Situation.NOT_HERE,
            why="needs a block device of the host that a test may write to; a container's may have none",
            empty=f"{_PROBED}; or no disk was used",
            runbooks=("disk_stall",),
        ),
        lines(
            "Disk traffic",
            "How much is read and written?",
            "binBps",
            Query(p.total("aie_host_block_io_bytes_total", "instance, device, op"), f"{{{{device}}}} {{{{op}}}} {p.OF_HOST}"),
            situation=Situation.NOT_HERE,
            why="needs a block device of the host that a test may write to; a container's may have none",
            empty=f"{_PROBED}; or no disk was used",
        ),
    ),
)

_NOTHING: Final = nothing_here(
    "Waits, CUDA calls and disks are seen by eBPF: root, or the capabilities BPF, PERFMON and SYS_PTRACE, BCC, and kernel headers.",
    "`aie-agent check` on the host says which of them is missing, and `docs/ebpf.md` what is seen by which probes.",
    "CPU and memory of an engine need its process: found by itself, by `aie_hooks`, or by `pid_file` in the agent's configuration.",
)

HOST: Final = Board(
    "host",
    "aie / Host and waits",
    "What do the engines wait for, and what does the host give them?",
    ("job", "instance", "engine"),
    (_ANSWER, _WAITS, _HOST, _CUDA, _NOTHING),
)
