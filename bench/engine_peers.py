"""The engine and its peers behind one interface, so that all are asked for the same work: same weights, threads and prompts.

No answer ends before its length: the end-of-sequence token means nothing here, so that all compute the same number of tokens.
"""

from __future__ import annotations

import importlib
import queue
import statistics
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
from transformers import AutoConfig, LlamaForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from aie_engine.kv_arena import KvArena
from aie_engine.linear import Layout
from aie_engine.loading import LoadedModel
from aie_engine.loop import Delivery, ModelLoop
from aie_engine.metrics import EngineMetrics
from aie_engine.plan import SamplingParams
from aie_engine.request import Outcome, Request
from aie_engine.runner import Runner
from aie_engine.scheduler import Limits, Scheduler
from aie_hooks import Emitter, RequestHooks

MAX_RUNNING = 16
KV_TOKENS = 12_288
STEP_TOKENS = 256
_DEADLINE_S = 3600.0


class Job(NamedTuple):
    """One request: its prompt, and how many tokens its answer has."""

    prompt_ids: list[int]
    answer_tokens: int


class Peer(Protocol):
    """What is measured. Times are in seconds."""

    name: str

    def decode_step_s(self, prompts: Sequence[list[int]], tokens: int) -> float:
        """The median time between the tokens of a batch that only decodes."""
        ...

    def first_token_s(self, prompt_ids: list[int]) -> float:
        """From a prompt to its first token, nothing else running."""
        ...

    def workload_s(self, jobs: Sequence[Job]) -> float | None:
        """From the first request to the last token of the last one, all sent at once; None for a peer that takes one at a time."""
        ...


class Engine:
    """aie's: scheduler, model loop and metrics as in the server, without HTTP. `bench/inline_cost.py` says what hooks cost."""

    name = "aie-engine"

    def __init__(self, loaded: LoadedModel) -> None:
        self._news: queue.SimpleQueue[tuple[float, list[Delivery]]] = queue.SimpleQueue()
        runner = Runner(loaded, capacity_tokens=KV_TOKENS, max_step_tokens=STEP_TOKENS)
        arena = KvArena(KV_TOKENS)
        scheduler = Scheduler(Limits(MAX_RUNNING, 64, STEP_TOKENS, loaded.config.context, frozenset()), arena)
        self._metrics = EngineMetrics("bench", "m", RequestHooks(Emitter("bench"), model="m"), start_wall_s=time.time())
        self._loop = ModelLoop(runner, scheduler, arena, self._metrics, self._take)
        threading.Thread(target=self._loop.run, daemon=True).start()

    def _take(self, news: list[Delivery]) -> None:
        self._news.put((time.perf_counter(), news))

    def decode_step_s(self, prompts: Sequence[list[int]], tokens: int) -> float:
        times = self._run([Job(prompt, tokens + 1) for prompt in prompts])
        return _median_gap_s([at for at, count in times if count == len(prompts)])

    def first_token_s(self, prompt_ids: list[int]) -> float:
        began = time.perf_counter()
        return self._run([Job(prompt_ids, 1)])[0][0] - began

    def workload_s(self, jobs: Sequence[Job]) -> float:
        began = time.perf_counter()
        return self._run(jobs)[-1][0] - began

    def _run(self, jobs: Sequence[Job]) -> list[tuple[float, int]]:
        """When each step's tokens came, and how many."""
        for job in jobs:
            ticket = self._metrics.enter(time.monotonic())
            deadline = time.monotonic() + _DEADLINE_S
            greedy = SamplingParams(temperature=0.0)
            self._loop.submit(Request(job.prompt_ids, job.answer_tokens, greedy, deadline, ticket, lambda _: None))
        times = []
        left = len(jobs)
        while left:
            at, news = self._news.get(timeout=_DEADLINE_S)
            failed = [update for _, update in news if update.outcome not in (None, Outcome.OK)]
            if failed:
                raise RuntimeError(f"a request failed: {failed[0]}")
            left -= sum(update.outcome is Outcome.OK for _, update in news)
            times.append((at, sum(update.token is not None for _, update in news)))
        return times


class _Clock(StoppingCriteria):
    """Called by `generate` after every step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


class Transformers:
    """`generate` with its KV cache and SDPA, in fp32, with the weights that the engine multiplies with."""

    name = "transformers"

    def __init__(self, loaded: LoadedModel) -> None:
        folder, file = str(loaded.path.parent), loaded.path.name
        untyped: Any = LlamaForCausalLM
        self._model = untyped(AutoConfig.from_pretrained(folder, gguf_file=file))
        read: Any = load_gguf_checkpoint
        self._model.load_state_dict(read(str(loaded.path), return_tensors=True, model_to_load=self._model)["tensors"], strict=False)
        self._model.tie_weights()
        self._model.eval()
        if loaded.decoder.head.layout is Layout.HALF:
            with torch.no_grad():
                for weight in self._model.parameters():
                    weight.copy_(weight.half() if weight.dim() == 2 else weight)

    def decode_step_s(self, prompts: Sequence[list[int]], tokens: int) -> float:
        return _median_gap_s(self._generate(prompts, tokens + 1))

    def first_token_s(self, prompt_ids: list[int]) -> float:
        began = time.perf_counter()
        return self._generate([prompt_ids], 1)[0] - began

    def workload_s(self, jobs: Sequence[Job]) -> float:
        """In the order of arrival, in batches as large as the engine's, each until its longest answer is done: `generate` takes
        nobody in meanwhile."""
        began = time.perf_counter()
        for first in range(0, len(jobs), MAX_RUNNING):
            batch = jobs[first : first + MAX_RUNNING]
            self._generate([job.prompt_ids for job in batch], max(job.answer_tokens for job in batch))
        return time.perf_counter() - began

    def _generate(self, prompts: Sequence[list[int]], tokens: int) -> list[float]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        clock = _Clock()
        with torch.inference_mode():
            self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=tokens,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([clock]),
            )
        if len(clock.times) != tokens:
            raise RuntimeError(f"{len(clock.times)} steps instead of {tokens}")
        return clock.times


class LlamaCpp:
    """llama.cpp on the file as it is: 4-bit weights, and activations that it quantises to 8 bits. One sequence at a time."""

    name = "llama.cpp"

    def __init__(self, loaded: LoadedModel, threads: int) -> None:
        """Raises ImportError without the `llama_cpp` package."""
        llama_cpp = importlib.import_module("llama_cpp")
        self._model = llama_cpp.Llama(
            str(loaded.path), n_ctx=2048, n_batch=STEP_TOKENS, n_threads=threads, n_threads_batch=threads, verbose=False
        )

    def decode_step_s(self, prompts: Sequence[list[int]], tokens: int) -> float:
        if len(prompts) > 1:
            return float("nan")
        self._model.reset()
        self._model.eval(prompts[0])
        times = []
        for _ in range(tokens + 1):
            self._model.eval([self._model.sample(temp=0.0)])
            times.append(time.perf_counter())
        return _median_gap_s(times)

    def first_token_s(self, prompt_ids: list[int]) -> float:
        self._model.reset()
        began = time.perf_counter()
        self._model.eval(prompt_ids)
        self._model.sample(temp=0.0)
        return time.perf_counter() - began

    def workload_s(self, jobs: Sequence[Job]) -> None:
        return None


def _median_gap_s(times: Sequence[float]) -> float:
    return statistics.median(after - before for before, after in pairwise(times))
