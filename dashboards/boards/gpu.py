"""One GPU: its work, clocks, power, heat, memory, links and errors."""

from __future__ import annotations

from typing import Final

from dashboards import promql as p
from dashboards.boards import xids
from dashboards.boards.gpus import NOTHING_HERE
from dashboards.table import NOTABLE, Board, Column, Panel, Query, Row, Situation, Word, lines, stat, table, timeline

_G: Final = "instance, gpu"
_S: Final = Situation.GPUS
_NONE: Final = "no agent here sees a GPU; `aie-agent check` says why"
_GPM: Final = "needs GPM, which Hopper and later GPUs have"
_UP: Final = (("0", Word("does not answer", "red")), ("1", Word("answers", "green")))


def _gauge(metric: str, name: str, extra: str = "", labels: str = "") -> Query:
    kept = f"{_G}, {labels}" if labels else _G
    return Query(p.by(kept, p.of(metric, p.GPU, extra), "max"), f"{name} ({{{{instance}}}})")


def _now(title: str, question: str, unit: str, expr: str, **more: object) -> Panel:
    return stat(title, question, unit, Query(expr, p.OF_HOST), situation=_S, **{"empty": _NONE, **more})


def _max(metric: str, extra: str = "") -> str:
    return p.by(_G, p.of(metric, p.GPU, extra), "max")


_ANSWER: Final = Row(
    "",
    (
        _now("State", "Does it answer?", "none", _max("aie_gpu_up"), words=_UP),
        _now("Utilization", "Is it at work?", "percentunit", _max("aie_gpu_utilization_ratio")),
        _now(
            "Memory in use",
            "Is it full? Engines that take all of it at their start stay there.",
            "percentunit",
            p.by(_G, p.share(p.of("aie_gpu_memory_used_bytes", p.GPU), p.of("aie_gpu_memory_total_bytes", p.GPU)), "max"),
        ),
        _now("Temperature", "How hot is it?", "celsius", _max("aie_gpu_temperature_celsius", 'sensor="gpu"')),
        _now("Power", "How much does it draw?", "watt", _max("aie_gpu_power_watts")),
        _now(
            "XIDs in the time shown",
            "Did the driver report errors?",
            "none",
            xids.total(_G),
            steps=NOTABLE,
        ),
        table(
            "Which GPU this is",
            "What kind of GPU is it, where, with which driver?",
            Query(p.by("instance, gpu, name, uuid, pci_bus_id, driver, simulated", p.of("aie_gpu_info", p.GPU), "max")),
            columns=(
                Column("gpu", "gpu", width=70),
                Column("name", "name"),
                Column("uuid", "uuid"),
                Column("pci_bus_id", "bus id", width=170),
                Column("driver", "driver", width=130),
                Column("simulated", "simulated", width=110),
                Column("instance", "instance", link="host"),
                Column("job", "job", width=140),
            ),
            sort="gpu",
            ascending=True,
            height=4,
            situation=_S,
            empty=_NONE,
        ),
    ),
)

_WORK: Final = Row(
    "Work",
    (
        lines(
            "How busy",
            "Is it at work, and how much of it? Utilization counts any kernel, however small.",
            "percentunit",
            _gauge("aie_gpu_utilization_ratio", "utilization"),
            _gauge("aie_gpu_sm_active_ratio", "multiprocessors active"),
            _gauge("aie_gpu_sm_occupancy_ratio", "warps resident"),
            colours=("text", "blue", "green"),
            most=1,
            situation=_S,
            empty=_GPM,
        ),
        lines(
            "Tensor cores and memory bandwidth",
            "Is it bound by its tensor cores, or by its memory? Decoding is bound by memory.",
            "percentunit",
            _gauge("aie_gpu_tensor_active_ratio", "tensor cores"),
            _gauge("aie_gpu_dram_active_ratio", "memory bandwidth"),
            colours=("purple", "orange"),
            most=1,
            situation=_S,
            empty=_GPM,
        ),
        lines(
            "Memory",
            "How much is used, kept by the driver, and free?",
            "bytes",
            _gauge("aie_gpu_memory_used_bytes", "used"),
            _gauge("aie_gpu_memory_reserved_bytes", "driver"),
            _gauge("aie_gpu_memory_free_bytes", "free"),
            colours=("blue", "purple", "green"),
            stacked=True,
            situation=_S,
            empty=_NONE,
            runbooks=("gpu_orphan", "gpu_neighbour"),
        ),
        lines(
            "Processes",
            "Who else is on it, and can nothing come of some?",
            "none",
            _gauge("aie_gpu_processes", "processes"),
            _gauge("aie_gpu_orphan_processes", "orphans"),
            colours=("blue", "red"),
            situation=_S,
            empty=_NONE,
            runbooks=("gpu_orphan", "gpu_neighbour"),
        ),
        lines(
            "PCIe traffic",
            "How much goes over the bus, seen from the GPU?",
            "binBps",
            _gauge("aie_gpu_pcie_bytes_per_second", "{{direction}}", labels="direction"),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("pcie_bound",),
        ),
        lines(
            "NVLink traffic",
            "How much goes to other GPUs?",
            "binBps",
            Query(p.total("aie_gpu_nvlink_bytes_total", f"{_G}, direction", p.GPU), "{{direction}} ({{instance}})"),
            situation=_S,
            empty="no NVLink here",
        ),
    ),
)

