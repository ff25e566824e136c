"""Physical memory against what the engine's allocator knows of: the first look at where memory went."""

from __future__ import annotations

from aie_agent.samples import Batch, Point
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind


def unaccounted(store: Store, engines: list[str], now_s: float) -> Batch:
    """`aie_engine_memory_unaccounted_bytes` for each engine and device of which both sides are known at `now_s`.

    On a CPU the gap holds the interpreter, libraries' heaps, thread stacks and the C allocator's slack: some hundred MB are
    normal, growth is not. On a GPU it holds the CUDA context of each process (290 to 400 MB, more as kernels are loaded for the
    first time), libraries' workspaces, NCCL's buffers and captured graphs. Where the driver does not tell memory by process, the
    physical side is that of the whole GPU for a process that is alone on it, and absent otherwise (`sources/nvml/process_join.py`).
    """
    batch = Batch("analysis", now_s, whole=("aie_engine_memory_unaccounted_bytes",))  # it goes with what it was made of
    for engine in engines:
        for series in store.scalars("aie_engine_memory_physical_bytes", engine=engine):
            device = dict(series.tags).get("device", "")
            reserved = store.current("aie_engine_allocator_reserved_bytes", now_s, engine=engine, device=device)
            if series.valid_until_s >= now_s and reserved is not None:
                tags = (("device", device), ("engine", engine))
                batch.points.append(Point("aie_engine_memory_unaccounted_bytes", Kind.GAUGE, tags, series.value - reserved))
    return batch
