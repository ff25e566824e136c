"""All GPUs: which are gone, broken, hot, slow, full, and which do nothing."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.boards import xids
from dashboards.table import (
    HEALTHY,
    NOTABLE,
    Board,
    Column,
    Query,
    Row,
    Situation,
    Step,
    Word,
    lines,
    nothing_here,
    stat,
    table,
    timeline,
)

_G: Final = "instance, gpu"
_NONE: Final = "no agent here sees a GPU; `aie-agent check` says why"
_S: Final = Situation.GPUS
_F: Final = Situation.FAULTS
_UP: Final = (("0", Word("gone", "red")), ("1", Word("answers", "green")))
_SLOWED: Final = 'reason=~"hw_slowdown|hw_thermal|hw_power_brake|sw_thermal"'
"""Reasons that hold a GPU back which is at work. Idle clocks are none, and a power cap is how most run."""
_UNCORRECTED: Final = 'type="uncorrected", since="volatile"'
_SLOWDOWN: Final = 'limit="slowdown"'
_CORE: Final = 'sensor="gpu"'
_LEAST_UP: Final = f"min_over_time({p.of('aie_gpu_up', p.GPU)}[$__range])"
_GONE_LATELY: Final = f"{p.by(_G, _LEAST_UP, 'min')} == 0"


def _largest(metric: str, over: str = "") -> str:
    """Of a GPU; with a time, the most of what it was in it."""
    series = p.of(metric, p.GPU)
    return p.by(_G, f"max_over_time({series}[{over}])" if over else series, "max")


_UNIFIED: Final = f"unless on (job, {_G}) ({_largest('aie_gpu_memory_unified')} == 1)"
_LANES: Final = _largest("aie_gpu_pcie_link_width")
_OF_CARD: Final = _largest("aie_gpu_pcie_link_width_max")
_OF_SLOT: Final = f"{_largest('aie_gpu_pcie_slot_width')} < {_OF_CARD} >= {_LANES}"
"""A slot that claims fewer lanes than the link has is a hypervisor's, and not believed."""
_LANES_MISSING: Final = f"({_OF_SLOT} or {_OF_CARD}) - {_LANES} > 0 {_UNIFIED}"
BUSY: Final = 0.5
"""As AieGpuLinkGeneration has it, also in the five minutes: a link rests between pieces of work, which is normal."""
_MEAN_BUSY: Final = p.by(_G, f"avg_over_time({p.of('aie_gpu_utilization_ratio', p.GPU)}[5m])", "max")
_GENERATIONS_MISSING: Final = (
    f"{_largest('aie_gpu_pcie_link_generation_max')} - {_largest('aie_gpu_pcie_link_generation', '5m')} > 0"
    f" and on (job, {_G}) ({_MEAN_BUSY} >= {BUSY:g})"
    f" unless on (job, {_G}) ({_largest('aie_gpu_performance_state', '5m')} > 2) {_UNIFIED}"
)

_ANSWER: Final = Row(
    "",
    (
        stat(
            "GPUs that answer",
            "How many GPUs are there?",
            "none",
            Query(p.by("", p.of("aie_gpu_present")), "{{job}}"),
            situation=_S,
            empty=_NONE,
            runbooks=("AieGpuAbsent",),
        ),
        stat(
            "GPUs that do not answer",
            "Are all there that the agents know of?",
            "none",
            Query(p.by("", f"{p.of('aie_gpu_expected')} - {p.of('aie_gpu_present')}"), "{{job}}"),
            situation=_S,
            steps=HEALTHY,
            empty=_NONE,
            runbooks=("AieGpuMissing",),
        ),
        stat(
            "XIDs in the time shown",
            "Did the driver report errors?",
            "none",
            Query(xids.total(""), "{{job}}"),
            situation=_S,
            steps=NOTABLE,
            empty=_NONE,
        ),
        stat(
            "Held back now",
            "How many are slowed by heat or by their power supply, whatever it costs?",
            "none",
            Query(
                p.by("", p.by(_G, p.of("aie_gpu_clock_event_active", p.GPU, _SLOWED), "max")),
                "{{job}}",
            ),
            situation=_S,
            steps=NOTABLE,
            empty=_NONE,
        ),
        stat(
            "Orphan processes",
            "Do processes hold memory that nothing can come of?",
            "none",
            Query(p.by("", p.of("aie_gpu_orphan_processes", p.GPU)), "{{job}}"),
            situation=_S,
            steps=NOTABLE,
            empty=_NONE,
        ),
        stat(
            "Power, all GPUs",
            "How much do they draw?",
            "watt",
            Query(p.by("", p.of("aie_gpu_power_watts", p.GPU)), "{{job}}"),
            situation=_S,
            empty=_NONE,
        ),
        table(
            "GPUs",
            "Which GPU is gone, hot, full, or does nothing? Those that do not answer come first.",
            Query(p.by(f"{_G}, reason", p.of("aie_gpu_up", p.GPU), "max")),
            Query(p.by(_G, p.of("aie_gpu_utilization_ratio", p.GPU), "max")),
            Query(p.by(_G, p.share(p.of("aie_gpu_memory_used_bytes", p.GPU), p.of("aie_gpu_memory_total_bytes", p.GPU)), "max")),
            Query(p.by(_G, p.of("aie_gpu_temperature_celsius", p.GPU, 'sensor="gpu"'), "max")),
            Query(p.by(_G, p.of("aie_gpu_power_watts", p.GPU), "max")),
            Query(p.by(_G, p.of("aie_gpu_processes", p.GPU), "max")),
            columns=(
                Column("Value #A", "state", width=100, words=_UP),
                Column("reason", "why", width=120),
                Column("gpu", "gpu", width=70, link="gpu"),
                Column("instance", "instance", link="host"),
                Column("Value #B", "utilization", unit="percentunit", width=120),
                Column("Value #C", "memory", unit="percentunit", width=120),
                Column("Value #D", "temperature", unit="celsius", width=120),
                Column("Value #E", "power", unit="watt", width=110),
                Column("Value #F", "processes", width=110),
                Column("job", "job", width=140),
            ),
            sort="state",
            ascending=True,
            situation=_S,
            empty=_NONE,
            height=10,
        ),
    ),
)