_HELD_BACK: Final = Row(
    "What holds it back",
    (
        lines(
            "Clocks, of their highest",
            "Does it run as fast as it could?",
            "percentunit",
            Query(
                p.by(
                    f"{_G}, clock",
                    p.share(
                        p.of("aie_gpu_clock_hertz", p.GPU, 'clock=~"sm|memory"'),
                        p.of("aie_gpu_clock_max_hertz", p.GPU, 'clock=~"sm|memory"'),
                    ),
                    "max",
                ),
                "{{clock}} ({{instance}})",
            ),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_slowed",),
        ),
        lines(
            "Power and its limits",
            "Is the limit what holds it back, and was it lowered?",
            "watt",
            _gauge("aie_gpu_power_watts", "drawn"),
            _gauge("aie_gpu_power_limit_watts", "limit now"),
            _gauge("aie_gpu_power_limit_default_watts", "limit of the board"),
            colours=("blue", "red", "text"),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_power_cap", "gpu_power_limit"),
        ),
        lines(
            "Temperatures and their limits",
            "How near is the heat at which it slows down?",
            "celsius",
            _gauge("aie_gpu_temperature_celsius", "{{sensor}}", labels="sensor"),
            _gauge("aie_gpu_temperature_limit_celsius", "slows down", 'limit="slowdown"'),
            colours=("blue", "red"),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_thermal",),
        ),
        timeline(
            "Reasons for lower clocks",
            "What keeps the clocks down now? Idle is normal without work; a power cap is how most GPUs run.",
            Query(p.by(f"{_G}, reason", p.of("aie_gpu_clock_event_active", p.GPU), "max"), "{{reason}} ({{instance}})"),
            words=(("0", Word("no", "transparent")), ("1", Word("yes", "orange"))),
            width=16,
            height=9,
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_thermal", "gpu_power_brake"),
        ),
        lines(
            "Time held back",
            "For which share of time were clocks held down, by what?",
            "percentunit",
            Query(p.total("aie_gpu_throttle_seconds_total", f"{_G}, reason", p.GPU), "{{reason}} ({{instance}})"),
            height=9,
            situation=_S,
            empty="the driver does not tell",
        ),
    ),
)

_HEALTH: Final = Row(
    "Links and errors",
    (
        lines(
            "PCIe lanes",
            "Has the link all its lanes?",
            "none",
            _gauge("aie_gpu_pcie_link_width", "lanes now"),
            _gauge("aie_gpu_pcie_link_width_max", "lanes of the card"),
            colours=("blue", "text"),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_link_width", "gpu_slot_width"),
        ),
        lines(
            "PCIe generation",
            "Is the link as fast as it can be? It slows down without work, which is normal.",
            "none",
            _gauge("aie_gpu_pcie_link_generation", "generation now"),
            _gauge("aie_gpu_pcie_link_generation_max", "highest"),
            colours=("blue", "text"),
            situation=_S,
            empty="the driver does not tell",
            runbooks=("gpu_link_generation",),
        ),
        lines(
            "PCIe replays a second",
            "Is the link bad? A few are normal.",
            "short",
            Query(p.total("aie_gpu_pcie_replays_total", _G, p.GPU), p.OF_GPU),
            situation=_S,
            empty="the driver does not tell",
        ),
        lines(
            "ECC errors",
            "Does memory lose what is in it, in the time between two points?",
            "short",
            Query(
                p.by(f"{_G}, type", p.increase("aie_gpu_ecc_errors_total", p.GPU, 'since="volatile"', "$__rate_interval")),
                "{{type}} ({{instance}})",
            ),
            words=(("uncorrected", Word("", "red")), ("corrected", Word("", "yellow"))),
            situation=_S,
            empty="no ECC here",
            runbooks=("gpu_ecc", "gpu_row_remap"),
        ),
        lines(
            "NVLinks",
            "Are all links up?",
            "none",
            _gauge("aie_gpu_nvlink_links", "{{state}}", labels="state"),
            words=(("active", Word("", "green")), ("inactive", Word("", "red"))),
            situation=_S,
            empty="no NVLink here",
            runbooks=("gpu_nvlink_inactive", "gpu_nvlink_errors"),
        ),
        xids.xid_table(
            "Which errors did the driver report? `aie-top` tells what each number means, and what to do.",
            Column("instance", "instance", link="host"),
            width=8,
        ),
    ),
)

_MIG: Final = Row(
    "MIG instances",
    (
        lines(
            "Memory of instances",
            "How full is each instance?",
            "percentunit",
            Query(
                p.by(
                    f"{_G}, mig",
                    p.share(p.of("aie_gpu_mig_memory_used_bytes", p.GPU), p.of("aie_gpu_mig_memory_total_bytes", p.GPU)),
                    "max",
                ),
                "{{mig}} ({{instance}})",
            ),
            most=1,
            width=12,
            situation=_S,
            empty="this GPU is not divided",
        ),
        lines(
            "Multiprocessors active",
            "How much of each instance worked?",
            "percentunit",
            Query(p.by(f"{_G}, mig", p.of("aie_gpu_mig_sm_active_ratio", p.GPU), "max"), "{{mig}} ({{instance}})"),
            most=1,
            width=12,
            situation=_S,
            empty="this GPU is not divided, or has no GPM",
        ),
    ),
    folded=True,
)

GPU: Final = Board(
    "gpu",
    "aie / One GPU",
    "What does this GPU do, what holds it back, and is it broken?",
    ("job", "instance", "one_gpu"),
    (_ANSWER, _WORK, _HELD_BACK, _HEALTH, _MIG, NOTHING_HERE),
)
