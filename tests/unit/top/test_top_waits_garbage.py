"""Whatever an agent says of waits, locks and CUDA, aie-top shows something within its width, and raises nothing."""

from __future__ import annotations

import datetime

import agent_api as fake
import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aie_telemetry.api import Coverage, CudaCopies, CudaSyncs, CudaUse, Lock, Waits
from aie_top.decode import decode_snapshot
from aie_top.model import build_frame
from aie_top.report import report_lines
from aie_top.rows import AgentState, View
from aie_top.text import cell_width
from aie_top.views.pages import engine_page
from aie_top.views.tables import Place
from aie_top.views.waits import wait_lines, waits_page

known = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([-1.0, 0.0, 1e300, -1e300])
number = st.none() | known
whole = st.integers(-5, 1 << 62)
text = st.text(max_size=40)
amounts = st.dictionaries(text, known, max_size=12)
Fields = st.SearchStrategy[dict[str, object]]


def drawn(kind: type[msgspec.Struct], /, **fields: st.SearchStrategy[object]) -> Fields:
    assert set(fields) == set(kind.__struct_fields__), "a field that is not drawn here"
    return st.fixed_dictionaries(fields)


waits = drawn(Waits, **dict.fromkeys(Waits.__struct_fields__, number))
lock = drawn(
    Lock,
    tgid=whole,
    address=text,
    kind=st.sampled_from(["lock", "gil"]),
    waiting_threads=known,
    waits_per_second=known,
    longest_seconds=known,
    waiters=whole,
    line=st.none() | text,
    native=st.lists(text, max_size=3),
)
copies = drawn(CudaCopies, bytes_per_second=known, burst_bytes=number)
syncs = drawn(CudaSyncs, calls_per_second=known, p50_seconds=number, p99_seconds=number)
cuda = drawn(
    CudaUse,
    outstanding_bytes=amounts,
    outstanding_allocations=number,
    by_module=amounts,
    by_size_class_bytes=amounts | st.just({str(1 << 31): 4.0}),
    allocated_bytes_per_second=number,
    freed_bytes_per_second=number,
    allocations_per_second=number,
    unknown_frees_per_second=number,
    copies=st.dictionaries(text, copies, max_size=3),
    syncs=st.dictionaries(text, syncs, max_size=3),
    sync_waiting=st.none() | whole,
    sync_longest_wait_seconds=number,
    launches_per_second=amounts,
    contexts=st.none() | whole,
    failures=amounts | st.just({"cuMemAlloc:2": 1.0}),
)
coverage = drawn(
    Coverage,
    set=text | st.sampled_from(["locks", "ebpf"]),
    state=st.sampled_from(["on", "part", "off", "none", "window"]),
    reason=text,
    missing=st.lists(text, max_size=14),
    notes=st.lists(text, max_size=14),
    remedy=text,
)
engine = st.fixed_dictionaries(
    {
        "waits": st.none() | waits,
        "locks": st.lists(lock, max_size=4),
        "cuda": st.none() | cuda,
        "coverage": st.lists(coverage, max_size=5),
        "probe_overhead_ratio": number,
    }
)


@settings(max_examples=200, deadline=None)
@given(st.lists(engine, min_size=1, max_size=3), st.integers(4, 200), st.integers(1, 60))
def test_all_that_is_said_of_waits_keeps_to_its_width(engines: list[dict[str, object]], width: int, height: int) -> None:
    told = msgspec.to_builtins(fake.snapshot())
    told["engines"] = [{"name": f"e{at}", "state": "up"} | one for at, one in enumerate(engines)]
    snapshot = decode_snapshot(msgspec.json.encode(told))
    frame = build_frame([AgentState(label="x", phase="live", snapshot=snapshot, received_s=0.0)], 0.0, datetime.UTC)
    shown = [*wait_lines(frame, View(), Place(width, height)), *waits_page(frame, width)]
    for row in frame.engines:
        shown += engine_page(frame, row.key, width)
    assert all(cell_width(one.plain()) <= width for one in shown)
    assert all(cell_width(one.plain()) <= 80 for one in report_lines(frame, View()))
