"""What flows through chosen layers of a model, looked at every so many steps: mean, standard deviation, largest magnitude, and how
many values are NaN or infinite.

    watch = ModuleHooks(emitter, net, model="m", layers="model.layers.*")
    ...
    watch.remove()

A step is a call of `net`. Most steps pay for one hook on `net` alone; in a sampled one each watched layer's output is reduced to
four numbers on its device. They are copied to the host while the engine goes on, and read when a later step begins and they have
come: nothing is waited for.

Where Python does not run, nothing is seen: in what torch.compile compiled, and in a replayed CUDA graph. During tracing and capture
the hooks do nothing, so neither is disturbed. In a copy of the model, pickled or not, stand-ins do nothing in their place.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from aie_hooks.emitter import Emitter
from aie_hooks.series import Counter, Gauge

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.utils.hooks import RemovableHandle

MAX_LAYERS: Final = 64
"""Layers that one `ModuleHooks` watches: each is four series."""

_NAMED_IN_ERRORS: Final = 8
_MAX_PENDING: Final = 4


class _Handles(NamedTuple):
    """Where one layer's numbers go."""

    mean: Gauge
    std: Gauge
    max_abs: Gauge
    nonfinite: Counter


class _Fetch(NamedTuple):
    """Numbers of a sampled step on their way to the host: `numbers` (layers, 4) is valid once `arrived` says so (None: already)."""

    layers: Sequence[str]
    numbers: Tensor
    arrived: Any | None


class ModuleHooks:
    """Watches the layers of one model. For models that one thread calls at a time, which is how models are called."""

    def __init__(self, emitter: Emitter, net: Module, *, model: str, layers: str | Iterable[str], every: int = 100) -> None:
        """`layers` are names as in `net.named_modules()`, or patterns in which `*` stands for anything but a dot. Every `every`-th
        call of `net` is looked at, and the first.

        Raises ValueError for a pattern that fits no layer, for more than `MAX_LAYERS` layers, for `every` below 1, and as handles
        do.
        """
        if every < 1:
            raise ValueError(f"every must be at least 1, not {every!r}")
        self._emitter = emitter
        self._every = every
        self._layers = matching_layers(net, [layers] if isinstance(layers, str) else list(layers))
        self._handles = {name: _handles(emitter, model, name) for name in self._layers}
        self._steps = 0
        self._rows: dict[str, Tensor] = {}
        self._pending: list[_Fetch] = []
        self._temporary: list[RemovableHandle] = []
        self._permanent = net.register_forward_pre_hook(_Hook(self._begin_step))

    def remove(self) -> None:
        """Leaves the model as it was. What has arrived is still reported."""
        self._permanent.remove()
        self._drop_temporary()
        self.report()

    def report(self) -> None:
        """Sends what has arrived from the device. Each step does so when it begins; call it where no step follows."""
        try:
            if _is_capturing(self._pending):
                return
            self._pending = [fetch for fetch in self._pending if not self._sent(fetch)]
        except Exception as error:  # noqa: BLE001 - a defect of ours must not become the engine's, and it is logged
            self._pending = []
            self._emitter.failed("reading what layers gave", error)

    def _begin_step(self, net: Module, *_: Any) -> None:
        if _is_traced():
            return
        if self._pending:
            self.report()
        step, self._steps = self._steps, self._steps + 1
        if step % self._every:
            return
        try:
            # Only now, and not for good: a hook costs every call of its layer a microsecond or two.
            self._drop_temporary()
            self._temporary.append(net.register_forward_hook(_Hook(self._end_step), always_call=True))
            for name, layer in self._layers.items():
                self._temporary.append(layer.register_forward_hook(_Hook(functools.partial(self._see, name))))
        except Exception as error:  # noqa: BLE001 - as above
            self._emitter.failed("watching layers", error)

    def _see(self, name: str, layer: Module, arguments: Any, output: Any) -> None:
        """The hook on a layer. Returns None: the output stays what it is."""
        if _is_traced():
            return
        try:
            tensor = first_float_tensor(output)
            if tensor is not None and tensor.numel() and not _is_captured(tensor):
                self._rows[name] = reduce_output(tensor)
        except Exception as error:  # noqa: BLE001 - as above
            self._emitter.failed(f"looking at the output of layer {name}", error)

    def _end_step(self, *_: Any) -> None:
        if _is_traced():
            return
        self._drop_temporary()
        rows, self._rows = self._rows, {}
        try:
            self._pending += _fetches(rows)
            del self._pending[:-_MAX_PENDING]
        except Exception as error:  # noqa: BLE001 - as above
            self._emitter.failed("fetching what layers gave", error)

    def _drop_temporary(self) -> None:
        for handle in self._temporary:
            handle.remove()
        self._temporary = []

    def _sent(self, fetch: _Fetch) -> bool:
        """Whether the numbers have come, and were sent. Of a layer with NaN or infinite values only their count is a number."""
        if fetch.arrived is not None and not fetch.arrived.query():
            return False
        for name, (mean, variance, max_abs, nonfinite) in zip(fetch.layers, fetch.numbers.tolist(), strict=True):
            handles = self._handles[name]
            handles.nonfinite.add(nonfinite)
            if not nonfinite:
                handles.mean.set(mean)
                handles.std.set(math.sqrt(variance))
                handles.max_abs.set(max_abs)
        return True


