"""Hooks on layers: real modules of torch, their numbers against float64, and what must not be disturbed."""

from __future__ import annotations

import copy
import io
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hook_receivers import UnixReceiver, levels, manual_emitter, totals
from torch import Tensor, nn

from aie_hooks import ModuleHooks, modules
from aie_hooks.modules import MAX_LAYERS, first_float_tensor, reduce_output

KINDS = ("mean", "std", "max_abs")


class _Layer(nn.Module):
    """Gives what `shape` makes of its output."""

    def __init__(self, width: int, shape: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.shape = shape

    def forward(self, x: Tensor) -> Any:
        return self.shape(self.linear(x))


class _Net(nn.Module):
    def __init__(self, layers: int = 3, width: int = 8, shape: Callable[[Tensor], Any] = lambda y: y) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(_Layer(width, shape) for _ in range(layers))
        self.seen: list[Any] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen = []
        for layer in self.layers:
            output = layer(x)
            self.seen.append(output)
            x = first_float_tensor(output) if not isinstance(output, Tensor) else output  # type: ignore[assignment]
        return x


class _Watched:
    def __init__(self, receiver: UnixReceiver, path: Path, net: nn.Module, layers: Any = "layers.*", **options: Any) -> None:
        self.receiver = receiver
        self.net = net
        self.emitter = manual_emitter(f"unix://{path}")
        self.hooks = ModuleHooks(self.emitter, net, model="m", layers=layers, **{"every": 1, **options})

    def sent(self) -> dict[tuple[str, str], float]:
        """By kind and layer."""
        self.hooks.report()
        self.emitter.flush()
        samples = self.receiver.samples()
        values = {**levels(samples), **totals(samples)}
        return {
            (name.removeprefix("aie_engine_activation_"), dict(tags)["layer"]): value
            for (name, tags), value in values.items()
            if name.startswith("aie_engine_activation_")
        }


def _hook_count(net: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules())


def _oracle(output: Tensor) -> tuple[float, float, float]:
    wide = output.detach().double()
    return float(wide.mean()), float(wide.std(correction=0)), float(wide.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_numbers_against_float64(dtype: torch.dtype) -> None:
    output = torch.randn(13, 577, generator=torch.Generator().manual_seed(2)).mul_(3).add_(1).to(dtype)
    mean, variance, max_abs, nonfinite = reduce_output(output).tolist()
    assert (mean, math.sqrt(variance), max_abs) == pytest.approx(_oracle(output), rel=1e-4)
    assert nonfinite == 0


def test_each_layers_numbers_arrive(receiver: UnixReceiver, socket_path: Path) -> None:
    net = _Net()
    watched = _Watched(receiver, socket_path, net)
    net(torch.randn(4, 8))
    sent = watched.sent()
    for index, output in enumerate(net.seen):
        assert tuple(sent[kind, f"layers.{index}"] for kind in KINDS) == pytest.approx(_oracle(output), rel=1e-4)
        assert sent["nonfinite_total", f"layers.{index}"] == 0


@pytest.mark.parametrize(
    "shape",
    [
        lambda y: (y, torch.zeros(2)),
        lambda y: [torch.zeros(2, dtype=torch.int64), y],
        lambda y: {"ids": torch.zeros(2, dtype=torch.int64), "hidden": y},
        lambda y: (None, y),
    ],
)
def test_outputs_that_are_more_than_a_tensor(receiver: UnixReceiver, socket_path: Path, shape: Callable[[Tensor], Any]) -> None:
    net = _Net(1, shape=shape)
    watched = _Watched(receiver, socket_path, net)
    net(torch.randn(4, 8))
    output = first_float_tensor(net.seen[0])
    assert output is not None
    sent = watched.sent()
    assert tuple(sent[kind, "layers.0"] for kind in KINDS) == pytest.approx(_oracle(output), rel=1e-4)


def test_nan_and_infinity_are_counted_and_no_mean_is_invented(receiver: UnixReceiver, socket_path: Path) -> None:
    def poison(y: Tensor) -> Tensor:
        y = y.clone()
        y[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
        return y

    watched = _Watched(receiver, socket_path, net := _Net(1, shape=poison))
    net(torch.randn(4, 8))
    net(torch.randn(4, 8))
    assert watched.sent() == {("nonfinite_total", "layers.0"): 6.0}
    assert watched.emitter.stats().dropped["invalid"] == 0


@pytest.mark.parametrize("output", [torch.empty(0, 8), torch.ones(3, dtype=torch.int64), None, "text"])
def test_outputs_that_have_no_numbers(receiver: UnixReceiver, socket_path: Path, output: Any) -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Any:
            return output

    net = nn.Sequential(nn.Linear(8, 8), Odd())
    watched = _Watched(receiver, socket_path, net, "1")
    assert net(torch.randn(2, 8)) is output
    assert watched.sent() == {("nonfinite_total", "1"): 0.0}
    assert watched.emitter.stats().dropped["invalid"] == 0


def test_only_every_nth_step_is_looked_at(receiver: UnixReceiver, socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = []
    monkeypatch.setattr(modules, "reduce_output", lambda tensor: reduced.append(tensor) or reduce_output(tensor))
    net = _Net(2)
    watched = _Watched(receiver, socket_path, net, every=3)
    for step in range(7):
        net(torch.full((1, 8), float(step)))
        assert _hook_count(net) == 1  # of an unsampled step, and after every step: the one on the model
    assert len(reduced) == 2 * 3
    assert torch.equal(reduced[-1], net.seen[-1])
    assert watched.sent()["mean", "layers.1"] == pytest.approx(_oracle(net.seen[-1])[0], rel=1e-4)


def test_the_output_is_what_it_was(receiver: UnixReceiver, socket_path: Path) -> None:
    net, x = _Net(), torch.randn(4, 8)
    plain = net(x)
    watched = _Watched(receiver, socket_path, net)
    assert torch.equal(net(x), plain)
    watched.hooks.remove()
    assert _hook_count(net) == 0
    assert torch.equal(net(x), plain)
    assert watched.sent()["mean", "layers.0"] == pytest.approx(_oracle(net.seen[0])[0], rel=1e-4)


def test_under_inference_mode_and_with_gradients(receiver: UnixReceiver, socket_path: Path) -> None:
    net = _Net()
    watched = _Watched(receiver, socket_path, net)
    with torch.inference_mode():
        net(torch.randn(4, 8))
    assert watched.sent()["std", "layers.2"] > 0
    net(torch.randn(4, 8)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())
    assert not watched.hooks._pending[0].numbers.requires_grad


@pytest.mark.parametrize("compiled", ["the whole model", "one layer"])
def test_compiled_code_is_left_alone(receiver: UnixReceiver, socket_path: Path, compiled: str) -> None:
    from torch._dynamo.testing import CompileCounter

    counter = CompileCounter()
    net, x = _Net(2), torch.randn(4, 8)
    plain = net(x)
    watched = _Watched(receiver, socket_path, net, every=2)
    if compiled == "one layer":
        net.layers[0].compile(backend=counter)
        call: Callable[[Tensor], Tensor] = net
    else:
        call = torch.compile(net, backend=counter)
    with torch.no_grad():
        for _ in range(6):
            torch.testing.assert_close(call(x), plain)
    if compiled == "one layer":
        assert counter.frame_count == 1  # hooks that come and go are no reason to compile again
        assert watched.sent()["mean", "layers.1"] == pytest.approx(_oracle(plain)[0], rel=1e-3)
    assert watched.emitter.stats().dropped["invalid"] == 0


def test_a_forward_that_raises_raises_the_same_and_leaves_no_hook(receiver: UnixReceiver, socket_path: Path) -> None:
    def broken(y: Tensor) -> Tensor:
        raise KeyError("mine")

    net = _Net(2)
    net.layers[1].shape = broken  # type: ignore[assignment]
    watched = _Watched(receiver, socket_path, net)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            net(torch.randn(4, 8))
    assert _hook_count(net) == 1
    assert watched.sent()["std", "layers.0"] > 0


@pytest.mark.parametrize("function", ["reduce_output", "_fetches", "first_float_tensor"])
def test_a_hook_that_throws_inside_does_not_reach_the_engine(
    receiver: UnixReceiver, socket_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, function: str
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a defect of ours")

    net = _Net(1)
    watched = _Watched(receiver, socket_path, net)
    plain = net(x := torch.randn(4, 8))
    monkeypatch.setattr(modules, function, broken)
    for _ in range(3):
        assert torch.equal(net(x), plain)
    monkeypatch.undo()
    assert watched.emitter.stats().dropped["invalid"] == 3
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "a defect of ours" in caplog.text


class _Late:
    """As `torch.cuda.Event`: the copy has arrived at the third question."""

    asked = 0

    def query(self) -> bool:
        self.asked += 1
        return self.asked >= 3


def test_numbers_are_read_when_they_have_come_and_not_waited_for(
    receiver: UnixReceiver, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = _Net(1)
    watched = _Watched(receiver, socket_path, net, every=100)
    net(torch.randn(4, 8))
    watched.hooks._pending = [watched.hooks._pending[0]._replace(arrived=_Late())]
    for _ in range(2):
        assert watched.sent().keys() <= {("nonfinite_total", "layers.0")}
    assert watched.sent()["std", "layers.0"] > 0
    assert watched.hooks._pending == []


def test_a_device_that_never_answers_fills_no_memory(receiver: UnixReceiver, socket_path: Path) -> None:
    net = _Net(1)
    watched = _Watched(receiver, socket_path, net)

    class Never:
        def query(self) -> bool:
            return False

    for _ in range(20):
        net(torch.randn(4, 8))
        watched.hooks._pending = [fetch._replace(arrived=Never()) for fetch in watched.hooks._pending]
    assert len(watched.hooks._pending) == modules._MAX_PENDING


def test_which_layers_a_pattern_fits(receiver: UnixReceiver, socket_path: Path) -> None:
    net = _Net(3)
    assert list(modules.matching_layers(net, ["layers.*.linear", "layers.1"])) == [
        "layers.0.linear",
        "layers.1",
        "layers.1.linear",
        "layers.2.linear",
    ]
    assert list(modules.matching_layers(net, ["layers.[02]"])) == ["layers.0", "layers.2"]


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ("model.layers.*", {}, r"no layer is called 'model.layers.\*'; there are layers, layers.0, layers.0.linear, .*\.\.\.$"),
        (["layers.0", "lm_head"], {}, "no layer is called 'lm_head'"),
        ("layers.*", {"every": 0}, "every must be at least 1"),
        ("layers.*", {}, f"{MAX_LAYERS + 1} layers are more than {MAX_LAYERS}"),
    ],
)
def test_what_cannot_be_watched(
    receiver: UnixReceiver, socket_path: Path, layers: Any, options: dict[str, int], message: str
) -> None:
    net = _Net(MAX_LAYERS + 1)
    with pytest.raises(ValueError, match=message):
        ModuleHooks(manual_emitter(f"unix://{socket_path}"), net, model="m", layers=layers, **options)
    assert _hook_count(net) == 0


def test_while_a_graph_is_captured_no_event_is_looked_at(
    receiver: UnixReceiver, socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forbidden:
        def query(self) -> bool:
            raise RuntimeError("operation not permitted when stream is capturing")

    net = _Net(1)
    watched = _Watched(receiver, socket_path, net, every=100)
    net(torch.randn(4, 8))
    watched.hooks._pending = [watched.hooks._pending[0]._replace(arrived=Forbidden())]
    monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(3):
        net(torch.randn(4, 8))
    assert watched.emitter.stats().dropped["invalid"] == 0
    assert len(watched.hooks._pending) == 1


def _pickled(net: nn.Module) -> nn.Module:
    loaded: nn.Module = pickle.loads(pickle.dumps(net))
    return loaded


def _saved(net: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, _pickled, _saved])
def test_a_watched_model_can_be_copied_and_its_copy_is_silent(
    receiver: UnixReceiver, socket_path: Path, copied: Callable[[nn.Module], nn.Module]
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    watched = _Watched(receiver, socket_path, net, layers="*")
    x = torch.randn(2, 8)
    expected = net(x)
    watched.sent()
    twin = copied(net)
    if copied is not copy.copy:  # which shares the layers, and so their hooks
        assert torch.equal(twin(x), expected)
        assert watched.sent() == {}
        assert torch.equal(copy.deepcopy(twin)(x), expected)
    net(x)
    assert len(watched.sent()) == 8
    watched.hooks.remove()


def test_a_model_copied_in_the_middle_of_a_step(receiver: UnixReceiver, socket_path: Path) -> None:
    class Copying(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            twins.append(copy.deepcopy(net))
            return x

    twins: list[nn.Module] = []
    net = nn.Sequential(nn.Linear(8, 8), Copying())
    watched = _Watched(receiver, socket_path, net, layers="*")
    x = torch.randn(2, 8)
    net(x)
    assert len(watched.sent()) == 8
    assert torch.equal(twins[0][0](x), net[0](x))


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")  # of every value of a trace that Python looks at
def test_torch_jit_traces_as_without_hooks(receiver: UnixReceiver, socket_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    x = torch.randn(2, 8)
    plain = str(torch.jit.trace(net, x).graph)
    watched = _Watched(receiver, socket_path, net, layers="*")
    assert str(torch.jit.trace(net, x, check_trace=False).graph).count("aten::") == plain.count("aten::")
    assert {kind for kind, _ in watched.sent()} == {"nonfinite_total"}  # the announcement of counters


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_torch_jit_scripts_the_model_once_it_is_not_watched(receiver: UnixReceiver, socket_path: Path) -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    watched = _Watched(receiver, socket_path, net, layers="*")
    x = torch.randn(2, 8)
    with pytest.raises(Exception, match="_Hook"):
        torch.jit.script(net)
    watched.hooks.remove()
    assert torch.equal(torch.jit.script(net)(x), net(x))
