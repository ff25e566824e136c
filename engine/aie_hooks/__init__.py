"""Instrumentation for any PyTorch engine. Importing this imports neither torch nor anything of an engine."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aie_hooks.allocator import AllocatorHook as AllocatorHook
    from aie_hooks.allocator import AllocatorStats as AllocatorStats
    from aie_hooks.allocator import torch_cuda_stats as torch_cuda_stats
    from aie_hooks.canary import Canary as Canary
    from aie_hooks.emitter import Emitter as Emitter
    from aie_hooks.emitter import EmitterStats as EmitterStats
    from aie_hooks.logits import LogitsHook as LogitsHook
    from aie_hooks.logits import LogitsHooks as LogitsHooks
    from aie_hooks.logits import token_stats as token_stats
    from aie_hooks.memory_probe import MemoryProbe as MemoryProbe
    from aie_hooks.modules import ModuleHooks as ModuleHooks
    from aie_hooks.nvtx import annotate as annotate
    from aie_hooks.oom import OomForensics as OomForensics
    from aie_hooks.oom import PoolState as PoolState
    from aie_hooks.oom import oom_forensics as oom_forensics
    from aie_hooks.oom import report_oom as report_oom
    from aie_hooks.requests import RequestHook as RequestHook
    from aie_hooks.requests import RequestHooks as RequestHooks
    from aie_hooks.series import Counter as Counter
    from aie_hooks.series import Gauge as Gauge
    from aie_hooks.series import Histogram as Histogram
    from aie_hooks.tracing import span_tracer as span_tracer
    from aie_hooks.vllm_stats import VllmStats as VllmStats

# On first use, so that an engine pays only for what it uses.
_HOMES: Final = {
    "AllocatorHook": "allocator",
    "AllocatorStats": "allocator",
    "Canary": "canary",
    "Counter": "series",
    "Emitter": "emitter",
    "EmitterStats": "emitter",
    "Gauge": "series",
    "Histogram": "series",
    "LogitsHook": "logits",
    "LogitsHooks": "logits",
    "MemoryProbe": "memory_probe",
    "ModuleHooks": "modules",
    "OomForensics": "oom",
    "PoolState": "oom",
    "RequestHook": "requests",
    "RequestHooks": "requests",
    "VllmStats": "vllm_stats",
    "annotate": "nvtx",
    "oom_forensics": "oom",
    "report_oom": "oom",
    "span_tracer": "tracing",
    "token_stats": "logits",
    "torch_cuda_stats": "allocator",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
