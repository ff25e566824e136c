"""A small engine of torch modules with aie's hooks in it, run as `python -m tests.fakes.hooked_net TARGET GPUS RISE MODEL`.

Everything is real but the GPU: layers are computed on the CPU, where tensors are kept, which is a leak. A stand-in for `torch.cuda`
counts them as torch's allocator would on a GPU, whose driver is a stand-in too.
"""

from __future__ import annotations

import os
import random
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from aie_agent import simulate
from aie_hooks import AllocatorHook, AllocatorStats, Emitter, ModuleHooks, RequestHooks, torch_cuda_stats
from aie_hooks.oom import private_pool_bytes
from tests.fakes.fake_torch_cuda import FakeTorchCuda

GIB = 1 << 30
WIDTH = 256
NAME = "net"


class CountingCuda(FakeTorchCuda):
    """Has allocated, and reserved, so much more than at first as there is in tensors that were kept."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []
        self.kept_bytes = 0

    def keep(self, tensor: torch.Tensor) -> None:
        """Never to be freed."""
        self.kept.append(tensor)
        self.kept_bytes += tensor.nbytes

    def memory_stats(self, device: int = 0) -> dict[str, int]:
        """With what is kept in it."""
        stats = super().memory_stats(device)
        risen = ("active", "allocated", "requested", "reserved")
        return stats | {name: stats[name] + self.kept_bytes for name in (f"{each}_bytes.all.current" for each in risen)}


def main(target: str, gpus: Path, rise_bytes_per_s: int, model: str) -> None:
    """Answers until it is killed."""
    torch.set_num_threads(1)
    host, cuda = simulate.Controller(gpus), CountingCuda()
    net = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH))
    emitter = Emitter(NAME, target)
    requests = RequestHooks(emitter, model=model)
    watched = ModuleHooks(emitter, net, model=model, layers="*", every=1)

    def read() -> AllocatorStats:
        return replace(torch_cuda_stats(cuda=cuda), private_pool_bytes=private_pool_bytes(cuda.memory_snapshot(), 0))

    allocator, rng, began_s = AllocatorHook(emitter, read), random.Random(3), time.monotonic()
    while True:
        with requests.enter() as request, torch.inference_mode():
            request.tokenized(WIDTH)
            request.admitted()
            net(torch.randn(8, WIDTH) * rng.uniform(0.5, 2.0))
            request.token()
        watched.report()
        while cuda.kept_bytes < (time.monotonic() - began_s) * rise_bytes_per_s:
            cuda.keep(torch.ones(1 << 16, dtype=torch.uint8))
        # The driver sees all that is reserved, and the context.
        host.set_processes(0, [simulate.Process(os.getpid(), cuda.memory_stats()["reserved_bytes.all.current"] + GIB)])
        allocator.report()
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
