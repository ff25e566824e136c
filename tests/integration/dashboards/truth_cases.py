"""Small histories in which a query of a panel could lie, and what it must say of them."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from dashboards.table import Kind

_OF: Final = 'job="aie", instance="h"'
_GPU: Final = f'{_OF}, gpu="0"'
_TTFT: Final = "aie_engine_time_to_first_token_seconds"


class Case(NamedTuple):
    """What Prometheus has, one sample a minute, and what the query of a panel says of it at `at`; labels are without `job`."""

    name: str
    board: str
    panel: str
    series: dict[str, str]
    at: str
    expected: dict[str, float]
    query: int = 0
    kind: Kind | None = None
    row: str = ""
    instance: str = ".+"


def _replica(instance: str, values: str, bounds: tuple[str, ...], engine: str = "e") -> dict[str, str]:
    """Requests of a replica that all come within the first bound."""
    labels = f'job="aie", instance="{instance}", engine="{engine}", model="m"'
    buckets = {f'{_TTFT}_bucket{{{labels}, le="{bound}"}}': values for bound in (*bounds, "+Inf")}
    return {f"{_TTFT}_count{{{labels}}}": values, **buckets}


def _link(**more: str) -> dict[str, str]:
    """The link of a GPU of sixteen lanes and generation 5 that is at work; by `more`, what differs, or is there as well."""
    values = {"pcie_link_width": "16", "pcie_link_generation": "5", "utilization_ratio": "0.9", "performance_state": "0", **more}
    card = {"pcie_link_width_max": "16", "pcie_link_generation_max": "5", "memory_unified": "0"}
    return {f"aie_gpu_{name}{{{_GPU}}}": f"{value}x60" for name, value in {**card, **values}.items()}


def _of_eight() -> dict[str, str]:
    """A card that has eight lanes."""
    return {f"aie_gpu_pcie_link_width_max{{{_GPU}}}": "8x60"}


def _xid(count: str, last: str, xid: str = "167") -> dict[str, str]:
    return {
        f"aie_gpu_up{{{_GPU}}}": "1x120",
        f'aie_gpu_xid_errors_total{{{_GPU}, xid="{xid}"}}': count,
        f'aie_gpu_xid_last_timestamp_seconds{{{_GPU}, xid="{xid}"}}': last,
    }


def _elsewhere(series: dict[str, str], **labels: str) -> dict[str, str]:
    """The same of another host or GPU."""
    for label, value in labels.items():
        series = {re.sub(rf'\b{label}="[^"]*"', f'{label}="{value}"', each): values for each, values in series.items()}
    return series


_TITLES: Final = {
    _TTFT: ("Time to first token: 99 % within 1 s", "1"),
    "aie_engine_inter_token_seconds": ("Time between tokens: 99 % within 0.1 s", "0.1"),
    "aie_engine_request_duration_seconds": ("Duration of requests: 99 % within 20.48 s", "20.48"),
}
"""Rows of objectives, and their bounds."""
_LANES: Final = ("gpus", "PCIe lanes missing")
_GENERATIONS: Final = ("gpus", "PCIe generations missing, while busy")
_XIDS: Final = "XIDs in the time shown"
_ROW: Final = 'gpu="0", instance="h", xid="167"'
_EIGHT: Final = {'gpu="0", instance="h"': 8}
_COMMON: Final = {
    **_xid("0x10 3x60", "_x11 660x60"),
    **_elsewhere(_xid("0x10 5x60", "_x11 660x60"), gpu="1"),
    **_elsewhere(_xid("0x10 2x60", "_x11 660x60"), instance="i"),
}
_EACH_COMMON: Final = {'gpu="0", instance="h"': 3.0, 'gpu="1", instance="h"': 5.0, 'gpu="0", instance="i"': 2.0}
_OF_FOUR: Final = {
    **_xid("_x10 1x60", "_x10 600x60"),
    **_xid("_x10 2x60", "_x10 600x60", "31"),
    **_elsewhere(_xid("_x10 4x60", "_x10 600x60"), gpu="1"),
    **_elsewhere(_xid("_x10 5x60", "_x10 600x60"), instance="i"),
    **_elsewhere(_xid("0x60", "_"), instance="i", gpu="1"),
}
_FOUR: Final = {
    'gpu="0", instance="h", xid="167"': 1.0,
    'gpu="0", instance="h", xid="31"': 2.0,
    'gpu="1", instance="h", xid="167"': 4.0,
    'gpu="0", instance="i", xid="167"': 5.0,
}
_EACH_OF_FOUR: Final = {
    'gpu="0", instance="h"': 3.0,
    'gpu="1", instance="h"': 4.0,
    'gpu="0", instance="i"': 5.0,
    'gpu="1", instance="i"': 0.0,
}
CASES: Final = (
    Case(
        "a replica that was replaced counts above and below",
        *("slo", "Kept"),
        {**_replica("a", "0+100x30 stale", ("1",)), **_replica("b", "_x30 0+100x30", ("1",))},
        *("50m", {'engine="e", model="m"': 1.0}),
    ),
    Case(
        "a replica without the bound counts neither above nor below",
        *("slo", "Kept"),
        {**_replica("a", "0+100x60", ("1",)), **_replica("b", "0+100x60", ("0.75",))},
        *("50m", {'engine="e", model="m"': 1.0}),
    ),
    Case(
        "the budget is that of thirty days",
        *("slo", "Requests answered without error"),
        {
            f'aie_engine_requests_total{{{_OF}, engine="e", model="m", outcome="ok"}}': "0+999x500",
            f'aie_engine_requests_total{{{_OF}, engine="e", model="m", outcome="error"}}': "0x1 500x498",  # all of 0.1 %
        },
        *("500m", {'engine="e", model="m"': 0.0}),
    ),
    *(
        Case(
            f"a burst of errors half an hour ago, over {over}",
            *("slo", "How fast the budget goes"),
            {
                f'aie_engine_requests_total{{{_OF}, engine="e", model="m", outcome="ok"}}': "0+100x600",
                f'aie_engine_requests_total{{{_OF}, engine="e", model="m", outcome="error"}}': "0x569 10x60",
            },
            *("600m", {'engine="e", model="m"': burning}),
            query,
            row="Requests answered without error: 99.9 %",
        )
        for query, (over, burning) in enumerate((("5m", 0.0), ("1h", 1.664), ("6h", 0.278)))
    ),
    *(
        Case(
            f"what is asked within {_TITLES[metric][1]} for four minutes is slow no more, at {at:g}",
            *("slo", "How long it takes"),
            {
                f'{metric}_bucket{{{_OF}, engine="e", model="m", le="{le}"}}': values
                for le, values in ((bound, "1000x26 1060+60x10"), ("2560", "1000+60x40"), ("+Inf", "1000+60x40"))
            },
            *("30m30s", {'engine="e", model="m"': round(at * float(bound), 3)}),
            query,
            row=_TITLES[metric][0],
        )
        for metric, (_, bound) in _TITLES.items()
        for query, at in enumerate((0.5, 0.95, 0.99))
    ),
    Case(
        "requests that fail for four minutes",
        *("slo", "What did not end well"),
        {f'aie_engine_requests_total{{{_OF}, engine="e", model="m", outcome="error"}}': "1000x26 1060+60x10"},
        *("30m30s", {'instance="h", outcome="error"': 1.0}),
    ),
    Case(
        "an engine is down while its host does not answer",
        *("slo", "Kept", {f'aie_engine_up{{{_OF}, engine="e"}}': "1x29 stale", f"up{{{_OF}}}": "1x29 0x60"}),
        *("60m", {'engine="e"': 0.508}),  # 30 of 59 looks: the first two minutes could be those of a restart
        row="Time with a live replica: 99.9 % of the time",
    ),
    Case(
        "an engine that was removed before its host fell silent is not down with it",
        *("slo", "Kept"),
        {f'aie_engine_up{{{_OF}, engine="e"}}': "1x29 stale", f"up{{{_OF}}}": "1x149 0x60"},
        *("200m", {}),
        row="Time with a live replica: 99.9 % of the time",
    ),
    Case(
        "an engine that moved to another host is up",
        *("slo", "Kept"),
        {
            f'aie_engine_up{{{_OF}, engine="e"}}': "1x29 stale",
            f"up{{{_OF}}}": "1x29 0x60",
            'aie_engine_up{job="aie", instance="new", engine="e"}': "_x30 1x60",
        },
        *("60m", {'engine="e"': 1.0}),
        row="Time with a live replica: 99.9 % of the time",
    ),
    *(
        Case(
            f"{panel} is of the slowest engine, not of a sum of other bounds",
            *("engine", panel),
            {
                labels.replace(_TTFT, metric): values
                for engine, bounds in (("vllm", ("0.5", "2560")), ("aie", ("0.512",)))
                for labels, values in _replica("a", "0+100x60", bounds, engine).items()
            },
            *("30m", {"": 0.507}),
        )
        for panel, metric in (("First token, p99", _TTFT), ("Between tokens, p99", "aie_engine_inter_token_seconds"))
    ),
    Case("a slot of eight has no lanes missing", *_LANES, _link(pcie_link_width="8", pcie_slot_width="8"), "30m", {}),
    Case("a link below its slot", *_LANES, _link(pcie_link_width="4", pcie_slot_width="8"), "30m", {'gpu="0", instance="h"': 4}),
    Case("a link below its card", *_LANES, _link(pcie_link_width="8", pcie_slot_width="16"), "30m", {'gpu="0", instance="h"': 8}),
    Case("a slot that nothing is known of", *_LANES, _link(pcie_link_width="8"), "30m", {'gpu="0", instance="h"': 8}),
    Case("a GPU that is part of the host", *_LANES, _link(pcie_link_width="8", memory_unified="1"), "30m", {}),
    Case(
        "a slot of a hypervisor's, with fewer than there are",
        *_LANES,
        _link(pcie_link_width="8", pcie_slot_width="4"),
        "30m",
        _EIGHT,
    ),
    Case(
        "a slot with more than the card",
        *(*_LANES, {**_link(pcie_link_width="8", pcie_slot_width="16"), **_of_eight()}, "30m", {}),
    ),
    Case("all lanes", *_LANES, _link(pcie_slot_width="16"), "30m", {}),
    Case("a busy link below its best", *_GENERATIONS, _link(pcie_link_generation="3"), "30m", {'gpu="0", instance="h"': 2}),
    Case("hardly busy", *_GENERATIONS, _link(pcie_link_generation="3", utilization_ratio="0.3"), "30m", {}),
    Case("clocks are down", *_GENERATIONS, _link(pcie_link_generation="3", performance_state="8"), "30m", {}),
    Case("the link rests between looks", *_GENERATIONS, _link(pcie_link_generation="5x27 1x3 5"), "30m", {}),
    Case("busy for a moment", *_GENERATIONS, _link(pcie_link_generation="3", utilization_ratio="0.1x28 0.9 0.1"), "30m", {}),
    Case("clocks were down a moment ago", *_GENERATIONS, _link(pcie_link_generation="3", performance_state="0x27 8 0"), "30m", {}),
    Case("a GPU that is part of the host", *_GENERATIONS, _link(pcie_link_generation="3", memory_unified="1"), "30m", {}),
    Case(
        "one of three, with another beside it and another on its number",
        *_GENERATIONS,
        {
            **_link(pcie_link_generation="3"),
            **_elsewhere(_link(pcie_link_generation="2", utilization_ratio="0.1"), gpu="1"),
            **_elsewhere(_link(pcie_link_generation="1", performance_state="8"), instance="i"),
        },
        *("30m", {'gpu="0", instance="h"': 2}),
    ),
    *(
        case._replace(kind=Kind.TABLE)
        for board in ("gpus", "gpu")
        for case in (
            Case("the first error of a number", board, _XIDS, _xid("_x10 1x60", "_x10 600x60"), "30m", {_ROW: 1.0}),
            Case("three at once", board, _XIDS, _xid("_x10 3x60", "_x10 600x60"), "30m", {_ROW: 3.0}),
            Case("one of a common number", board, _XIDS, _xid("0x10 1x60", "_x11 660x60"), "40m", {_ROW: 1.0}),
            Case("a failed scrape is no error", board, _XIDS, _xid("1x80 stale 1x20", "30x80 stale 30x20"), "90m", {}),
            Case("none", board, _XIDS, _xid("0x60", "_"), "30m", {}),
            Case("three of a common number", board, _XIDS, _xid("0x10 3x60", "_x11 660x60"), "40m", {_ROW: 3.0}),
            Case("none in the time shown", board, _XIDS, _xid("_x10 2x120", "_x10 600x120"), "90m", {}),
            Case("seen before, and again", board, _XIDS, _xid("1x80 2x20", "30x80 4800x20"), "90m", {_ROW: 1.0}),
            Case("of four GPUs", board, _XIDS, _OF_FOUR, "30m", _FOUR),
            Case("seen by the agent before this one", board, _XIDS, _xid("_x10 0x60", "_x10 540x60"), "30m", {_ROW: 1.0}),
        )
    ),
    *(
        Case(f"when it was seen, {what}", board, _XIDS, series, at, expected, 1, Kind.TABLE)
        for board in ("gpus", "gpu")
        for what, series, at, expected in (
            ("the last time", _xid("_x10 1x10 2x60", "_x10 600x10 1260x60"), "30m", {_ROW: 540.0}),
            ("which is not in the time shown", _xid("_x10 1x120", "_x10 600x120"), "90m", {}),
        )
    ),
    Case("of a common number, in all", "gpus", _XIDS, _COMMON, "40m", {"": 10.0}, kind=Kind.STAT),
    Case("of a common number, of each", "gpu", _XIDS, _COMMON, "40m", _EACH_COMMON, kind=Kind.STAT),
    Case("none of them in the time shown", "gpus", _XIDS, _xid("_x10 2x120", "_x10 600x120"), "90m", {"": 0.0}, kind=Kind.STAT),
    Case("of four GPUs in all", "gpus", _XIDS, _OF_FOUR, "30m", {"": 12.0}, kind=Kind.STAT),
    Case("of each of four GPUs", "gpu", _XIDS, _OF_FOUR, "30m", _EACH_OF_FOUR, kind=Kind.STAT),
    *(
        Case("when it was seen", board, _XIDS, _xid("_x10 1x60", "_x10 600x60"), "30m", {_ROW: 1200.0}, 1, Kind.TABLE)
        for board in ("gpus", "gpu")
    ),
    *(
        Case(f"{number} in all", board, _XIDS, series, "30m", {labels: number}, kind=Kind.STAT)
        for board, labels in (("gpus", ""), ("gpu", 'gpu="0", instance="h"'))
        for number, series in ((3.0, _xid("_x10 3x60", "_x10 600x60")), (0.0, _xid("0x60", "_")))
    ),
)
