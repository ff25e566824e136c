"""Whatever an agent says of a GPU, aie-top shows something within its width, and raises nothing."""

from __future__ import annotations

import datetime
from typing import Any

import agent_api as fake
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_telemetry.api import Gpu, GpuFault, GpuProcess, MigInstance
from aie_top.decode import decode_snapshot
from aie_top.layout import plan
from aie_top.model import arrange, build_frame
from aie_top.panels import PANELS
from aie_top.rows import AgentState, View
from aie_top.text import cell_width
from aie_top.views.gpu_page import gpu_page, gpu_processes_page
from aie_top.views.history import Selected, history_lines
from aie_top.views.tables import Place

number = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-1.0, 0.0, 371.0, 1e300, 2.0**64 - 1])
whole = st.integers(-5, 1 << 62)
text = st.text(max_size=60)
history = st.lists(number, max_size=70)

# By the type that the field has in the API.
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "float | None": number,
    "int | None": st.none() | whole,
    "bool | None": st.none() | st.booleans(),
    "bool": st.booleans(),
    "int": whole,
    "str": text,
    "str | None": st.none() | text,
    "tuple[str, ...]": st.lists(text, max_size=4),
    "tuple[float | None, ...]": history,
    "dict[str, float]": st.dictionaries(text, number.filter(lambda value: value is not None), max_size=4),
}


def any_of(kind: type[msgspec.Struct], **more: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    fields = {name: VALUES[type_] for name, type_ in kind.__annotations__.items() if type_ in VALUES}
    assert set(fields) | set(more) == set(kind.__struct_fields__), "a field of a type that is not drawn here"
    return st.fixed_dictionaries(fields | more)


severity = st.sampled_from(["info", "warning", "critical"])
process = any_of(GpuProcess, tgid=st.integers(1, 6), parent_tgid=st.none() | st.integers(1, 6))
fault = any_of(GpuFault, severity=severity)
gpu = any_of(
    Gpu,
    processes=st.lists(process, max_size=5),
    faults=st.lists(fault, max_size=4),
    mig=st.lists(any_of(MigInstance), max_size=4),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(gpu, max_size=5), st.integers(1, 210), st.integers(1, 65), st.integers(0, 5))
def test_no_garbage_about_gpus_breaks_the_screen(rows: list[dict[str, Any]], width: int, height: int, cursor: int) -> None:
    body = msgspec.json.encode(msgspec.to_builtins(fake.healthy()) | {"gpus": rows})
    state = AgentState(label="http://a:1", phase="live", snapshot=decode_snapshot(body), received_s=0.0)
    frame = arrange(build_frame([state], 0.0, datetime.UTC), View())
    planned = plan(frame, width, height)
    lines = [*history_lines(frame, Selected(gpu_first=True), width, planned.history), *gpu_processes_page(frame, width)]
    for panel in PANELS:
        at = min(cursor, max(len(panel.rows(frame)) - 1, 0))
        lines += panel.lines(frame, View(), Place(width, planned.panels[panel.name], at))
    for row in frame.gpus:
        lines += gpu_page(frame, row.key, max(width, 10))
    assert all(cell_width(one.plain()) <= max(width, 10) for one in lines)
    assert len(frame.gpus) == len(rows)


@pytest.mark.parametrize("count", [200])
def test_many_processes_are_counted_where_they_do_not_fit(count: int) -> None:
    held = [{"tgid": 1000 + at, "command": f"worker {at}"} for at in range(count)]
    one = {"index": 0, "name": "NVIDIA H100", "uuid": "GPU-0", "pci_bus_id": "0", "up": True, "processes": held}
    body = msgspec.json.encode(msgspec.to_builtins(fake.healthy()) | {"gpus": [one]})
    state = AgentState(label="http://a:1", phase="live", snapshot=decode_snapshot(body), received_s=0.0)
    frame = build_frame([state], 0.0, datetime.UTC)
    panel = next(panel for panel in PANELS if panel.name == "gpu_processes")
    shown = panel.lines(frame, View(), Place(120, 21, None))
    assert len(shown) == 21
    assert "20/200" in shown[0].plain()