_WRONG: Final = Row(
    "What is wrong",
    (
        timeline(
            "GPUs that do not answer",
            "Since when is which GPU gone, and did it come back? Why, the table above tells.",
            Query(p.among(p.by(_G, p.of("aie_gpu_up", p.GPU), "min"), _G, _GONE_LATELY), p.OF_GPU),
            words=_UP,
            width=12,
            situation=_F,
            empty="all answer",
            runbooks=("gpu_lost", "AieGpuLost"),
            trouble=True,
        ),
        xids.xid_table(
            "Which errors did the driver report, of which GPU? `aie-top` tells what each number means, and what to do.",
            Column("gpu", "gpu", width=80, link="gpu"),
            Column("instance", "instance", link="host"),
            Column("job", "job", width=140),
            width=12,
        ),
        lines(
            "Held back by heat or power supply",
            "Which GPU is slowed, by what?",
            "none",
            Query(
                f"{p.by(f'{_G}, reason', p.of('aie_gpu_clock_event_active', p.GPU, _SLOWED), 'max')} == 1",
                f"{{{{reason}}}} {p.OF_GPU}",
            ),
            most=1,
            situation=_F,
            empty="none is",
            runbooks=("gpu_thermal", "gpu_power_brake", "AieGpuThrottled"),
            trouble=True,
        ),
        lines(
            "PCIe lanes missing",
            "Does a GPU have fewer lanes than card and slot have?",
            "none",
            Query(_LANES_MISSING, p.OF_GPU),
            situation=_F,
            empty="none is missing",
            runbooks=("gpu_link_width", "gpu_slot_width", "AieGpuLinkWidth"),
            trouble=True,
        ),
        lines(
            "PCIe generations missing, while busy",
            "Is the link of a GPU at work slower than it can be? The best of five minutes: idle, it goes down, which is normal.",
            "none",
            Query(_GENERATIONS_MISSING, p.OF_GPU),
            situation=_F,
            empty="none is missing",
            runbooks=("gpu_link_generation", "AieGpuLinkGeneration"),
            trouble=True,
        ),
        lines(
            "ECC errors, uncorrected",
            "Did memory lose what was in it?",
            "short",
            Query(
                p.by(_G, p.increase("aie_gpu_ecc_errors_total", p.GPU, _UNCORRECTED, "$__rate_interval")),
                p.OF_GPU,
            ),
            situation=_S,
            empty=_NONE,
            runbooks=("gpu_ecc", "gpu_xid_memory", "AieGpuEccUncorrected"),
        ),
        lines(
            "Rows of memory replaced",
            "Does a GPU's memory wear out?",
            "none",
            Query(p.by(f"{_G}, type", p.of("aie_gpu_remapped_rows", p.GPU)), f"{{{{type}}}} {p.OF_GPU}"),
            situation=_S,
            empty="before Ampere pages were retired instead",
            runbooks=("gpu_row_remap", "gpu_row_remap_failed"),
        ),
        lines(
            "Rows that wait for a reset, or failed",
            "Does a GPU need a reset to replace a row of its memory, or can it not replace one any more?",
            "none",
            Query(p.by(_G, p.of("aie_gpu_row_remap_pending", p.GPU), "max"), f"wait {p.OF_GPU}"),
            Query(p.by(_G, p.of("aie_gpu_row_remap_failed", p.GPU), "max"), f"failed {p.OF_GPU}"),
            colours=("orange", "red"),
            situation=_S,
            empty="before Ampere pages were retired instead",
            runbooks=("gpu_row_remap", "gpu_row_remap_failed", "AieGpuRowRemapPending", "AieGpuRowRemapFailed"),
        ),
        lines(
            "Orphan processes",
            "Do processes hold memory that nothing can come of?",
            "none",
            Query(p.by(_G, p.of("aie_gpu_orphan_processes", p.GPU), "max"), p.OF_GPU),
            situation=_S,
            empty=_NONE,
            runbooks=("gpu_orphan", "AieGpuOrphans"),
        ),
        lines(
            "NVLink errors a second",
            "Is a link between GPUs bad?",
            "short",
            Query(p.total("aie_gpu_nvlink_errors_total", f"{_G}, kind", p.GPU), f"{{{{kind}}}} {p.OF_GPU}"),
            situation=_S,
            empty="no NVLink here",
            runbooks=("gpu_nvlink_errors", "gpu_nvlink_inactive"),
        ),
    ),
)

