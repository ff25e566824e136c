"""Physical memory against torch's allocator: what a context takes, what kernels add, and what comes from elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from gpu_driver import Driver
from gpu_nvml import AtHand, at_hand
from gpu_report import Context

_STEP_BYTES: Final = 512 << 20
_STEPS: Final = 4
_OUTSIDE_BYTES: Final = 768 << 20
# The driver hands memory out in pieces of 2 MiB, and may keep a few for itself.
_SLACK_BYTES: Final = 64 << 20


class Reading(NamedTuple):
    """At one moment, in bytes. `process` is this process's memory by NVML, None where it does not say; `device` is what the whole
    device uses."""

    process: int | None
    device: int
    allocated: int
    reserved: int

    @property
    def physical(self) -> int:
        """The process's where it is known, else the device's."""
        return self.device if self.process is None else self.process

    @property
    def gap(self) -> int:
        """What the allocator does not know."""
        return self.physical - self.reserved


def allocator(context: Context) -> None:
    """Step by step. Where NVML does not name this process, the device stands for it, which others on the GPU disturb."""
    context.need_cuda()
    with at_hand(context) as hand:
        assert hand.driver is not None
        before, there = hand.nvml.used_bytes(hand.gpu), hand.nvml.processes(hand.gpu)
        hand.driver.enter()
        own = _own_pid(set(there), hand)
        bare = _bare_context(hand, own, before)
        torch = context.torch_on_cuda()
        steps = _Steps(torch, hand, own)
        steps.note("context")
        _work(torch, steps, hand.driver)
    report = context.report
    report.fact("pid_here", os.getpid())
    report.fact("pid_by_nvml", own)
    report.fact("others_on_gpu", len(there))
    report.fact("device_used_before_context_bytes", before)
    found = steps.found
    report.fact("bare_context_bytes", bare)
    report.fact("context_with_torch_bytes", found["context"].physical - (before if own is None else 0))
    report.fact("steps", {name: {**reading._asdict(), "gap": reading.gap} for name, reading in found.items()})
    report.fact("torch_cuda_alloc_conf", os.environ.get("PYTORCH_CUDA_ALLOC_CONF"))
    _judge(context, found)


class _Steps:
    """Readings by name, in their order."""

    def __init__(self, torch: Any, hand: AtHand, own: int | None) -> None:
        self._torch, self._hand, self._own = torch, hand, own
        self.found: dict[str, Reading] = {}

    def note(self, name: str) -> None:
        """Takes one, once the device has done everything."""
        cuda = self._torch.cuda
        cuda.synchronize()
        used = None if self._own is None else self._hand.nvml.processes(self._hand.gpu).get(self._own)
        device = self._hand.nvml.used_bytes(self._hand.gpu)
        self.found[name] = Reading(used, device, cuda.memory_allocated(), cuda.memory_reserved())


def _own_pid(before: set[int], hand: AtHand) -> int | None:
    """How NVML calls this process: by its pid, or, from another pid namespace, as the only one that came with the context."""
    now = hand.nvml.processes(hand.gpu)
    came = now.keys() - before
    pid = os.getpid() if os.getpid() in came else came.pop() if len(came) == 1 else None
    return pid if pid is not None and now[pid] is not None else None


def _bare_context(hand: AtHand, own: int | None, before: int) -> int | None:
    """What a context takes before anything is done in it."""
    return hand.nvml.used_bytes(hand.gpu) - before if own is None else hand.nvml.processes(hand.gpu).get(own)


def _work(torch: Any, steps: _Steps, driver: Driver) -> None:
    actions: dict[str, Callable[[], Any]] = {
        "first_kernel": lambda: torch.zeros(1024, device="cuda") + 1,
        "matmul": lambda: _square(torch) @ _square(torch),
        "attention": lambda: _attention(torch),
        "sort": lambda: torch.randn(1 << 20, device="cuda").sort(),
        "emptied": torch.cuda.empty_cache,
    }
    for name, action in actions.items():
        action()
        steps.note(name)
    kept = []
    for number in range(1, _STEPS + 1):
        kept.append(torch.empty(_STEP_BYTES, dtype=torch.uint8, device="cuda"))
        steps.note(f"torch_{number}")
    driver.enter()
    pointer = driver.allocate(_OUTSIDE_BYTES)
    steps.note("outside")
    driver.free(pointer)
    steps.note("outside_freed")
    kept.clear()
    steps.note("torch_freed")
    torch.cuda.empty_cache()
    steps.note("torch_emptied")
    graph = _captured(torch)
    steps.note("graph")
    del graph


def _square(torch: Any) -> Any:
    return torch.ones(2048, 2048, device="cuda", dtype=torch.bfloat16)


def _attention(torch: Any) -> Any:
    heads = torch.ones(1, 8, 512, 64, device="cuda", dtype=torch.bfloat16)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)


def _captured(torch: Any) -> Any:
    """A graph of a hundred kernels: what the driver keeps of it is in no allocator's books."""
    graph, block = torch.cuda.CUDAGraph(), torch.zeros(1024, device="cuda")
    with torch.cuda.graph(graph):
        for _ in range(100):
            block += 1
    graph.replay()
    return graph, block


def _judge(context: Context, found: dict[str, Reading]) -> None:
    report = context.report
    base, full = found["emptied"], found[f"torch_{_STEPS}"]
    reserved, physical = full.reserved - base.reserved, full.physical - base.physical
    text = f"reserved {reserved:+,}, physical {physical:+,} bytes"
    report.check("what torch reserves is physical", abs(physical - reserved) <= _SLACK_BYTES and reserved > 0, text)
    gap = found["outside"].gap - full.gap
    is_in_gap = abs(gap - _OUTSIDE_BYTES) <= _SLACK_BYTES
    report.check("memory from elsewhere is in the gap", is_in_gap, f"{gap:+,} of {_OUTSIDE_BYTES:,} bytes")
    left = found["outside_freed"].gap - full.gap
    report.check("and leaves it when it is freed", abs(left) <= _SLACK_BYTES, f"{left:+,} bytes")
    kept = found["torch_freed"].reserved - full.reserved
    report.check("what is freed stays reserved", kept == 0, f"{kept:+,} bytes")
    back = found["torch_emptied"].physical - base.physical
    report.check("an emptied cache gives it back", abs(back) <= _SLACK_BYTES, f"{back:+,} bytes over what was before")
    added = found["emptied"].gap - found["context"].gap
    report.fact("kernels_and_libraries_added_bytes", added)
    report.fact("graph_added_to_gap_bytes", found["graph"].gap - found["torch_emptied"].gap)
