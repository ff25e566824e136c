"""What is wrong with a GPU, in sentences for `api.Gpu.problems`: a table of small functions of what is known of it now.

Each states what the driver says, and a threshold where there is one. Why clocks are down and which XIDs came have fields of their
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from aie_agent.analysis.links import BUSY_FOR_S, Link, Moment, generation_problem, width_problem
from aie_agent.samples import Tags
from aie_agent.series import Series

Live = Mapping[str, Mapping[Tags, Series]]
"""The current series of one GPU, by metric and by the labels other than `gpu`."""

_GIB: Final = float(1 << 30)
# Boards round the limit that they are given.
_LIMIT_SLACK: Final = 0.99


def problems(live: Live, now_s: float) -> tuple[str, ...]:
    """Everything that is wrong, the worst first."""
    found = (problem(live, now_s) for problem in _PROBLEMS)
    return tuple(sentence for sentence in found if sentence is not None)


def _remap_failed(live: Live, now_s: float) -> str | None:
    if _value(live, "aie_gpu_row_remap_failed") != 1:
        return None
    return "a row of its memory could not be replaced: have the board replaced"


def _remap_pending(live: Live, now_s: float) -> str | None:
    if _value(live, "aie_gpu_row_remap_pending") != 1:
        return None
    return "a row of its memory waits to be replaced: reset the GPU when it is free (nvidia-smi --gpu-reset)"


def _ecc(live: Live, now_s: float) -> str | None:
    errors = _value(live, "aie_gpu_ecc_errors_total", since="volatile", type="uncorrected")
    return f"{errors:.0f} uncorrected ECC errors since the driver was loaded: reset the GPU" if errors else None


def _orphans(live: Live, now_s: float) -> str | None:
    orphans = _value(live, "aie_gpu_orphan_processes")
    if not orphans:
        return None
    held = _value(live, "aie_gpu_orphan_memory_bytes")
    what = "" if held is None else f" {held / _GIB:.1f} GiB"
    return f"{orphans:.0f} orphan process{'es' if orphans > 1 else ''} hold{'' if orphans > 1 else 's'} memory{what}: end them"


def _width(live: Live, now_s: float) -> str | None:
    return width_problem(link_of(live))


def _generation(live: Live, now_s: float) -> str | None:
    return generation_problem(link_of(live), _moments(live, now_s), now_s)


def _power_limit(live: Live, now_s: float) -> str | None:
    limit, default = _value(live, "aie_gpu_power_limit_watts"), _value(live, "aie_gpu_power_limit_default_watts")
    if limit is None or default is None or limit >= _LIMIT_SLACK * default:
        return None
    return f"power is limited to {limit:.0f} W of the board's {default:.0f} W: nvidia-smi -pl {default:.0f}, if that is not meant"


_PROBLEMS: Final[tuple[Callable[[Live, float], str | None], ...]] = (
    _remap_failed,
    _ecc,
    _remap_pending,
    _orphans,
    _width,
    _generation,
    _power_limit,
)


def link_of(live: Live) -> Link:
    """The link as it is now."""

    def whole(metric: str) -> int | None:
        value = _value(live, metric)
        return None if value is None else int(value)

    return Link(
        width=whole("aie_gpu_pcie_link_width"),
        width_max=whole("aie_gpu_pcie_link_width_max"),
        generation=whole("aie_gpu_pcie_link_generation"),
        generation_max=whole("aie_gpu_pcie_link_generation_max"),
        unified_memory=_value(live, "aie_gpu_memory_unified") == 1,
    )


def _moments(live: Live, now_s: float) -> list[Moment]:
    """The readings of the last seconds in which generation and use were both known, by their common time."""
    start_s = now_s - BUSY_FOR_S
    used, states = (_recent(live, f"aie_gpu_{name}", start_s) for name in ("utilization_ratio", "performance_state"))
    known = _recent(live, "aie_gpu_pcie_link_generation", start_s)
    return [
        Moment(time_s, int(generation), used[time_s], int(states[time_s]) if time_s in states else None)
        for time_s, generation in known.items()
        if time_s in used
    ]


def _recent(live: Live, metric: str, start_s: float) -> dict[float, float]:
    series = live.get(metric, {}).get(())
    return {} if series is None else {time_s: value for time_s, value in series.ring.since(start_s) if time_s >= start_s}


def _value(live: Live, metric: str, **labels: str) -> float | None:
    series = live.get(metric, {}).get(tuple(sorted(labels.items())))
    return None if series is None else series.value
