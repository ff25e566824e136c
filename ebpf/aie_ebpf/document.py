"""The tables of probes as a document: `python -m aie_ebpf.document > docs/ebpf.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from aie_ebpf.budget import usual_mix
from aie_ebpf.calibrate import TRACEPOINT, UPROBE, UPROBE_EMULATED, URETPROBE
from aie_ebpf.messages import HISTOGRAM_BOUNDS_S
from aie_ebpf.probes import PERF_EVENTS, SETS, TRACEPOINTS, UPROBES

_INTRODUCTION: Final = f"""# eBPF

Generated from `ebpf/aie_ebpf/probes.py` and `cuda_probes.py` by `python -m aie_ebpf.document` (`make metrics-doc`).

The agent watches engines from the kernel, without a change to them. `aie-agent check` says what of it this host allows, what is
seen of each engine, and what to do about the rest. `[bpf]` in the configuration sets the budget (`budget`, a share of one CPU for
each engine), leaves sets out (`without`) or switches all of it off (`enabled`, `--no-bpf`).

* A child process holds BCC and the probes. When it ends, the source `bpf` is down with the reason, and it is started again; when
  the agent ends, however, the child and its probes are gone.
* Tracepoints see the whole host and pass over who is not watched. Uprobes are attached to watched processes only.
* Programs add up in the kernel; what they added is read once a period. Times are counted by powers of two, from
  {HISTOGRAM_BOUNDS_S[0] * 1e6:.0f} us to {HISTOGRAM_BOUNDS_S[-1]:.0f} s.
* A hit's cost is measured when the child starts (`aie_agent_probe_cost_seconds`), hits are counted, and
  `aie_agent_probe_overhead_ratio{{engine}}` is what they take. A set that takes more than the budget is detached, and coverage
  says so. A set of tracepoints leaves this one engine alone: they are detached when no watched process may have the set any more.
  Until then, what is left of each is one look-up, about 0.1 us.
* Uprobes of one program are attached at once, as one link (kernel 6.6 and later; tried out when the child starts). Older kernels
  take each by itself, and 0.1 s to detach it.
* Children of an engine are watched as they are found. Uprobes come off slower than they are attached: while 1000 of them wait to,
  of children that come and go, the next process gets none, and coverage says "later".
* Maps have bounds. What found no room is counted (`aie_agent_probe_lost_total{{map}}`), and nothing that is in use is dropped.
* eBPF sees what the host does: calls, bytes asked for, time blocked. What a GPU does inside (its multiprocessors, its memory, its
  link) NVML tells.
"""

_COST: Final = """
## Cost of a set

What a hit costs is the machine's, and measured there when the child starts; beside each set stand the kinds of its probes and what
one hit took, on average over them, on a virtual machine of two CPUs (`make bench-bpf`, "calibrated, ns a hit"). There an entry
whose first instruction is stepped over costs {stepped} times one that is emulated; on bare metal both take 0.3 to 1 us.
"""

_MEASURED_NS: Final = {TRACEPOINT: 170.0, UPROBE: 19729.0, UPROBE_EMULATED: 715.0, URETPROBE: 449.0}
"""By kind, on 2026-11-30, idle: the line of `make bench-bpf`."""

_AT_LOAD: Final = {"locks": (760, 129), "sched": (459, 78)}
"""Hits a second and microseconds a second that the reference engine paid under 8 clients, in the same run."""

_AFTER_COST: Final = """
The engine of the measurement computes on the CPU: it has no CUDA, and what the sets of CUDA cost an engine is their hits times the
cost above, held by the budget. Hits are counted by kind, and each is charged what its own costs. Only where uprobes cannot be
attached as links (kernels before 6.6) entries are charged by their set's mix, as if each function were called as often as the
others: where stepped and emulated ones are in one set, too much or too little by their ratio, at most.

While a tracepoint of system calls is attached, every system call of every process on the host takes a slower way into the kernel,
watched or not: 16 ns here (`getppid`, 95 ns without, 111 with), 70 ns elsewhere. No engine is charged for that.

Where uprobes cannot be attached as links (kernels before 6.6), a set takes its probes times 0.1 s to detach, and `cuda_memory` has
some 60 of them on the driver's library. Those of the functions that are called most come off first: a flood of three functions was
over 0.9 s after the set was told to go, with 41 of 56 probes still attached, and cost 2.4 % of a CPU over the minute. One that is
spread over all of them would cost 12 %. `without = ["cuda_memory"]` spares that.
"""


def document() -> str:
    """The whole of `docs/ebpf.md`."""
    return "".join(
        (
            _INTRODUCTION,
            _section("Sets of probes", ("set", "attached", "sees", "does not see"), _sets()),
            _COST.format(stepped=round(_MEASURED_NS[UPROBE] / _MEASURED_NS[UPROBE_EMULATED])),
            _table(("set", "a hit is", "by kind", "ns a hit", "hits/s at load", "us/s at load"), _costs()),
            _AFTER_COST,
            _section("Tracepoints", ("set", "tracepoint", "needs"), _tracepoints()),
            _section("Perf events", ("set", "type", "config", "program"), _perf_events()),
            _section("Uprobes", ("set", "library", "functions", "signature", "at return", "since CUDA"), _uprobes()),
        )
    )


def _sets() -> Iterator[Sequence[str]]:
    for each in SETS:
        yield f"`{each.name}`", each.when.value, each.sees, each.blind


def _costs() -> Iterator[Sequence[str]]:
    for each in SETS:
        mix = usual_mix(each.name)
        kinds = ", ".join(f"{share:.0%} {kind}" if share < 1 else kind for kind, share in mix.items())
        dear_ns = sum(share * _MEASURED_NS[kind] for kind, share in mix.items())
        cheap_ns = sum(share * _MEASURED_NS[UPROBE_EMULATED if kind == UPROBE else kind] for kind, share in mix.items())
        cost = f"{dear_ns:.0f}" if dear_ns == cheap_ns else f"{cheap_ns:.0f} emulated, {dear_ns:.0f} stepped"
        yield f"`{each.name}`", each.pays, kinds, cost, *(str(value) for value in _AT_LOAD.get(each.name, ("-", "-")))


def _tracepoints() -> Iterator[Sequence[str]]:
    for each in TRACEPOINTS:
        yield f"`{each.set}`", f"`{each.tracepoint}`", "its kernel module" if each.optional else "-"


def _perf_events() -> Iterator[Sequence[str]]:
    for each in PERF_EVENTS:
        yield f"`{each.set}`", str(each.type), str(each.config), f"`{each.handler}`"


def _uprobes() -> Iterator[Sequence[str]]:
    for each in UPROBES:
        symbols = ", ".join(f"`{symbol}`" for symbol in each.symbols)
        yield (
            f"`{each.set}`",
            f"`{each.soname}`",
            symbols,
            f"`{each.signature}`",
            "yes" if each.on_return else "-",
            each.since or "-",
        )


def _section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with its title; nothing where it has no rows."""
    table = _table(heads, rows)
    return f"\n## {title}\n{table}" if table else ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """In Markdown; nothing without rows."""
    lines = [_line(row) for row in rows]
    return "".join(("\n", _line(heads), _line(["---"] * len(heads)), *lines)) if lines else ""


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


if __name__ == "__main__":
    print(document(), end="")
