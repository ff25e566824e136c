"""One step: chunks of several sequences do not disturb each other, and what does not fit is refused before computing."""

from __future__ import annotations

import ctypes
import dataclasses
import mmap

import pytest
import torch
from tiny_models import GREEDY, tiny_llama, write_folder

from aie_engine.loading import LoadedModel, default_threads, load_model
from aie_engine.plan import Chunk, SamplingParams
from aie_engine.runner import Runner

CAPACITY = 200


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(write_folder(tmp_path_factory.mktemp("model"), tiny_llama()))


@pytest.fixture
def runner(loaded: LoadedModel) -> Runner:
    return Runner(loaded, capacity_tokens=CAPACITY, max_step_tokens=64)


def chunk(ids: list[int], *, kv_start: int = 0, position: int = 0, sample: bool = True) -> Chunk:
    return Chunk(kv_start, position, ids, sample, GREEDY)


def test_answers_are_aligned_with_chunks(runner: Runner) -> None:
    chunks = [chunk([1, 2], sample=False), chunk([3], kv_start=10), chunk([4, 5], kv_start=20, sample=False)]
    answer = runner.execute(chunks)
    assert [token is None for token in answer] == [True, False, True]
    assert answer[1] is not None
    assert answer[1].id == int(runner.logits([chunk([3], kv_start=50)]).argmax())


def test_a_sequence_does_not_see_its_neighbours(runner: Runner) -> None:
    prompts = {0: [1, 2, 3, 4, 5], 5: [6, 7], 7: [9] * 12, 150: [8, 8, 8]}
    alone = [runner.logits([chunk(ids, kv_start=start)])[0] for start, ids in prompts.items()]
    together = runner.logits([chunk(ids, kv_start=start) for start, ids in prompts.items()])
    torch.testing.assert_close(together, torch.stack(alone), atol=1e-5, rtol=1e-5)
    decoded = runner.logits(
        [chunk([11], kv_start=0, position=5), chunk([12, 13], kv_start=150, position=3), chunk([10], kv_start=7, position=12)]
    )
    whole = [[1, 2, 3, 4, 5, 11], [8, 8, 8, 12, 13], [9] * 12 + [10]]
    again = torch.cat([runner.logits([chunk(ids, kv_start=60)]) for ids in whole])
    torch.testing.assert_close(decoded, again, atol=1e-5, rtol=1e-5)


def test_extents_can_be_reused(runner: Runner) -> None:
    fresh = runner.logits([chunk([1, 2, 3], kv_start=100)])
    runner.execute([chunk(list(range(1, 41)), kv_start=0)])
    torch.testing.assert_close(runner.logits([chunk([1, 2, 3], kv_start=0)]), fresh)


def test_seed_decides_and_batch_does_not(runner: Runner) -> None:
    params = [SamplingParams(1.0, 0.95, seed) for seed in range(6)]
    chunks = [Chunk(20 * row, 0, [row + 1, 7], True, params[row]) for row in range(6)]
    together = runner.execute(chunks)
    assert together == [runner.execute([one])[0] for one in chunks]
    assert together == runner.execute(chunks)
    reseeded = [dataclasses.replace(one, sampling=SamplingParams(1.0, 0.95, 99)) for one in chunks]
    assert runner.execute(reseeded) != together


def test_empty_step(runner: Runner) -> None:
    assert runner.execute([]) == []


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (chunk([]), "without tokens"),
        (chunk([1] * 65), "step of 66"),
        (chunk([1, 2], kv_start=CAPACITY - 1), "KV slots"),
        (chunk([1], kv_start=-1), "KV slots"),
        (chunk([1], position=-1), "positions"),
        (chunk([1], position=128), "positions"),
        (chunk([300]), "token id"),
        (chunk([-1]), "token id"),
    ],
)
def test_chunks_that_do_not_fit_are_refused(bad: Chunk, reason: str, runner: Runner) -> None:
    with pytest.raises(ValueError, match=reason):
        runner.execute([chunk([1], kv_start=30), bad])


def test_sizes_are_stated(loaded: LoadedModel, runner: Runner) -> None:
    assert runner.kv_bytes == 2 * 2 * 2 * (CAPACITY + 1) * 16 * 4  # K and V, layers, KV heads, slots, head size, fp32
    parameters = sum(parameter.nbytes for parameter in tiny_llama().parameters())
    assert runner.weights_bytes == parameters
    assert runner.max_sequence_tokens == 128
    assert 0 < runner.workspace_bytes < runner.kv_bytes
    for sizes in ((0, 8), (8, 0)):
        with pytest.raises(ValueError, match="0"):
            Runner(loaded, capacity_tokens=sizes[0], max_step_tokens=sizes[1])


def test_kv_memory_is_resident_from_the_start(loaded: LoadedModel) -> None:
    """Asked of the kernel page by page: the process's total would also change with what other tests freed."""
    runner = Runner(loaded, capacity_tokens=200_000, max_step_tokens=8)
    storage = runner._kv._storage
    page = mmap.PAGESIZE
    start = -(-storage.data_ptr() // page) * page
    length = (storage.data_ptr() + storage.nbytes) // page * page - start
    resident = (ctypes.c_ubyte * (length // page))()
    assert ctypes.CDLL(None, use_errno=True).mincore(ctypes.c_void_p(start), ctypes.c_size_t(length), resident) == 0
    assert all(flags & 1 for flags in resident)


def test_threads_leave_a_core() -> None:
    assert default_threads() >= 1
