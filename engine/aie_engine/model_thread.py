"""The thread that loads the model and then runs it: everything of torch happens here, on one thread with one thread pool."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from importlib.metadata import version

import torch

from aie_engine.canary import Canary, Prompt
from aie_engine.config import EngineConfig
from aie_engine.kv_arena import KvArena
from aie_engine.loading import LoadedModel, default_threads, load_model
from aie_engine.loop import Delivery, ModelLoop
from aie_engine.metrics import EngineMetrics, Footprint, Loaded
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner
from aie_engine.scheduler import Limits, Scheduler
from aie_engine.serving import Model
from aie_hooks.emitter import Emitter
from aie_hooks.oom import OomForensics, oom_forensics


class StartError(Exception):
    """The engine cannot start; one line that says why and what to change."""


class ModelThread(threading.Thread):
    """Builds a model, then runs its loop. `built` and `finished` tell how each of the two ended.

    A daemon: a load or a step that hangs in native code must not keep the process from ending.
    """

    def __init__(self, build: Callable[[], Model]) -> None:
        super().__init__(name="aie-model-loop", daemon=True)
        self._build = build
        self.built: Future[Model] = Future()
        self.finished: Future[None] = Future()

    def run(self) -> None:
        """The thread's body."""
        try:
            model = self._build()
        except BaseException as error:  # noqa: BLE001 - passed on to whoever waits for the model
            self.built.set_exception(error)
            return
        self.built.set_result(model)
        try:
            model.loop.run()
        except BaseException as error:  # noqa: BLE001 - passed on to whoever waits for the end
            self.finished.set_exception(error)
        else:
            self.finished.set_result(None)


def _return_freed_memory() -> None:
    """Loading frees some 90 MB that glibc would keep: given back, physical memory starts where the engine's own books do."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def build_model(
    config: EngineConfig, metrics: EngineMetrics, hand_out: Callable[[list[Delivery]], None], emitter: Emitter
) -> Model:
    """Loads the model, allocates all memory and warms up. Raises ModelError and StartError.

    A step that runs out of memory is told through `emitter`, with what the memory looked like.
    """
    torch.set_num_threads(config.threads or default_threads())
    loaded = load_model(config.model, device=config.device)
    arena = KvArena(config.kv_tokens)
    prompt = _canary_prompt(config, loaded)
    runner = _runner(config, loaded, 0 if prompt is None else prompt.tokens)
    _warm_up(runner, min(config.max_step_tokens, runner.max_sequence_tokens))
    _return_freed_memory()
    limits = Limits(
        max_running=config.max_running,
        max_waiting=config.max_waiting,
        max_step_tokens=config.max_step_tokens,
        context_tokens=loaded.config.context,
        eos_ids=loaded.tokenizer.eos_ids,
    )
    scheduler = Scheduler(limits, arena)
    canary = None
    if prompt is not None and config.canary_every_s is not None:
        canary = Canary(config.canary_every_s, lambda: prompt.logprob(runner, arena.capacity), metrics.canary)
    watch = forensics(emitter, config.device, metrics)
    loop = ModelLoop(runner, scheduler, arena, metrics, hand_out, watch, aside=canary)
    metrics.loaded(
        Loaded(
            version=version("aie-observability"),
            revision=loaded.revision,
            device=config.device.replace(":", ""),  # "cuda:0" cannot be said in Telegraf's dialect, and a page must not differ
            dtype=str(loaded.decoder.dtype).removeprefix("torch."),
            footprint=Footprint(runner.weights_bytes, runner.kv_bytes, runner.workspace_bytes),
            kv=loop.kv_usage,
        )
    )
    name, longest = config.model_name, scheduler.longest
    return Model(name, loaded.tokenizer, loaded.chat_template, loop, longest, int(time.time()), loaded.revision)


def forensics(emitter: Emitter, device: str, metrics: EngineMetrics) -> OomForensics:
    """What records steps that run out of memory: on a CPU with the KV cache's state, on CUDA with that of torch's allocator."""
    if device == "cpu":
        return oom_forensics(emitter, device, pool=metrics.pool_state)
    return oom_forensics(emitter, int(device.partition(":")[2] or 0))


def _canary_prompt(config: EngineConfig, loaded: LoadedModel) -> Prompt | None:
    """None where no canary is wanted. Raises StartError where it does not fit."""
    if config.canary_every_s is None:
        return None
    try:
        return Prompt(loaded.tokenizer, loaded.config.context, config.max_step_tokens)
    except ValueError as error:
        raise StartError(f"--canary-every: {error}") from error


def _runner(config: EngineConfig, loaded: LoadedModel, canary_tokens: int) -> Runner:
    """With token slots behind those of the KV cache that the canary alone uses."""
    try:
        return Runner(loaded, capacity_tokens=config.kv_tokens + canary_tokens, max_step_tokens=config.max_step_tokens)
    except (RuntimeError, MemoryError) as error:
        # torch's text goes on with C++ frames; its first line names the bytes.
        first_line = str(error).partition("\n")[0]
        raise StartError(f"--kv-tokens {config.kv_tokens}: the KV cache cannot be allocated: {first_line}") from error


def _warm_up(runner: Runner, step_tokens: int) -> None:
    """Runs the largest step and a decode once, so that the first client does not pay for what is built on first use."""
    greedy = SamplingParams(temperature=0.0)
    runner.execute([Chunk(0, 0, [0] * step_tokens, True, greedy)])
    runner.execute([Chunk(0, 0, [0], True, SamplingParams())])
