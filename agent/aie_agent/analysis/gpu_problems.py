"""What is wrong with a GPU, for `api.Gpu.faults`: a table of causes, each a small function of what is known of it now.

Each states what the driver says, and a threshold where there is one. Why clocks are down and which XIDs came have fields of their
own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from aie_agent.analysis.links import (
    NVLINK_WINDOW_S,
    Link,
    Linked,
    Moment,
    busy_for_s,
    error_problem,
    generation_problem,
    inactive_problem,
    slot_problem,
    width_problem,
)
from aie_agent.analysis.window import increase
from aie_agent.samples import Tags
from aie_agent.series import Series
from aie_telemetry.api import GpuFault, Severity

Live = Mapping[str, Mapping[Tags, Series]]
"""The current series of one GPU, by metric and by the labels other than `gpu`."""

Others = Sequence[Live]
"""The other GPUs of the host."""

_GIB: Final = float(1 << 30)
# Boards round the limit that they are given.
_LIMIT_SLACK: Final = 0.99


class _Look(NamedTuple):
    """What is known of a GPU at one look. `link` is made of `live`, once for all rules."""

    live: Live
    now_s: float
    others: Others
    link: Link


class _Rule(NamedTuple):
    """A cause, how bad it is, and the function that finds it: the sentence, or None."""

    cause: str
    severity: Severity
    find: Callable[[_Look], str | None]


def faults(live: Live, now_s: float, others: Others = ()) -> tuple[GpuFault, ...]:
    """Everything that is wrong, the worst first. `others` are the other GPUs of the host."""
    look = _Look(live, now_s, others, link_of(live))
    found = ((rule, rule.find(look)) for rule in _RULES)
    return tuple(GpuFault(cause=rule.cause, text=text, severity=rule.severity) for rule, text in found if text is not None)


def _remap_failed(look: _Look) -> str | None:
    if _value(look.live, "aie_gpu_row_remap_failed") != 1:
        return None
    return "a row of its memory could not be replaced: have the board replaced"


def _remap_pending(look: _Look) -> str | None:
    if _value(look.live, "aie_gpu_row_remap_pending") != 1:
        return None
    return "a row of its memory waits to be replaced: reset the GPU when it is free (nvidia-smi --gpu-reset)"


def _ecc(look: _Look) -> str | None:
    errors = _value(look.live, "aie_gpu_ecc_errors_total", since="volatile", type="uncorrected")
    return f"{errors:.0f} uncorrected ECC errors since the driver was loaded: reset the GPU" if errors else None


def _orphans(look: _Look) -> str | None:
    orphans = _value(look.live, "aie_gpu_orphan_processes")
    if not orphans:
        return None
    held = _value(look.live, "aie_gpu_orphan_memory_bytes")
    what = "" if held is None else f" {held / _GIB:.1f} GiB"
    return f"{orphans:.0f} orphan process{'es' if orphans > 1 else ''} hold{'' if orphans > 1 else 's'} memory{what}: end them"


def _width(look: _Look) -> str | None:
    return width_problem(look.link)


def _slot(look: _Look) -> str | None:
    return slot_problem(look.link)


def _generation(look: _Look) -> str | None:
    return generation_problem(look.link, _moments(look.live, look.now_s), look.now_s)


def _power_limit(look: _Look) -> str | None:
    limit, default = _value(look.live, "aie_gpu_power_limit_watts"), _value(look.live, "aie_gpu_power_limit_default_watts")
    if limit is None or default is None or limit >= _LIMIT_SLACK * default:
        return None
    return f"power is limited to {limit:.0f} W of the board's {default:.0f} W: nvidia-smi -pl {default:.0f}, if that is not meant"


def _nvlink_inactive(look: _Look) -> str | None:
    inactive = _links(look.live, "inactive")
    if not inactive:
        return None
    return inactive_problem(
        Linked(
            active=_links(look.live, "active"),
            inactive=inactive,
            name=_name(look.live),
            best_of_peers=max(
                (_links(other, "active") or 0 for other in look.others if _name(other) == _name(look.live)), default=None
            ),
            is_only_gpu=not look.others,
            is_divided=_value(look.live, "aie_gpu_mig_mode") == 1,
        )
    )


def _links(live: Live, state: str) -> int | None:
    value = _value(live, "aie_gpu_nvlink_links", state=state)
    return None if value is None else int(value)


def _name(live: Live) -> str:
    return next((dict(tags).get("name", "") for tags in live.get("aie_gpu_info", {})), "")


def _nvlink_errors(look: _Look) -> str | None:
    rates: dict[str, float] = {}
    for tags, series in look.live.get("aie_gpu_nvlink_errors_total", {}).items():
        gained = increase(series, look.now_s - NVLINK_WINDOW_S, look.now_s)
        if gained is not None:
            rates[dict(tags)["kind"]] = gained[0] / NVLINK_WINDOW_S
    return error_problem(rates)


_RULES: Final = (
    _Rule("gpu_row_remap_failed", "critical", _remap_failed),
    _Rule("gpu_ecc", "warning", _ecc),
    _Rule("gpu_row_remap", "warning", _remap_pending),
    _Rule("gpu_nvlink_errors", "warning", _nvlink_errors),
    _Rule("gpu_orphan", "warning", _orphans),
    _Rule("gpu_link_width", "warning", _width),
    _Rule("gpu_slot_width", "warning", _slot),
    _Rule("gpu_link_generation", "warning", _generation),
    _Rule("gpu_nvlink_inactive", "warning", _nvlink_inactive),
    _Rule("gpu_power_limit", "warning", _power_limit),
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
        port_width=whole("aie_gpu_pcie_slot_width"),
        unified_memory=_value(live, "aie_gpu_memory_unified") == 1,
    )


def _moments(live: Live, now_s: float) -> Iterator[Moment]:
    """The readings of the last seconds in which generation and use were both known, by their common time."""
    generations = live.get("aie_gpu_pcie_link_generation", {}).get(())
    if generations is None:
        return
    start_s = now_s - busy_for_s(_spacing_s(generations))
    used, states = (_recent(live, f"aie_gpu_{name}", start_s) for name in ("utilization_ratio", "performance_state"))
    known = _recent(live, "aie_gpu_pcie_link_generation", start_s)
    for time_s, generation in known.items():
        if time_s in used:
            yield Moment(time_s, int(generation), used[time_s], int(states[time_s]) if time_s in states else None)


def _spacing_s(series: Series) -> float:
    """How far apart the two newest points are; 0 where there are no two."""
    times = [time_s for time_s, _ in series.ring.since(math.nextafter(series.last_time_s, -math.inf))]
    return times[-1] - times[0] if times else 0.0


def _recent(live: Live, metric: str, start_s: float) -> dict[float, float]:
    series = live.get(metric, {}).get(())
    return {} if series is None else {time_s: value for time_s, value in series.ring.since(start_s) if time_s >= start_s}


def _value(live: Live, metric: str, **labels: str) -> float | None:
    series = live.get(metric, {}).get(tuple(sorted(labels.items())) if labels else ())
    return None if series is None else series.value
