"""What torch says of memory that ran out, in words and in numbers; and the stand-in for its CUDA side against the real thing."""

from __future__ import annotations

import inspect

import pytest
import torch

from aie_hooks import AllocatorHook, Emitter, torch_cuda_stats
from aie_hooks.oom import asked_bytes, is_out_of_memory
from tests.fakes.fake_torch_cuda import MESSAGE, MIB, FakeTorchCuda


@pytest.mark.parametrize(
    ("message", "size"),
    [
        (MESSAGE, 100 * MIB),
        (
            "CUDA out of memory. Tried to allocate 2.26 GiB (GPU 0; 6.00 GiB total capacity; 781.59 MiB already allocated)",
            2426656522,
        ),
        ("CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has", 512),
        ("Tried to allocate 1.50 KiB", 1536),
        ("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 42 bytes.", 42),
        ("CUDA error: out of memory", None),
        ("Tried to allocate 1.2.3 MiB", None),
        ("Tried to allocate many MiB", None),
        ("Tried to allocate 9e99 MiB", None),
        ("", None),
    ],
)
def test_how_much_was_asked_for(message: str, size: int | None) -> None:
    asked = asked_bytes(message)
    assert asked == (size if size is None else pytest.approx(size, abs=1))


@pytest.mark.parametrize(
    ("error", "ran_out"),
    [
        (torch.OutOfMemoryError(MESSAGE), True),
        (MemoryError(), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported"), True),
        (RuntimeError("shapes do not match"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_which_errors_say_that_memory_ran_out(error: BaseException, ran_out: bool) -> None:
    assert is_out_of_memory(error) is ran_out


# The stand-in against the real thing, which has no GPU here but a signature and a documentation.


@pytest.mark.parametrize(
    "name", ["mem_get_info", "memory_stats", "memory_snapshot", "host_memory_stats", "get_device_properties", "is_available"]
)
def test_the_stand_in_takes_the_arguments_of_the_real_functions(name: str) -> None:
    real = list(inspect.signature(getattr(torch.cuda, name)).parameters)
    assert list(inspect.signature(getattr(FakeTorchCuda(), name)).parameters) == real


def test_the_stand_ins_counters_are_documented_by_torch() -> None:
    documented = " ".join((torch.cuda.memory_stats.__doc__ or "").split())
    for key in FakeTorchCuda().memory_stats():
        assert f'``"{key.split(".")[0]}' in documented, key
    documented = torch.cuda.host_memory_stats.__doc__ or ""
    for key in FakeTorchCuda().host_memory_stats():
        assert f'"{key.split(".")[0]}' in documented, key


def test_torchs_numbers_are_read_from_the_stand_in() -> None:
    stats = torch_cuda_stats(0, cuda=FakeTorchCuda())
    assert (stats.allocated_bytes, stats.reserved_bytes, stats.inactive_split_bytes) == (31480 * MIB, 31500 * MIB, 12 * MIB)
    assert (stats.pinned_bytes, stats.retries, stats.ooms) == (96 * MIB, 3, 2)
    assert (stats.private_pool_bytes, stats.largest_free_bytes) == (None, None)
    assert torch_cuda_stats(1, cuda=FakeTorchCuda()).pinned_bytes is None


def test_no_snapshot_on_the_fast_path(emitter: Emitter) -> None:
    cuda = FakeTorchCuda()
    AllocatorHook(emitter, lambda: torch_cuda_stats(0, cuda=cuda)).report()
    assert cuda.calls == ["memory_stats", "host_memory_stats"]


def test_before_the_first_use_of_cuda_everything_is_zero() -> None:
    stats = torch_cuda_stats(0, cuda=FakeTorchCuda(used=False))
    assert (stats.allocated_bytes, stats.inactive_split_bytes, stats.pinned_bytes, stats.retries, stats.ooms) == (0, 0, 0, 0, 0)
