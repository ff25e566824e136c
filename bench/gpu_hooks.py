"""Hooks on real CUDA: the allocator's numbers, the record of memory that ran out, layers' numbers, and no wait of their own."""

from __future__ import annotations

import math
import socket
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

from gpu_report import Context, NotRunError

_VOCABULARY: Final = 49_152
_ROWS: Final = 16
_CALLS, _CALLS_SMALL = 50, 3
_BLOCK_BYTES: Final = 64 << 20
_RECORD: Final = (
    "device", "asked_bytes", "free_bytes", "total_bytes", "largest_free_bytes", "reserved_unallocated_bytes", "allocated_bytes",
    "reserved_bytes", "inactive_split_bytes", "private_pool_bytes", "retries", "ooms", "error",
)  # fmt: skip
"""What a record of an error of torch's must have."""
_SYNC_WARNING: Final = "synchronizing CUDA operation"


def hooks(context: Context) -> None:
    """On the CPU what there is of it. Parts that need a package that is missing are left out, and named."""
    import torch

    if context.is_cuda:
        context.torch_on_cuda()
    missing: list[str] = []
    for part in (_statistics, _sampling, _allocator, _layers, _out_of_memory):
        if part in (_allocator, _out_of_memory) and not context.is_cuda:
            continue
        try:
            part(context, torch)
        except ModuleNotFoundError as error:
            if (error.name or "").startswith(("aie_", "gpu_")):
                raise
            missing.append(f"{part.__name__.strip('_')}: {error.name}")
    context.report.fact("left_out_for_want_of", missing)
    if len(missing) == 5 or (not context.is_cuda and len(missing) == 3):
        raise NotRunError(f"needs Python packages: {', '.join(missing)}")


def _where(context: Context) -> Any:
    import torch

    return torch.device(context.device)


def _statistics(context: Context, torch: Any) -> None:
    """`token_stats` against double precision, and without a wait."""
    from aie_hooks.logits import token_stats

    device = _where(context)
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(_ROWS, _VOCABULARY, generator=generator) * 4).to(device, torch.bfloat16)
    chosen = torch.arange(_ROWS, device=device) * 7
    token_stats(logits, chosen)  # the first one loads kernels
    found = _unwaited(context, torch, "token_stats", partial(token_stats, logits, chosen))
    exact = logits.double().cpu()
    logprobs = exact.log_softmax(-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    wanted = torch.stack((logprobs.gather(-1, chosen.cpu()[:, None])[:, 0], entropy, exact.logsumexp(-1)), -1)
    off = float((found.cpu().double() - wanted).abs().max())
    context.report.check("token_stats is right", off < 1e-3, f"at most {off:.1e} nats off double precision")


def _sampling(context: Context, torch: Any) -> None:
    """Details of tokens come with the tokens: as many waits with them as without."""
    from aie_engine.plan import SamplingParams
    from aie_engine.sampling import sample

    calls = _CALLS_SMALL if context.small else _CALLS
    logits = torch.randn(_ROWS, _VOCABULARY, device=_where(context), dtype=torch.bfloat16)
    positions = list(range(_ROWS))
    waits, times_us = {}, {}
    for name, detail in (("without", None), ("with", 0)):
        step = partial(sample, logits, [SamplingParams(temperature=0.0, detail=detail)] * _ROWS, positions)
        step()
        waits[name] = _count_syncs(torch, step) if context.is_cuda else None
        times_us[name] = _median_us(step, calls)
    context.report.fact("sample_us", times_us)
    if context.is_cuda:
        # None without would mean that they are not seen: tokens have to come to the host.
        is_same = waits["with"] == waits["without"] and waits["without"] != 0
        context.report.check("details add no wait", is_same, f"waits a step: {waits}")


def _allocator(context: Context, torch: Any) -> None:
    from aie_hooks import torch_cuda_stats

    index = context.device_index
    before = torch_cuda_stats(index)
    block = torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device=_where(context))
    pinned = torch.empty(_BLOCK_BYTES, dtype=torch.uint8, pin_memory=True)
    after = torch_cuda_stats(index, pinned=True)
    more = after.allocated_bytes - before.allocated_bytes
    report = context.report
    report.fact("torch_cuda_stats", {name: getattr(after, name) for name in after.__slots__})
    report.fact("torch_cuda_stats_us", _median_us(lambda: torch_cuda_stats(index)))
    report.check("torch_cuda_stats sees a tensor", more == block.nbytes, f"{more:+,} bytes allocated for {block.nbytes:,}")
    held = after.pinned_bytes
    text = f"{held} bytes for {pinned.nbytes:,}"
    report.check("torch_cuda_stats sees pinned memory, or does not know", held is None or held >= pinned.nbytes, text)