_WORK: Final = Row(
    "At work",
    (
        lines(
            "Utilization",
            "For which share of time did a kernel run, however small?",
            "percentunit",
            Query(p.by(_G, p.of("aie_gpu_utilization_ratio", p.GPU), "max"), p.OF_GPU),
            most=1,
            situation=_S,
            link="gpu",
            empty=_NONE,
        ),
        lines(
            "Multiprocessors active",
            "How much of the GPU worked?",
            "percentunit",
            Query(p.by(_G, p.of("aie_gpu_sm_active_ratio", p.GPU), "max"), p.OF_GPU),
            most=1,
            situation=_S,
            link="gpu",
            empty="needs GPM, which Hopper and later GPUs have",
        ),
        lines(
            "Memory in use",
            "How full are they?",
            "percentunit",
            Query(
                p.by(_G, p.share(p.of("aie_gpu_memory_used_bytes", p.GPU), p.of("aie_gpu_memory_total_bytes", p.GPU)), "max"),
                p.OF_GPU,
            ),
            most=1,
            situation=_S,
            link="gpu",
            empty=_NONE,
        ),
        lines(
            "Degrees below slowdown",
            "How much hotter may they get?",
            "celsius",
            Query(
                f"{p.by(_G, p.of('aie_gpu_temperature_limit_celsius', p.GPU, _SLOWDOWN), 'min')}"
                f" - {p.by(_G, p.of('aie_gpu_temperature_celsius', p.GPU, _CORE), 'max')}",
                p.OF_GPU,
            ),
            steps=(Step(None, "transparent"), Step(5, "red")),
            situation=_S,
            link="gpu",
            empty="the driver does not tell",
            runbooks=("gpu_thermal",),
        ),
        lines(
            "Power, of its limit",
            "Is the power limit what holds them back?",
            "percentunit",
            Query(p.by(_G, p.share(p.of("aie_gpu_power_watts", p.GPU), p.of("aie_gpu_power_limit_watts", p.GPU)), "max"), p.OF_GPU),
            situation=_S,
            link="gpu",
            empty="the driver does not tell",
            runbooks=("gpu_power_cap", "gpu_power_limit"),
        ),
        lines(
            "Time held back",
            "For which share of time were clocks held down, by what?",
            "percentunit",
            Query(
                p.total("aie_gpu_throttle_seconds_total", f"{_G}, reason", p.GPU, 'reason!="low_utilization"'),
                f"{{{{reason}}}} {p.OF_GPU}",
            ),
            situation=_S,
            link="gpu",
            empty="the driver does not tell",
            runbooks=("gpu_slowed",),
        ),
    ),
)

_NO_GPU: Final = Row(
    "Hosts without GPUs",
    (
        table(
            "Agents that see no GPU",
            "Where is no GPU seen that should be? Hosts without any belong here.",
            Query(f"{p.by('instance', p.of('aie_agent_info'), 'max')} unless on (job, instance) {p.of('aie_gpu_present')}"),
            columns=(Column("instance", "instance", link="agent"), Column("job", "job")),
            sort="instance",
            ascending=True,
            width=12,
            height=6,
            situation=Situation.NO_GPU,
            empty="all agents see GPUs",
        ),
    ),
    folded=True,
)

NOTHING_HERE: Final = nothing_here(
    "GPUs are read through NVML, which comes with NVIDIA's driver: in a container its `libnvidia-ml.so.1` must be visible.",
    "`aie-agent check` on the host says what was looked for. GPUs of other makers are not seen.",
    "How much of a GPU worked (multiprocessors, tensor cores, memory bandwidth) is told by Hopper and later GPUs only.",
)

GPUS: Final = Board(
    "gpus",
    "aie / GPUs",
    "Which GPUs are gone, broken, hot, slow or full?",
    ("job", "instance", "gpu"),
    (_ANSWER, _WRONG, _WORK, _NO_GPU, NOTHING_HERE),
)
