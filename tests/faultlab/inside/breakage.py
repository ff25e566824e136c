"""What can be broken inside an engine's process, on command through a Unix socket: one line of JSON in, one line of text out.

Each fault is a function that is a context manager: entered when it begins, left when it ends. Nothing of it runs before.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import json
import mmap
import os
import random
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

MIB: Final = 1 << 20
PAGE: Final = 4096


def listen(path: str) -> None:
    """Serves commands on a socket at `path` from a thread of its own."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    Path(path).unlink(missing_ok=True)
    server.bind(path)
    server.listen()
    threading.Thread(target=_serve, args=(server,), name="faultlab", daemon=True).start()


def _serve(server: socket.socket) -> None:
    running: dict[str, contextlib.ExitStack] = {}
    while True:
        connection, _ = server.accept()
        with connection, connection.makefile("rw", encoding="utf-8") as stream:
            try:
                _obey(json.loads(stream.readline()), running)
                stream.write("done\n")
            except Exception:  # noqa: BLE001 - whatever went wrong, the lab must hear of it
                stream.write(traceback.format_exc().replace("\n", " | ") + "\n")


def _obey(command: dict[str, Any], running: dict[str, contextlib.ExitStack]) -> None:
    name, begins = command.pop("fault"), command.pop("begins")
    if not begins:
        running.pop(name).close()
        return
    stack = contextlib.ExitStack()
    stack.enter_context(FAULTS[name](**command))
    running[name] = stack