def _layers(context: Context, torch: Any) -> None:
    """Numbers of a layer arrive, are right, and nothing waited for them; pinned memory does not grow."""
    from aie_hooks import Emitter
    from aie_hooks.modules import ModuleHooks

    device = _where(context)
    net = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)).to(device)
    # Far from 0, and not below it: StatsD says a negative gauge in two lines.
    torch.nn.init.ones_(net[1].bias)
    rows = torch.randn(64, 512, device=device)
    with _receiver() as (endpoint, packets), torch.inference_mode():
        emitter = Emitter("gpu-check", endpoint, flush_interval_s=math.inf, packets_per_second=1e6)
        watch = ModuleHooks(emitter, net, model="m", layers="1", every=1)
        wanted = float(net(rows).double().mean())
        _unwaited(context, torch, "ModuleHooks", lambda: [net(rows) for _ in range(8)])
        held = []
        for _ in range(2):  # after the first time there are blocks for as many copies as are ever on their way
            for _ in range(200):
                net(rows)
            if context.is_cuda:
                torch.cuda.synchronize()
            held.append(_pinned(torch))
        watch.remove()
        emitter.flush()
        lines = packets()
        emitter.close()
    found = next((float(line.split(":")[1].split("|")[0]) for line in lines if line.startswith("aie_engine_activation_mean")), None)
    report = context.report
    close = found is not None and math.isclose(found, wanted, rel_tol=1e-3, abs_tol=1e-5)
    report.check("ModuleHooks is right", close, f"mean {found}, of the output itself {wanted:.6g}")
    if context.is_cuda:
        report.check("its pinned memory does not grow", held[1] == held[0], f"{held[1] - held[0]:+,} bytes in 200 steps")


def _out_of_memory(context: Context, torch: Any) -> None:
    """More than there is: the record that comes, and what it says."""
    from aie_hooks import Emitter, oom_forensics
    from aie_telemetry.events import decode_event

    index = context.device_index
    free, total = torch.cuda.mem_get_info(index)
    asked = 2 * total
    raised = ""
    with _receiver() as (endpoint, packets):
        emitter = Emitter("gpu-check", endpoint, flush_interval_s=math.inf)
        packets()
        began_s = time.perf_counter()
        try:
            with oom_forensics(emitter, index):
                torch.empty(asked, dtype=torch.uint8, device=_where(context))
        except torch.OutOfMemoryError as error:
            raised = str(error)
        took_ms = (time.perf_counter() - began_s) * 1e3
        line = next((line for line in packets() if line.startswith("_e{")), "")
        emitter.close()
    report = context.report
    report.fact("oom_took_ms", round(took_ms, 2))
    report.fact("oom_message", raised)
    report.check("the error goes on as it was", bool(raised), raised[:120] or "no error came")
    head, _, rest = line.partition(":")
    length = int(head[3:].partition(",")[0] or 0) if line else 0
    event = decode_event(rest[:length], rest[length + 1 :]) if line else None
    details = {} if event is None else dict(event.details)
    report.fact("oom_record", details)
    lacking = [name for name in _RECORD if name not in details]
    report.check("the record has everything", event is not None and not lacking, ", ".join(lacking) or f"{len(details)} details")
    told = details.get("asked_bytes")
    right = isinstance(told, int | float) and math.isclose(told, asked, rel_tol=0.01)
    report.check("what was asked for is right", right, f"{told} of {asked}")
    right = isinstance(details.get("free_bytes"), int | float) and math.isclose(float(details["free_bytes"]), free, rel_tol=0.05)
    report.check("what was free is right", right, f"{details.get('free_bytes')} of {free}")
    report.fact("oom_unreadable", details.get("unreadable"))


def _unwaited(context: Context, torch: Any, name: str, call: Callable[[], Any]) -> Any:
    """What `call` returns; checked on a device: no operation in it waits for that."""
    if not context.is_cuda:
        return call()
    torch.cuda.synchronize()
    seen = _count_syncs(torch, torch.ones(1, device=_where(context)).item)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found, wait = call(), ""
    except RuntimeError as error:
        if _SYNC_WARNING not in str(error):
            raise
        found, wait = None, str(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    text = wait or f"where one does torch tells of it: of {seen} in a copy to the host"
    context.report.check(f"{name} waits for nothing", not wait and seen > 0, text)
    return call() if wait else found


def _count_syncs(torch: Any, call: Callable[[], Any]) -> int:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum(_SYNC_WARNING in str(warning.message) for warning in caught)


def _pinned(torch: Any) -> int:
    read = getattr(torch.cuda, "host_memory_stats", None)
    return 0 if read is None or not torch.cuda.is_available() else int(read().get("allocated_bytes.current", 0))


def _median_us(call: Callable[[], Any], calls: int = _CALLS) -> float:
    times = []
    for _ in range(calls):
        began_s = time.perf_counter()
        call()
        times.append(time.perf_counter() - began_s)
    return round(statistics.median(times) * 1e6, 1)


@contextmanager
def _receiver() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """A real socket where the agent's would be: its endpoint, and what reads the lines that lie in it."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        path = Path(folder) / "statsd"
        receiver.bind(str(path))
        receiver.setblocking(False)

        def packets() -> list[str]:
            lines: list[str] = []
            while True:
                try:
                    lines += receiver.recv(65536).decode().splitlines()
                except BlockingIOError:
                    return lines

        yield f"unix://{path}", packets
