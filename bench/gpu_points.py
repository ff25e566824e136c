"""Open points of NVML: what version 2 of the memory's answer means, which fields there are and in which unit, which events."""

from __future__ import annotations

import ctypes
import statistics
import time
from typing import Any, Final

from gpu_driver import Driver
from gpu_nobody import as_nobody
from gpu_nvml import VALUE_TYPES, AtHand, Field, MemoryV1, MemoryV2, Nvml, at_hand, name_of
from gpu_report import Context

_MEMORY: Final = "nvmlDeviceGetMemoryInfo"
_MEMORY_V2: Final = f"{_MEMORY}_v2"
_VERSION_2: Final = ctypes.sizeof(MemoryV2) | 2 << 24
_PAGE_BYTES: Final = 4096

_TX, _RX = (197, 0), (198, 0)
_COPY_BYTES: Final = 256 << 20
_TIMES: Final = {"rx": 6, "tx": 3}
"""Copies in each direction: different, so that a swap is seen, and together below what wraps in 32 bits."""
# A packet's header and what else goes over the bus add to the bytes that were asked for.
_LEAST, _MOST = 0.98, 1.3

_XID: Final = 0x8
_EVENTS: Final = {
    0x1: "single_bit_ecc", 0x2: "double_bit_ecc", 0x4: "pstate", 0x8: "xid", 0x10: "clock", 0x80: "power_source",
    0x100: "mig_config", 0x200: "single_bit_ecc_storm", 0x400: "dram_retirement", 0x800: "dram_retirement_failure",
    0x1000: "non_fatal_poison", 0x2000: "fatal_poison", 0x4000: "gpu_unavailable", 0x8000: "recovery_action",
}  # fmt: skip


def memory(context: Context) -> None:
    """Points 1 and 6, and what the agent makes of the same numbers."""
    with at_hand(context) as hand:
        first, second = MemoryV1(), MemoryV2(version=_VERSION_2)
        codes = {_MEMORY: hand.nvml.ask(_MEMORY, hand.gpu, ctypes.byref(first))}
        codes[_MEMORY_V2] = hand.nvml.ask(_MEMORY_V2, hand.gpu, ctypes.byref(second))
        plain = hand.nvml.ask(_MEMORY_V2, hand.gpu, ctypes.byref(MemoryV2(version=2)))
    report = context.report
    report.fact("codes", {call: name_of(code) for call, code in codes.items()})
    report.fact("v1", _numbers(first))
    report.fact("v2", _numbers(second))
    report.fact("version_2_without_size", name_of(plain))
    if any(codes.values()):
        return
    apart = second.used + second.reserved + second.free - second.total
    within = second.used + second.free - second.total
    report.fact("v2_used_includes_reserved", abs(within) < abs(apart))
    report.fact("v1_used_less_v2_used_bytes", first.used - second.used)
    adds_up = min(abs(apart), abs(within)) <= _PAGE_BYTES
    report.check("v2 adds up to the total", adds_up, f"{apart:+,} bytes with what is reserved, {within:+,} without")
    off = first.used + first.free - first.total
    report.check("v1: used + free = total", abs(off) <= _PAGE_BYTES, f"{off:+,} bytes")
    _agents_view(context, second)


def _agents_view(context: Context, second: MemoryV2) -> None:
    from aie_agent.sources.nvml.memory import balanced

    found = balanced(second.total, second.used, second.free, second.reserved)
    if found is None:
        context.report.check("the agent's memory adds up", False, "it takes the answer for implausible")
        return
    off = found.used + (found.reserved or 0) + found.free - found.total
    text = f"{off:+,} bytes; its used is v2's {found.used - second.used:+,}"
    context.report.check("the agent's memory adds up", off == 0, text)


def _numbers(structure: ctypes.Structure) -> dict[str, int]:
    return {name: getattr(structure, name) for name, *_ in structure._fields_ if name != "version"}


def fields(context: Context) -> None:
    """Point 3: which of the agent's fields this GPU has, and whether the bus's counters count bytes; what the slow call costs."""
    report = context.report
    with at_hand(context) as hand:
        counters = hand.nvml.fields(hand.gpu, [_TX, _RX])
        report.fact("pcie_bytes", {name: field._asdict() for name, field in zip(("tx", "rx"), counters, strict=True)})
        report.fact("pcie_throughput_call", _throughput(hand))
        if hand.driver is not None and all(field.code == "success" for field in counters):
            _counts_bytes(context, hand, hand.driver)
        report.fact("agent_fields", _agents_fields(hand))


