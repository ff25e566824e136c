"""What a recording's events mean: which begin a warm-up anew, and which make an engine give back what it only retains.

Only whole words count, and words that mean nothing by themselves only beside what they are said of: `model_load` begins a warm-up,
`load test` does not.
"""

from __future__ import annotations

import re
from typing import Final

_ALONE: Final = frozenset(
    {"restart", "restarted", "restarting", "reload", "reloaded", "reshard", "resharded", "resharding", "warmup"}
    | {"deploy", "deployed", "deployment", "redeploy", "redeployed", "rollout"}
    | {"oomkilled", "crashed", "crashloopbackoff", "exited", "respawn", "respawned", "respawning"}
)
_PAIRS: Final = (
    frozenset({"warm", "up"}),
    frozenset({"re", "shard"}),
    frozenset({"oom", "kill"}),
    frozenset({"oom", "killed"}),
)
_ENDS_MAYBE: Final = frozenset({"oom", "liveness", "kill", "killed", "killing", "sigkill", "crash", "segfault"})
"""What a process may survive: a request that found no memory, a probe that was late once."""
_ADAPTERS: Final = frozenset({"lora", "loras", "adapter", "adapters"})
_OF: Final = _ADAPTERS | frozenset(
    {"engine", "server", "service", "process", "worker", "workers", "pod", "container", "replica", "model", "models", "weights"}
    | {"checkpoint"}
)
_DONE: Final = frozenset(
    {"start", "started", "starting", "boot", "booted", "load", "loaded", "loading", "swap", "swapped", "switched"}
)
_GRAPHS: Final = frozenset({"graph", "graphs", "cudagraph", "cudagraphs"})
_CAPTURED: Final = frozenset({"capture", "captured", "capturing", "captures"})
_PROBES: Final = (
    frozenset({"gc", "collect"}),
    frozenset({"empty", "cache"}),
    frozenset({"malloc", "trim"}),
    frozenset({"memory", "probe"}),
)
_PROBES_ALONE: Final = frozenset({"gc", "trim", "probe"})
"""Only where the event says nothing else: a `gc pause` or an `empty batch` asks for nothing."""
_TESTS: Final = frozenset({"test", "tests", "testing", "benchmark", "bench", "balancer", "average"})
"""A load test of a model, or the load average of a server, loads nothing."""


def restarts_warm_up(event: str) -> bool:
    """Whether memory may rise after such an event as after a start: a model or LoRA loaded, graphs captured, re-sharded."""
    words = _words(event)
    if not words.isdisjoint(_ALONE) or any(pair <= words for pair in _PAIRS):
        return True
    if not words.isdisjoint(_GRAPHS) and not words.isdisjoint(_CAPTURED):
        return True
    return not words.isdisjoint(_OF) and not words.isdisjoint(_DONE) and words.isdisjoint(_TESTS)


def may_end_a_life(event: str) -> bool:
    """Whether memory that falls with such an event is another process's: it was killed, or about to be."""
    words = _words(event)
    return not words.isdisjoint(_ENDS_MAYBE) or {"out", "memory"} <= words


def comes_on_top(event: str) -> bool:
    """Whether what begins a warm-up anew leaves all that was there: adapters and graphs are added, a model or a process is new."""
    words = _words(event)
    if not words.isdisjoint(_ALONE) or any(pair <= words for pair in _PAIRS):
        return False
    return words.isdisjoint(_OF - _ADAPTERS)


def gives_back(event: str) -> bool:
    """Whether such an event makes an engine give back what it only retains: gc.collect, empty_cache, malloc_trim."""
    words = _words(event)
    return any(pair <= words for pair in _PROBES) or (len(words) == 1 and words <= _PROBES_ALONE)


def _words(event: str) -> set[str]:
    return {word for word in re.split(r"[^a-z]+", event.lower()) if word}
