"""What `gpu_check.py` checks and measures. The engine runs as it does everywhere: bf16, one code path, no kernels of its own."""

from __future__ import annotations

import gc
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from aie_engine.loading import load_model
from aie_engine.model_config import ModelConfig
from aie_hooks import torch_cuda_stats
from gpu_peers import Engine, Peer, Starting

# Rounding differs between two bf16 implementations, not its size: ours may be off by half as much again as transformers'.
_ERROR_RATIO = 1.5


class Work(NamedTuple):
    """How much is done. `shape` is the random model's, in LlamaConfig's words; the rest are tokens, steps and sequences."""

    shape: dict[str, Any]
    prompt: int
    answer: int
    context: int
    decode_steps: int
    prefill: int
    steady_steps: int
    batches: tuple[int, ...]
    copied_bytes: int
    matrix: int


FULL = Work(
    {  # Llama 3.2 1B
        "hidden_size": 2048,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "vocab_size": 128_256,
        "max_position_embeddings": 8192,
    },
    *(64, 24, 512, 64, 2048, 200, (1, 8, 32), 2 << 30, 8192),
)
SMALL = Work(
    {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 96,
        "vocab_size": 320,
        "max_position_embeddings": 256,
    },
    *(16, 8, 24, 4, 48, 20, (1, 2), 8 << 20, 128),
)


class Figure(NamedTuple):
    """A row of the table of measurements."""

    name: str
    text: str


class Check(NamedTuple):
    """What must hold, whether it does, and the numbers it was judged by."""

    name: str
    holds: bool
    text: str


class Report(NamedTuple):
    """All that a run found."""

    machine: str
    figures: list[Figure]
    checks: list[Check]


def run(device: str, model: Path | None, *, small: bool) -> Report:
    """Runs everything on `device`, with a random model where `model` is None. Raises ModelError where one cannot be loaded."""
    quiet: Any = transformers.utils.logging
    quiet.disable_progress_bar()
    work = SMALL if small else FULL
    with tempfile.TemporaryDirectory() as scratch:
        folder = model or _random_model(Path(scratch), work, device)
        engine = _engine(folder, device, torch.bfloat16, work)
        peer = Peer(folder, engine.device)
        checks = _correctness(folder, engine, peer, work)
        figures = _speed(engine, peer, work)
        checks += [*_memory(engine, work), _arena_check(engine), _hooks_check(engine)]
    return Report(_machine(engine), figures, checks)


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


def _engine(folder: Path, device: str, dtype: torch.dtype, work: Work) -> Engine:
    rooms = (
        max(work.batches) * (work.context + work.decode_steps + 1),
        work.context + work.steady_steps + 1,
        work.prompt + work.answer + 1,
        work.prefill + 1,
    )
    return Engine(load_model(folder, device=device, dtype=dtype), max(rooms), work.prefill)


def _correctness(folder: Path, engine: Engine, peer: Peer, work: Work) -> list[Check]:
    """Against the same engine in fp32 on the CPU; how far bf16 may be off is told by transformers in bf16."""
    prompt = _random_ids(engine.loaded.config, 1, work.prompt)
    exact = _engine(folder, "cpu", torch.float32, work)
    answer, expected = _greedy(exact, prompt, work.answer)
    del exact
    ours, ours_told = _greedy(engine, prompt, work.answer)[0], _greedy(engine, prompt, work.answer, forced=answer)[1]
    theirs_told = peer.logits(prompt[0] + answer)[work.prompt - 1 : -1]
    off, theirs_off = difference(ours_told, expected), difference(theirs_told, expected)
    agree, gap = divergence(ours, answer, expected)
    finite = bool(torch.isfinite(ours_told).all())
    text = f"{off.relative:.2%} of their spread, {off.largest:.3f} at most"
    text += f"; transformers {theirs_off.relative:.2%}, {theirs_off.largest:.3f}"
    return [
        Check("no NaN and no infinity", finite, f"in {ours_told.numel():,} logits"),
        Check("logits against the CPU in fp32", finite and off.relative <= _ERROR_RATIO * theirs_off.relative, text),
        Check(
            "greedy tokens against the CPU in fp32",
            gap <= 2 * off.largest,
            f"{agree} of {len(answer)} agree" + (f", then two that differ by {gap:.3f} there" if agree < len(answer) else ""),
        ),
    ]


def _greedy(engine: Engine, prompt: list[list[int]], tokens: int, forced: Sequence[int] | None = None) -> tuple[list[int], Tensor]:
    """A greedy answer and the logits of each of its tokens, [tokens, vocab]; with `forced` those of that answer instead."""
    last = prompt[0][-1:]
    run = engine.begin([prompt[0][:-1]], tokens + 1)
    run.sequences[0][-1:] = last  # the last token of the prompt is computed as a decode step, so that its logits can be had
    rows = []
    for index in range(tokens):
        rows.append(run.logits()[0].float().cpu())
        run.step()
        if forced is not None:
            run.sequences[0][-1] = forced[index]
    run.end()
    return run.sequences[0][len(prompt[0]) :], torch.stack(rows)


