"""Every cause that the agent looks for. A new one is a function in a file of its own, and a row here; what it explains, and whether
it is steadied, are rows too."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.agent_causes import agent_blind
from aie_agent.analysis.engine_causes.cpu_fallback import cpu_fallback
from aie_agent.analysis.engine_causes.gone import engine_down, oom_killed
from aie_agent.analysis.engine_causes.kv_full import kv_full
from aie_agent.analysis.engine_causes.kv_preemption import kv_preemption
from aie_agent.analysis.engine_causes.out_of_memory import cuda_oom, out_of_memory
from aie_agent.analysis.engine_causes.outcomes import client_flood, error_rate, requests_rejected
from aie_agent.analysis.engine_causes.prefill_interference import prefill_interference
from aie_agent.analysis.engine_causes.python_gc import python_gc
from aie_agent.analysis.engine_causes.queue_saturation import queue_saturation
from aie_agent.analysis.engine_causes.tokenizer_bound import tokenizer_bound
from aie_agent.analysis.findings import EngineCause, SubjectCause
from aie_agent.analysis.gpu_causes.clocks import gpu_clocks, gpu_power_cap
from aie_agent.analysis.gpu_causes.faults import FAULTS, gpu_faults
from aie_agent.analysis.gpu_causes.lost import XID_FAMILIES, gpu_lost, gpu_xids
from aie_agent.analysis.gpu_causes.numa import numa_misplaced
from aie_agent.analysis.gpu_causes.pcie import pcie_bound
from aie_agent.analysis.gpu_causes.tenants import gpu_neighbour
from aie_agent.analysis.host_causes.cpu import cpu_starved, cpu_steal, cpu_throttled
from aie_agent.analysis.host_causes.disk import disk_stall, disk_stall_of_host
from aie_agent.analysis.host_causes.memory import host_memory_low, page_faults, swapping
from aie_agent.analysis.hung import engine_hung
from aie_agent.analysis.lock_contention import gil_contention, lock_contention
from aie_agent.analysis.series_refused import series_refused
from aie_agent.analysis.steady import Steadiness
from aie_agent.analysis.stopped import engine_stopped

ENGINE_CAUSES: Final[tuple[EngineCause, ...]] = (
    engine_down,
    oom_killed,
    cuda_oom,
    out_of_memory,
    engine_hung,
    engine_stopped,
    error_rate,
    client_flood,
    requests_rejected,
    cpu_fallback,
    kv_preemption,
    kv_full,
    queue_saturation,
    prefill_interference,
    tokenizer_bound,
    python_gc,
    lock_contention,
    gil_contention,
    series_refused,
    cpu_starved,
    cpu_throttled,
    page_faults,
    disk_stall,
    numa_misplaced,
)

SUBJECT_CAUSES: Final[tuple[SubjectCause, ...]] = (
    cpu_steal,
    swapping,
    host_memory_low,
    disk_stall_of_host,
    gpu_lost,
    gpu_xids,
    gpu_faults,
    gpu_clocks,
    gpu_power_cap,
    pcie_bound,
    gpu_neighbour,
    agent_blind,
)

_SLOW: Final = frozenset({"queue_saturation", "prefill_interference"})
_GPU_SLOW: Final = _SLOW | {"kv_full"}
"""Of a GPU at half its clock requests stay for longer, and fill the KV cache. Of a CPU that is starved this is not said: where
memory for one request is left, more CPU brings no second one in."""
_BROKEN: Final = frozenset({"engine_hung", "engine_down", "error_rate"})

EXPLAINS: Final[dict[str, frozenset[str]]] = {
    "oom_killed": frozenset({"engine_down"}),
    # What lingers is not so any more once no process is left.
    "engine_down": frozenset(
        {"queue_saturation", "client_flood", "kv_preemption", "kv_full", "prefill_interference", "tokenizer_bound"}
    ),
    "cuda_oom": frozenset({"engine_down", "error_rate"}),
    "out_of_memory": frozenset({"error_rate"}),
    # Memory that was lost is what others run out of; told of one device, it explains nothing of another.
    "memory_leak": frozenset({"host_memory_low", "oom_killed", "cuda_oom", "out_of_memory", "swapping"}),
    # What comes out of a model follows from what went in, and from what broke in it.
    "nan_logits": frozenset({"output_collapse", "output_drift"}),
    "input_drift": frozenset({"output_drift", "output_collapse"}),
    "engine_hung": frozenset(
        {"lock_contention", "gil_contention", "queue_saturation", "kv_full", "client_flood", "error_rate", "agent_blind"}
    ),
    "engine_stopped": frozenset({"queue_saturation", "kv_full", "client_flood", "error_rate", "agent_blind"}),
    "cpu_fallback": _GPU_SLOW | {"client_flood"},
    # Whoever sends more than is taken in fills places and memory alike.
    "client_flood": frozenset({"queue_saturation", "kv_full", "tokenizer_bound", "requests_rejected"}),
    "kv_preemption": _GPU_SLOW,
    "kv_full": frozenset({"queue_saturation"}),
    "cache_hit_collapse": frozenset({"queue_saturation"}),
    # A collection, or a tokenizer in Python, holds the interpreter lock that the others wait for; a lock around the tokenizer is
    # what its callers wait for. Of all of them the engine serves fewer, and those that come wait or are refused.
    "python_gc": frozenset({"gil_contention", "tokenizer_bound"}) | _SLOW,
    "tokenizer_bound": frozenset({"gil_contention", "queue_saturation"}),
    "lock_contention": frozenset({"tokenizer_bound", "queue_saturation"}),
    "gil_contention": _SLOW,
    "cpu_starved": _SLOW,
    # Threads that wait for a lock sleep: that none gets a CPU makes their wait longer, and does not begin it.
    **dict.fromkeys(("cpu_throttled", "cpu_steal"), _SLOW | {"cpu_starved"}),
    # Who holds the interpreter lock while it waits for a page lets all others wait for the lock.
    "swapping": frozenset({"page_faults", "disk_stall", "gil_contention"}) | _SLOW,
    "page_faults": frozenset({"disk_stall", "gil_contention"}) | _SLOW,
    "host_memory_low": frozenset({"swapping", "page_faults"}),
    # A GPU that is slower than it was makes its engine slow; one that is gone takes its engine along, and its XIDs say why it went.
    # Heat that costs little of the clock is information, and so explains none of these: the day may be warm, and the load too high.
    **dict.fromkeys(("gpu_thermal", "gpu_power_brake", "gpu_slowed", "pcie_bound"), _GPU_SLOW),
    **dict.fromkeys(("gpu_xid_gpu", "gpu_xid_link", "gpu_xid_memory", "gpu_xid_driver"), _BROKEN),
    "gpu_lost": _BROKEN | {f"gpu_xid_{family}" for family in XID_FAMILIES},
    "gpu_power_limit": frozenset({"gpu_power_cap"}),
    "gpu_link_width": frozenset({"pcie_bound"}),
    "gpu_slot_width": frozenset({"pcie_bound"}),
    "gpu_link_generation": frozenset({"pcie_bound"}),
}
"""A cause, and those that it explains when both hold of subjects that have to do with each other."""

STEADINESS: Final[dict[str, Steadiness]] = {
    "engine_down": Steadiness(begins_after_s=2.0),
    **dict.fromkeys(("kv_preemption", "tokenizer_bound", "python_gc"), Steadiness(lingers_s=10.0)),
    # Within a burst more come than before, and from one to the next no more.
    "client_flood": Steadiness(lingers_s=10.0, returns_s=120.0),
    # Where about half of all requests fail, it is half or more again and again.
    "error_rate": Steadiness(lingers_s=10.0, calms_after_s=60.0),
    # A queue that goes up and down seems to shrink now and then.
    **dict.fromkeys(("queue_saturation", "kv_full"), Steadiness(lingers_s=10.0, calms_after_s=30.0)),
    # In the first seconds of a flood no queue was long for most of the window.
    "requests_rejected": Steadiness(begins_after_s=6.0, lingers_s=10.0, calms_after_s=60.0),
    "prefill_interference": Steadiness(begins_after_s=5.0, lingers_s=10.0),
    "cache_hit_collapse": Steadiness(lingers_s=10.0),
    **dict.fromkeys(
        ("cpu_starved", "cpu_throttled", "cpu_steal", "page_faults", "swapping", "disk_stall", "host_memory_low"),
        Steadiness(lingers_s=10.0),
    ),
    **dict.fromkeys(("gpu_power_brake", "gpu_slowed", "gpu_power_cap", "pcie_bound"), Steadiness(lingers_s=10.0)),
    # What heat costs goes up and down with the load.
    "gpu_thermal": Steadiness(lingers_s=10.0, calms_after_s=60.0),
    # What waits about as much as the threshold is one finding, not one each time that it crosses it.
    "gil_contention": Steadiness(lingers_s=10.0),
    "gpu_neighbour": Steadiness(begins_after_s=5.0, lingers_s=10.0),
}
"""Causes whose signal flutters: how long they must hold, and how long they are shown after."""

OF_SUBJECTS: Final[frozenset[str]] = frozenset(
    {
        *("cpu_steal", "swapping", "host_memory_low", "disk_stall"),
        *("gpu_lost", "gpu_thermal", "gpu_power_brake", "gpu_slowed", "gpu_power_cap", "pcie_bound", "gpu_neighbour"),
        *(f"gpu_xid_{family}" for family in XID_FAMILIES),
        *FAULTS,
        "agent_blind",
        # Of the analysers.
        "cache_hit_collapse",
        *("memory_leak", "memory_fragmentation", "memory_retention", "kv_accounting"),
        *("input_drift", "output_drift", "output_collapse", "nan_logits"),
    }
)
"""What SUBJECT_CAUSES and the analysers find: the causes that no function of ENGINE_CAUSES is called by. Each cause has a page in
docs/runbooks, and each page a cause."""

WITH_STACKS: Final = frozenset({"engine_hung", "lock_contention", "gil_contention"})
"""Causes that Python stacks tell more of: they are taken when one begins."""
