"""The engine on a device: is it right, and how fast is it, beside transformers where that is installed.

It runs as it does everywhere: bf16, one code path, no kernels of its own.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from aie_engine.model_config import ModelConfig
from gpu_models import Model, from_folder, random_model
from gpu_peers import Engine, Peer, Starting
from gpu_report import Context

# Rounding differs between two bf16 implementations, not its size: ours may be off by half as much again as another.
_ERROR_RATIO: Final = 1.5


class Work(NamedTuple):
    """How much is done: the random model, then tokens, steps, sequences, bytes, and the side of a square matrix."""

    config: ModelConfig
    prompt: int
    answer: int
    context: int
    decode_steps: int
    prefill: int
    steady_steps: int
    batches: tuple[int, ...]
    copied_bytes: int
    matrix: int


def _config(layers: int, hidden: int, heads: int, kv_heads: int, ffn: int, vocab: int, context: int) -> ModelConfig:
    return ModelConfig(layers, hidden, heads, kv_heads, hidden // heads, ffn, vocab, context, 10_000.0, 1e-6, tied_head=True)


FULL: Final = Work(_config(16, 2048, 32, 8, 8192, 128_256, 8192), 64, 24, 512, 64, 2048, 200, (1, 8, 32), 2 << 30, 8192)
"""The shape of Llama 3.2 1B."""
SMALL: Final = Work(_config(2, 64, 4, 2, 96, 320, 256), 16, 8, 24, 4, 48, 20, (1, 2), 8 << 20, 128)


def engine(context: Context) -> None:
    """Everything on the context's device."""
    if context.is_cuda:
        context.torch_on_cuda()
    work = SMALL if context.small else FULL
    model = random_model(work.config, context.device) if context.model is None else from_folder(context.model)
    ours = _engine(model, context.device, torch.bfloat16, work)
    peer = _peer(model, ours.device)
    report = context.report
    report.fact("beside_transformers", peer is not None)
    report.fact("parameters", ours.runner.weights_bytes // 2)
    _correctness(context, model, ours, peer, work)
    _speed(context, ours, peer, work)
    _memory(context, ours, work)
    arena = ours.arena
    text = f"{arena.used} used + {arena.free} free of {arena.capacity} tokens at the end, and at every change"
    report.check("used + free = capacity of the KV cache", ours.sums_up and arena.free == arena.capacity, text)


class Difference(NamedTuple):
    """Logits against a reference: root of the mean square over the reference's own spread, and the largest one."""

    relative: float
    largest: float


def difference(logits: Tensor, reference: Tensor) -> Difference:
    """Both [tokens, vocab], on any device and of any dtype."""
    exact = reference.float().cpu()
    gap = logits.float().cpu() - exact
    return Difference(float(gap.square().mean().sqrt() / exact.std()), float(gap.abs().max()))


def divergence(tokens: Sequence[int], reference: Sequence[int], logits: Tensor) -> tuple[int, float]:
    """How many tokens agree, and by how much the reference prefers its own where they part; 0 where they never do.

    `logits` [tokens, vocab] are the reference's.
    """
    for index, (token, expected) in enumerate(zip(tokens, reference, strict=True)):
        if token != expected:
            return index, float(logits[index, expected] - logits[index, token])
    return len(tokens), 0.0


def _engine(model: Model, device: str, dtype: torch.dtype, work: Work) -> Engine:
    rooms = (
        max(work.batches) * (work.context + work.decode_steps + 1),
        work.context + work.steady_steps + 1,
        work.prompt + work.answer + 1,
        work.prefill + 1,
    )
    return Engine(model.load(device, dtype), max(rooms), work.prefill)


def _peer(model: Model, device: torch.device) -> Peer | None:
    try:
        return Peer(model.peer(device), device)
    except ModuleNotFoundError:
        return None


def _correctness(context: Context, model: Model, ours: Engine, peer: Peer | None, work: Work) -> None:
    """Against the same engine in fp32 on the CPU; how far bf16 may be off is told by another one in bf16."""
    prompt = _random_ids(ours.loaded.config, 1, work.prompt)
    answer, expected = _greedy(_engine(model, "cpu", torch.float32, work), prompt, work.answer)
    tokens, told = _greedy(ours, prompt, work.answer)[0], _greedy(ours, prompt, work.answer, forced=answer)[1]
    if peer is not None:
        other, other_told = "transformers in bf16", peer.logits(prompt[0] + answer)[work.prompt - 1 : -1]
    else:
        rounded = _engine(model, "cpu", torch.bfloat16, work)
        other, other_told = "the engine in bf16 on the CPU", _greedy(rounded, prompt, work.answer, forced=answer)[1]
    off, other_off = difference(told, expected), difference(other_told, expected)
    agree, gap = divergence(tokens, answer, expected)
    finite = bool(torch.isfinite(told).all())
    report = context.report
    report.check("no NaN and no infinity", finite, f"in {told.numel():,} logits")
    text = f"{off.relative:.2%} of their spread off, {off.largest:.3f} at most; "
    text += f"{other} {other_off.relative:.2%}, {other_off.largest:.3f}"
    report.check("logits against the CPU in fp32", finite and off.relative <= _ERROR_RATIO * other_off.relative, text)
    text = f"{agree} of {len(answer)} agree" + (f", then two that differ by {gap:.3f} there" if agree < len(answer) else "")
    report.check("greedy tokens against the CPU in fp32", gap <= 2 * off.largest, text)


def _greedy(one: Engine, prompt: list[list[int]], tokens: int, forced: Sequence[int] | None = None) -> tuple[list[int], Tensor]:
    """A greedy answer and the logits of each of its tokens, [tokens, vocab]; with `forced` those of that answer instead."""
    last = prompt[0][-1:]
    run = one.begin([prompt[0][:-1]], tokens + 1)
    run.sequences[0][-1:] = last  # the last token of the prompt is computed as a decode step, so that its logits can be had
    rows = []
    for index in range(tokens):
        rows.append(run.logits()[0].float().cpu())
        run.step()
        if forced is not None:
            run.sequences[0][-1] = forced[index]
    run.end()
    return run.sequences[0][len(prompt[0]) :], torch.stack(rows)


def _speed(context: Context, ours: Engine, peer: Peer | None, work: Work) -> None:
    config, report = ours.loaded.config, context.report
    ceiling_bytes, ceiling_flops = _ceilings(ours, work)
    report.fact("device_copies_gb_per_second", ceiling_bytes / 1e9)
    report.fact("device_multiplies_tflop_per_second", ceiling_flops / 1e12)
    weights_bytes = ours.runner.weights_bytes - (0 if config.tied_head else ours.loaded.decoder.embedding.nbytes)
    for batch in work.batches:
        prompts = _random_ids(config, batch, work.context)
        seconds = _both(ours, peer, partial(_decode_step_s, prompts=prompts, steps=work.decode_steps))
        kv_bytes = batch * (work.context + work.decode_steps // 2) * ours.runner.kv_bytes / (ours.runner.capacity_tokens + 1)
        rate = (weights_bytes + kv_bytes) / seconds[0]
        facts = {**_rates(batch, seconds), "step_ms": seconds[0] * 1e3, "share_of_copying_ratio": rate / ceiling_bytes}
        report.fact(f"decode_batch_{batch}_context_{work.context}", facts)
    prompts = _random_ids(config, 1, work.prefill)
    seconds = _both(ours, peer, partial(_prefill_s, prompts=prompts))
    share = _prefill_operations(config, work.prefill) / seconds[0] / ceiling_flops
    report.fact(f"prefill_{work.prefill}", {**_rates(work.prefill, seconds), "share_of_multiplying_ratio": share})


def _both(ours: Engine, peer: Peer | None, measure: Callable[[Starting], float]) -> list[float]:
    """Seconds of the engine, and of the peer where there is one."""
    ones: list[Starting] = [ours] if peer is None else [ours, peer]
    return [measure(one) for one in ones]


def _rates(tokens: int, seconds: Sequence[float]) -> dict[str, float]:
    rates = {
        name: tokens / took_s
        for name, took_s in zip(("tokens_per_second", "transformers_tokens_per_second"), seconds, strict=False)
    }
    return rates if len(seconds) == 1 else {**rates, "over_transformers_ratio": seconds[1] / seconds[0]}


def _prefill_operations(config: ModelConfig, tokens: int) -> float:
    """Two a weight of the layers and token, two products in attention with half of the tokens on average, the head once."""
    widths = config.hidden * (2 * config.q_width + 2 * config.kv_width + 3 * config.ffn)
    return 2.0 * (tokens * config.layers * (widths + 2 * config.q_width * tokens / 2) + config.vocab * config.hidden)


def _decode_step_s(one: Starting, prompts: list[list[int]], steps: int) -> float:
    run = one.begin(prompts, steps + 1)
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        run.step()
        times.append(time.perf_counter() - began)
    run.end()
    return statistics.median(times)


def _prefill_s(one: Starting, prompts: list[list[int]]) -> float:
    def once() -> float:
        began = time.perf_counter()
        run = one.begin(prompts, 1)
        seconds = time.perf_counter() - began
        run.end()
        return seconds

    once()  # the first one chooses kernels
    return statistics.median(once() for _ in range(5))


def _ceilings(ours: Engine, work: Work) -> tuple[float, float]:
    """Bytes copied (read and written) and bf16 operations of a square product, both a second: the best of ten."""
    block = torch.zeros(work.copied_bytes, dtype=torch.uint8, device=ours.device)
    target = torch.empty_like(block)
    square = torch.randn(work.matrix, work.matrix, device=ours.device).bfloat16()
    copy_s = _best_s(lambda: target.copy_(block), ours.device)
    return 2 * block.nbytes / copy_s, 2 * work.matrix**3 / _best_s(lambda: square @ square, ours.device)


def _best_s(call: Callable[[], object], device: torch.device) -> float:
    best = float("inf")
    for _ in range(10):
        _wait(device)
        began = time.perf_counter()
        call()
        _wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(context: Context, ours: Engine, work: Work) -> None:
    """The steady state allocates nothing that it keeps: neither in torch's books nor in what torch takes from the device."""
    if ours.device.type != "cuda":
        return
    from aie_hooks import torch_cuda_stats

    stats: list[Any] = []
    for _ in range(2):  # the second time, the very same work finds everything there that the first had to get
        run = ours.begin(_random_ids(ours.loaded.config, 1, work.context), work.steady_steps + 1)
        for _ in range(work.steady_steps):
            run.step()
        run.end()
        gc.collect()
        stats.append(torch_cuda_stats(ours.device.index))
    before, after = stats
    kept, taken = after.allocated_bytes - before.allocated_bytes, after.reserved_bytes - before.reserved_bytes
    text = f"{kept:+,} bytes allocated, {taken:+,} reserved after {work.steady_steps} more steps"
    context.report.check("device memory is flat", kept == 0 and taken == 0, text)
    own = ours.runner.weights_bytes + ours.runner.kv_bytes
    text = f"{after.allocated_bytes:,} bytes allocated of {after.reserved_bytes:,} reserved, the engine's own {own:,}"
    context.report.check("the allocator holds what the engine has", own <= after.allocated_bytes <= after.reserved_bytes, text)


def _random_ids(config: ModelConfig, sequences: int, tokens: int) -> list[list[int]]:
    """What prompts say does not change what they cost."""
    rng = random.Random(sequences * 1_000_003 + tokens)
    return [[rng.randrange(config.vocab) for _ in range(tokens)] for _ in range(sequences)]