class _Hook:
    """A function as a hook of a module. A module is copied and pickled with its hooks, but what stands behind this one is a socket,
    and the copy of a model is not the model that is watched: there it becomes `_nothing`."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., None]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> None:
        self._function(*arguments)

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _Hook, (_nothing,)


def _nothing(*_: Any) -> None:
    pass


def matching_layers(net: Module, patterns: Sequence[str]) -> dict[str, Module]:
    """The layers of `net` whose names fit a pattern, in the model's order. Raises ValueError as `ModuleHooks` does."""
    named = {name: layer for name, layer in net.named_modules() if name}
    found: set[str] = set()
    for pattern in patterns:
        fits = {name for name in named if _fits(name, pattern)}
        if not fits:
            some = ", ".join(list(named)[:_NAMED_IN_ERRORS])
            raise ValueError(f"no layer is called {pattern!r}; there are {some}{', ...' if len(named) > _NAMED_IN_ERRORS else ''}")
        found |= fits
    if len(found) > MAX_LAYERS:
        raise ValueError(f"{len(found)} layers are more than {MAX_LAYERS}: choose fewer")
    return {name: layer for name, layer in named.items() if name in found}


def _fits(name: str, pattern: str) -> bool:
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(fnmatchcase(part, want) for part, want in zip(parts, wanted, strict=True))


def first_float_tensor(output: Any) -> Tensor | None:
    """The tensor that a layer's output is, or that stands first in it: layers return tuples, lists and mappings too."""
    import torch

    for value in _flat(output):
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    return None


def _flat(output: Any) -> Iterator[Any]:
    if isinstance(output, Mapping):
        yield from output.values()
    elif isinstance(output, tuple | list):
        yield from output
    else:
        yield output


def reduce_output(output: Tensor) -> Tensor:
    """Mean, variance (of the population), largest magnitude, and number of NaN and infinite values of a tensor that is not empty:
    (4,) in float32 on its device, without waiting for it. With a value that is not finite the first three mean nothing.

    Three passes (mean with variance, least with greatest, finiteness); half precision is copied to float32 first.
    """
    import torch

    x = output.detach().float()
    variance, mean = torch.var_mean(x, correction=0)
    least, greatest = torch.aminmax(x)
    # A number less itself is 0; of NaN and infinity it is NaN, which is not zero.
    nonfinite = torch.count_nonzero(x - x).float()
    return torch.stack((mean, variance, torch.maximum(-least, greatest), nonfinite))


def _fetches(rows: Mapping[str, Tensor]) -> list[_Fetch]:
    """Starts to copy the rows to the host, one copy a device."""
    import torch

    by_device: dict[Any, list[str]] = {}
    for name, row in rows.items():
        by_device.setdefault(row.device, []).append(name)
    fetches = []
    for device, names in by_device.items():
        numbers = torch.stack([rows[name] for name in names])
        if device.type != "cuda":
            fetches.append(_Fetch(names, numbers, None))
            continue
        pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
        pinned.copy_(numbers, non_blocking=True)
        arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        arrived.record(torch.cuda.current_stream(device))
        fetches.append(_Fetch(names, pinned, arrived))
    return fetches


def _is_traced() -> bool:
    import torch

    return torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]


def _is_capturing(pending: Sequence[_Fetch]) -> bool:
    """Whether a CUDA graph is being captured, which a look at an event would break. Asked only where CUDA is in use."""
    import torch

    built: bool = torch.backends.cuda.is_built()  # type: ignore[no-untyped-call]
    in_use = built and any(fetch.arrived is not None for fetch in pending)
    return in_use and torch.cuda.is_current_stream_capturing()


def _is_captured(tensor: Tensor) -> bool:
    import torch

    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def _handles(emitter: Emitter, model: str, layer: str) -> _Handles:
    return _Handles(
        emitter.gauge("aie_engine_activation_mean", model=model, layer=layer),
        emitter.gauge("aie_engine_activation_std", model=model, layer=layer),
        emitter.gauge("aie_engine_activation_max_abs", model=model, layer=layer),
        emitter.counter("aie_engine_activation_nonfinite_total", model=model, layer=layer),
    )