@contextlib.contextmanager
def _threads(count: int, name: str, work: Callable[[threading.Event], None]) -> Iterator[None]:
    """So many threads at `work`, which ends when its event is set."""
    over = threading.Event()
    threads = [threading.Thread(target=work, args=(over,), name=name, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _patched(owner: type, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, functools.wraps(original)(make(original)))
    try:
        yield
    finally:
        setattr(owner, name, original)


# -- Python: the interpreter lock, other locks, regular expressions, garbage -----------------------------------------------------


@contextlib.contextmanager
def gil_hog(threads: int = 2) -> Iterator[None]:
    """Threads that compute in pure Python and never wait."""

    def hog(over: threading.Event) -> None:
        total = 0
        while not over.is_set():
            for number in range(10_000):
                total += number * number

    with _threads(threads, "report-builder", hog):
        yield


@contextlib.contextmanager
def global_lock(held_s: float = 0.02, threads: int = 4) -> Iterator[None]:
    """One lock around the tokeniser; besides requests, threads that count the tokens of what was logged go through it."""
    from aie_engine.tokenizer import Tokenizer

    lock = threading.Lock()
    tokenizers: list[Tokenizer] = []

    def locked(original: Callable[..., Any]) -> Callable[..., Any]:
        def encode(self: Tokenizer, text: str, *, allow_special: bool) -> Any:
            with lock:
                tokenizers[:] = [self]
                time.sleep(held_s)
                return original(self, text, allow_special=allow_special)

        return encode

    def count_tokens(over: threading.Event) -> None:
        while not over.is_set():
            if tokenizers:
                tokenizers[0].encode("A line of a log. " * 40, allow_special=False)
            else:
                time.sleep(0.05)

    with _patched(Tokenizer, "encode", locked), _threads(threads, "token-counter", count_tokens):
        yield


@contextlib.contextmanager
def regex_backtracking(seconds: float = 0.6) -> Iterator[None]:
    """Each prompt goes through a regular expression that backtracks for about so long."""
    from aie_engine.tokenizer import Tokenizer

    pattern, text, took_s = re.compile(r"(\w+\s?)+$"), "a" * 14, 0.0
    while took_s < seconds:  # each letter doubles it
        text += "a"
        began = time.perf_counter()
        pattern.match(text + "!")
        took_s = time.perf_counter() - began

    def cleaned(original: Callable[..., Any]) -> Callable[..., Any]:
        def encode(self: Tokenizer, prompt: str, *, allow_special: bool) -> Any:
            pattern.match(text + "!")
            return original(self, prompt, allow_special=allow_special)

        return encode

    with _patched(Tokenizer, "encode", cleaned):
        yield


@contextlib.contextmanager
def gc_storm(objects: int = 1_500_000, pause_s: float = 0.3) -> Iterator[None]:
    """Many small objects that live, and a full collection every moment."""

    def collect(over: threading.Event) -> None:
        held: list[list[object]] = [[] for _ in range(objects)]
        while held and not over.wait(pause_s):
            gc.collect()

    with _threads(1, "collector", collect):
        yield


# -- memory ----------------------------------------------------------------------------------------------------------------------


def _growing(take: Callable[[int], object], mb_per_s: float, most_mb: float, over: threading.Event) -> None:
    """Takes memory at this rate until there is `most_mb` of it; what `take` gives is kept as long as the process."""
    step_s, taken = 0.1, 0.0
    while not over.wait(step_s):
        if taken < most_mb:
            _KEPT.append(take(int(mb_per_s * step_s * MIB)))
            taken += mb_per_s * step_s


_KEPT: Final[list[object]] = []


@contextlib.contextmanager
def tensors_kept(mb_per_s: float, most_mb: float = 8000.0) -> Iterator[None]:
    """A list of tensors that nobody empties."""
    import torch

    with _threads(1, "history", lambda over: _growing(lambda size: torch.ones(size, dtype=torch.uint8), mb_per_s, most_mb, over)):
        yield


def _native(size: int) -> int:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    address = int(libc.malloc(size))
    ctypes.memset(address, 1, size)
    return address


@contextlib.contextmanager
def native_kept(mb_per_s: float, most_mb: float = 8000.0) -> Iterator[None]:
    """Memory of malloc that nobody frees, and no allocator knows of. With a low `most_mb`: a cache that fills and stops."""
    with _threads(1, "native", lambda over: _growing(_native, mb_per_s, most_mb, over)):
        yield


@contextlib.contextmanager
def released(megabytes: int = 600, held_s: float = 15.0) -> Iterator[None]:
    """So much is taken at once, and given back a while later."""

    def hold(over: threading.Event) -> None:
        with mmap.mmap(-1, megabytes * MIB) as area:
            for offset in range(0, len(area), PAGE):
                area[offset] = 1
            over.wait(held_s)

    with _threads(1, "loader", hold):
        yield


@contextlib.contextmanager
def mapped_weights_dropped(file: str, threads: int = 1) -> Iterator[None]:
    """Weights that are read from a mapped file, whose pages are taken away again and again."""
    size = os.path.getsize(file)

    def read(over: threading.Event) -> None:
        with open(file, "rb") as weights, mmap.mmap(weights.fileno(), 0, prot=mmap.PROT_READ) as area:
            area.madvise(mmap.MADV_RANDOM)
            pages = random.Random(0)
            while not over.is_set():
                area.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(weights.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for _ in range(2000):
                    area[pages.randrange(size // PAGE) * PAGE]
                    if over.is_set():
                        return

    with _threads(threads, "weights", read):
        yield


class _FullGpu:
    """What torch and the driver say of a GPU that the process itself has filled: `torch.cuda`, as far as the hooks ask it."""

    _TOTAL: Final = 80_994 * MIB
    _FREE: Final = 16 * MIB
    _ALLOCATED: Final = 80_000 * MIB

    def mem_get_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes."""
        return self._FREE, self._TOTAL

    def memory_stats(self, device: int) -> dict[str, int]:
        """Of the allocator, which keeps next to nothing for later; the rest is the context's."""
        return {"allocated_bytes.all.current": self._ALLOCATED, "reserved_bytes.all.current": self._ALLOCATED + 32 * MIB}

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """No free block."""
        return []


@contextlib.contextmanager
def cuda_out_of_memory(statsd: str, engine: str, every_s: float = 1.0) -> Iterator[None]:
    """torch says, as it does, that the process itself has filled a GPU: again and again, where the hooks hear it."""
    import torch

    from aie_hooks.emitter import Emitter
    from aie_hooks.oom import oom_forensics

    message = (
        "CUDA out of memory. Tried to allocate 100.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 16.00 MiB is free. "
        "Including non-PyTorch memory, this process has 79.08 GiB memory in use."
    )
    emitter, gpu = Emitter(engine, statsd), _FullGpu()

    def step(over: threading.Event) -> None:
        while not over.wait(every_s):
            with contextlib.suppress(torch.OutOfMemoryError), oom_forensics(emitter, device=0, cuda=gpu):
                raise torch.OutOfMemoryError(message)

    with _threads(1, "steps", step):
        yield
    emitter.close()


# -- model and caches ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def response_cache_off() -> Iterator[None]:
    """What is looked up is never found."""
    from aie_engine.response_cache import ResponseCache

    def missed(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, key: original(self, b"no such key")

    with _patched(ResponseCache, "get", missed):
        yield


@contextlib.contextmanager
def layer_scaled(layer: int = 12, factor: float = 8.0) -> Iterator[None]:
    """The weights of one layer's norm, times `factor` (NaN: they are no numbers any more)."""
    before: list[Any] = []

    def damage(decoder: Any) -> None:
        weight = decoder.layers[layer].mlp_norm
        before.append(weight.clone())
        weight.mul_(factor)

    _between_steps(damage)
    try:
        yield
    finally:
        _between_steps(lambda decoder: decoder.layers[layer].mlp_norm.copy_(before[0]))


def _between_steps(do: Callable[[Any], object]) -> None:
    """Runs `do` with the decoder on the thread that owns the model, before its next step."""
    from aie_engine.model import Decoder

    done = threading.Event()

    def once(original: Callable[..., Any]) -> Callable[..., Any]:
        def hidden_states(self: Any, *arguments: Any, **named: Any) -> Any:
            if not done.is_set():
                do(self)
                done.set()
            return original(self, *arguments, **named)

        return hidden_states

    with _patched(Decoder, "hidden_states", once):
        if not done.wait(60.0):
            raise TimeoutError("no step within a minute")


FAULTS: Final[dict[str, Callable[..., contextlib.AbstractContextManager[None]]]] = {
    each.__name__: each
    for each in (
        gil_hog,
        global_lock,
        regex_backtracking,
        gc_storm,
        tensors_kept,
        native_kept,
        released,
        mapped_weights_dropped,
        cuda_out_of_memory,
        response_cache_off,
        layer_scaled,
    )
}