def _agents_fields(hand: AtHand) -> dict[str, list[Any]]:
    """Of every field of the agent's table: the metric that it is for, code and type."""
    from aie_agent.sources.nvml.rows import FIELDS, ROWS

    rows = {(row.args[0], row.args[1]): row.metric for row in ROWS if row.call == FIELDS}
    answers = hand.nvml.fields(hand.gpu, list(rows))
    return {
        f"{field}/{scope:x}": [metric, answer.code, answer.type]
        for ((field, scope), metric), answer in zip(rows.items(), answers, strict=True)
    }


def _throughput(hand: AtHand) -> dict[str, Any]:
    """nvmlDeviceGetPcieThroughput: how long it takes, of which the reference says 20 ms."""
    times_ms, code = [], 0
    for direction in (0, 1) * 5:
        value = ctypes.c_uint()
        began_s = time.perf_counter()
        code = hand.nvml.ask("nvmlDeviceGetPcieThroughput", hand.gpu, direction, ctypes.byref(value))
        times_ms.append((time.perf_counter() - began_s) * 1e3)
    return {"code": name_of(code), "median_ms": statistics.median(times_ms), "most_ms": max(times_ms)}


def _counts_bytes(context: Context, hand: AtHand, driver: Driver) -> None:
    """Copies known amounts over the bus between two readings. Only on a GPU that does nothing else is the difference ours."""
    driver.enter()
    host, device = driver.pinned(_COPY_BYTES), driver.allocate(_COPY_BYTES)
    driver.to_device(device, host, _COPY_BYTES)
    time.sleep(0.2)
    before = hand.nvml.fields(hand.gpu, [_TX, _RX])
    for _ in range(_TIMES["rx"]):
        driver.to_device(device, host, _COPY_BYTES)
    for _ in range(_TIMES["tx"]):
        driver.to_host(host, device, _COPY_BYTES)
    time.sleep(0.2)
    after = hand.nvml.fields(hand.gpu, [_TX, _RX])
    driver.free(device)
    for name, then, now in zip(("tx", "rx"), before, after, strict=True):
        copied = _TIMES[name] * _COPY_BYTES
        counted = _difference(then, now)
        context.report.fact(f"pcie_{name}_counted_over_copied_ratio", counted / copied)
        text = f"{counted:,} counted in a {now.type}, {copied:,} bytes copied"
        context.report.check(f"PCIe counter of {name} is of bytes", _LEAST <= counted / copied <= _MOST, text)


def _difference(then: Field, now: Field) -> int:
    """Of a counter that may have wrapped in its width."""
    return (now.bits - then.bits) % (1 << (32 if now.type == VALUE_TYPES[1] else 64))


def events(context: Context) -> None:
    """Point 4: which kinds of events this GPU has, and who may wait for XIDs."""
    report = context.report
    report.fact("register_xid_as_nobody", as_nobody(context, lambda hand: name_of(_register(hand, _event_set(hand)))))
    with at_hand(context) as hand:
        mask = ctypes.c_uint64()
        code = hand.nvml.ask("nvmlDeviceGetSupportedEventTypes", hand.gpu, ctypes.byref(mask))
        report.fact("supported_code", name_of(code))
        report.fact("supported", _names(mask.value))
        wanted = _event_set(hand)
        registered = _register(hand, wanted)
        report.check("XIDs can be waited for", registered == 0, f"nvmlDeviceRegisterEvents gives {name_of(registered)}")
        if context.provoke_xid:
            _provoke(context, hand.nvml, wanted)
        hand.nvml.ask("nvmlEventSetFree", wanted)


def _event_set(hand: AtHand) -> ctypes.c_void_p:
    wanted = ctypes.c_void_p()
    hand.nvml.need("nvmlEventSetCreate", ctypes.byref(wanted))
    return wanted


def _register(hand: AtHand, wanted: ctypes.c_void_p) -> int:
    return hand.nvml.ask("nvmlDeviceRegisterEvents", hand.gpu, ctypes.c_uint64(_XID), wanted)


def _names(mask: int) -> list[str]:
    return [_EVENTS.get(1 << bit, f"bit {bit}") for bit in range(64) if mask >> bit & 1]


class _EventData(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = (
        ("device", ctypes.c_void_p),
        ("type", ctypes.c_uint64),
        ("data", ctypes.c_uint64),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def _provoke(context: Context, nvml: Nvml, wanted: ctypes.c_void_p) -> None:
    """Whether NVML tells of an XID that is known to have happened."""
    from gpu_fault import fault_elsewhere

    context.report.fact("fault", fault_elsewhere(context.device_index))
    event = _EventData()
    code = nvml.ask("nvmlEventSetWait_v2", wanted, ctypes.byref(event), 5000)
    context.report.fact("event_after_fault", {"code": name_of(code), "type": event.type, "xid": event.data})
    context.report.check("an XID comes as an event", code == 0 and event.type == _XID, f"{name_of(code)}, XID {event.data}")