def _speed(engine: Engine, peer: Peer, work: Work) -> list[Figure]:
    config = engine.loaded.config
    ceiling_bytes, ceiling_flops = _ceilings(engine, work)
    figures = [
        Figure("this device", f"copies {ceiling_bytes / 1e9:.0f} GB/s, multiplies {ceiling_flops / 1e12:.1f} TFLOP/s in bf16")
    ]
    weights_bytes = engine.runner.weights_bytes - (0 if config.tied_head else engine.loaded.decoder.embedding.nbytes)
    for batch in work.batches:
        prompts = _random_ids(config, batch, work.context)
        ours_s, theirs_s = (_decode_step_s(one, prompts, work.decode_steps) for one in (engine, peer))
        kv_bytes = batch * (work.context + work.decode_steps // 2) * engine.runner.kv_bytes / (engine.runner.capacity_tokens + 1)
        rate = (weights_bytes + kv_bytes) / ours_s
        name = f"decode, batch {batch}, context {work.context}"
        share = f"{rate / 1e9:.0f} GB/s ({rate / ceiling_bytes:.0%})"
        figures.append(Figure(name, f"{_rates(batch / ours_s, batch / theirs_s)}; {ours_s * 1e3:.2f} ms a step, {share}"))
    prompts = _random_ids(config, 1, work.prefill)
    ours_s, theirs_s = (_prefill_s(one, prompts) for one in (engine, peer))
    rate = _prefill_operations(config, work.prefill) / ours_s
    share = f"{rate / 1e12:.1f} TFLOP/s ({rate / ceiling_flops:.0%})"
    figures.append(Figure(f"prefill, {work.prefill} tokens", f"{_rates(work.prefill / ours_s, work.prefill / theirs_s)}; {share}"))
    return figures


def _rates(ours: float, theirs: float) -> str:
    return f"{ours:,.0f} tokens/s, transformers {theirs:,.0f} ({ours / theirs:.2f}x)"


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


def _ceilings(engine: Engine, work: Work) -> tuple[float, float]:
    """Bytes copied (read and written) and bf16 operations of a square product, both a second: the best of ten."""
    block = torch.zeros(work.copied_bytes, dtype=torch.uint8, device=engine.device)
    target = torch.empty_like(block)
    square = torch.randn(work.matrix, work.matrix, device=engine.device).bfloat16()
    copy_s = _best_s(lambda: target.copy_(block), engine.device)
    return 2 * block.nbytes / copy_s, 2 * work.matrix**3 / _best_s(lambda: square @ square, engine.device)


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


def _memory(engine: Engine, work: Work) -> list[Check]:
    """The steady state allocates nothing that it keeps: neither in torch's books nor in what torch takes from the device."""
    if engine.device.type != "cuda":
        return []
    stats = []
    for _ in range(2):  # the second time, the very same work finds everything there that the first had to get
        run = engine.begin(_random_ids(engine.loaded.config, 1, work.context), work.steady_steps + 1)
        for _ in range(work.steady_steps):
            run.step()
        run.end()
        gc.collect()
        stats.append(torch_cuda_stats(engine.device.index))
    before, after = stats
    kept, taken = after.allocated_bytes - before.allocated_bytes, after.reserved_bytes - before.reserved_bytes
    text = f"{kept:+,} bytes allocated, {taken:+,} reserved after {work.steady_steps} more steps"
    return [Check("device memory is flat", kept == 0 and taken == 0, text)]


def _arena_check(engine: Engine) -> Check:
    arena = engine.arena
    text = f"{arena.used} used + {arena.free} free of {arena.capacity} tokens at the end, and at every change"
    return Check("used + free = capacity of the KV cache", engine.sums_up and arena.free == arena.capacity, text)


def _hooks_check(engine: Engine) -> Check:
    """The hooks' view of the allocator holds what the engine says of itself."""
    name = "aie_hooks.torch_cuda_stats"
    if engine.device.type != "cuda":
        try:
            torch_cuda_stats()
        except RuntimeError as error:
            return Check(name, True, f"says so where it cannot: {error}")
        return Check(name, True, "not asked: the engine is not on the GPU")
    stats = torch_cuda_stats(engine.device.index)
    own = engine.runner.weights_bytes + engine.runner.kv_bytes
    gigabytes = [f"{value / 1e9:.2f}" for value in (stats.allocated_bytes, stats.reserved_bytes, own)]
    text = "{}: {} GB allocated of {} reserved, the engine's own {}".format(stats.device, *gigabytes)
    return Check(name, own <= stats.allocated_bytes <= stats.reserved_bytes, text)


def _machine(engine: Engine) -> str:
    name = torch.cuda.get_device_name(engine.device) if engine.device.type == "cuda" else "CPU"
    parameters = engine.runner.weights_bytes / 2
    return (
        f"{name}, torch {torch.__version__}, transformers {transformers.__version__}; {parameters / 1e6:,.1f} M parameters in bf16"
    )


def _random_ids(config: ModelConfig, sequences: int, tokens: int) -> list[list[int]]:
    """What prompts say does not change what they cost."""
    rng = random.Random(sequences * 1_000_003 + tokens)
    return [[rng.randrange(config.vocab) for _ in range(tokens)] for _ in range(sequences)]


def _random_model(folder: Path, work: Work, device: str) -> Path:
    """A folder as Hugging Face writes it, with a tokenizer of single bytes."""
    torch.manual_seed(7)
    with torch.device(device):
        model: Any = LlamaForCausalLM(LlamaConfig(**work.shape, tie_word_embeddings=True))
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder
