"""The NVTX ranges of the model loop and the runner, as a profiler that is attached sees them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from engine_fixtures import new_metrics, new_request
from tiny_models import tiny_llama, write_folder

from aie_engine.kv_arena import KvArena
from aie_engine.loading import LoadedModel, load_model
from aie_engine.loop import Delivery, ModelLoop, StepRunner
from aie_engine.plan import Token
from aie_engine.runner import Runner
from aie_engine.scheduler import Limits, Scheduler
from aie_hooks import nvtx

WAIT_S = 60
CAPACITY = 100


class Domain:
    """As `nvtx.Domain` with a tool attached: keeps each range with all that it lies in."""

    def __init__(self) -> None:
        self.entered: list[tuple[str, ...]] = []
        self._open: list[str] = []

    def get_event_attributes(self, message: str) -> str:
        return message

    def push_range(self, name: str) -> None:
        self._open.append(name)
        self.entered.append(tuple(self._open))

    def pop_range(self) -> None:
        self._open.pop()

    @property
    def balanced(self) -> bool:
        return not self._open


@pytest.fixture
def domain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Domain]:
    domain = Domain()
    monkeypatch.setitem(sys.modules, "nvtx", SimpleNamespace(get_domain=lambda name: domain))
    _forget_domains()
    yield domain
    _forget_domains()


def _forget_domains() -> None:
    nvtx._domain.cache_clear()
    nvtx.annotate.cache_clear()


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("model"), tiny_llama()))


def run_to_the_end(runner: StepRunner, *prompts: list[int]) -> None:
    """Queues all prompts, then runs the loop until each has its answer of three tokens."""
    arena, metrics, done = KvArena(CAPACITY), new_metrics(), threading.Semaphore(0)

    def hand_out(news: list[Delivery]) -> None:
        for _, update in news:
            if update.outcome is not None:
                done.release()

    limits = Limits(max_running=4, max_waiting=4, max_step_tokens=16, context_tokens=CAPACITY, eos_ids=frozenset())
    loop = ModelLoop(runner, Scheduler(limits, arena), arena, metrics, hand_out)
    for prompt in prompts:
        loop.submit(new_request(prompt, 3, ticket=metrics.enter(0.0)))
    thread = threading.Thread(target=loop.run)
    thread.start()
    for _ in prompts:
        assert done.acquire(timeout=WAIT_S)
    loop.stop()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def step(kind: str, *stages: str) -> list[tuple[str, ...]]:
    inner = [("step", kind, stage) for stage in stages]
    return [("plan",), ("step",), ("step", kind), *inner, ("step", "deliver")]


def test_the_stages_of_a_step_are_ranges(domain: Domain, loaded: LoadedModel) -> None:
    run_to_the_end(Runner(loaded, capacity_tokens=CAPACITY, max_step_tokens=16), list(range(1, 21)))
    # 20 tokens at 16 a step, the first answer token with the second; two more are decoded.
    prefills = [*step("prefill", "forward"), *step("prefill", "forward", "sample")]
    assert domain.entered == prefills + 2 * step("decode", "forward", "sample")
    assert domain.balanced


def test_a_step_that_decodes_one_and_prefills_another_is_mixed(domain: Domain, loaded: LoadedModel) -> None:
    run_to_the_end(Runner(loaded, capacity_tokens=CAPACITY, max_step_tokens=16), [1, 2], list(range(1, 31)))
    kinds = [path[1] for path in domain.entered if len(path) == 2 and path[1] != "deliver"]
    assert kinds[:2] == ["prefill", "mixed"]
    assert kinds[-1] == "decode"
    assert domain.balanced


class Broken:
    """A runner that raises."""

    def execute(self, chunks: object) -> list[Token | None]:
        raise RuntimeError("the device is on fire")


def test_ranges_end_where_a_step_fails(domain: Domain) -> None:
    run_to_the_end(Broken(), [1, 2])
    assert domain.entered == step("prefill")
    assert domain.balanced
