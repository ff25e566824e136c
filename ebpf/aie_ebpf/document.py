"""The tables of probes as a document: `python -m aie_ebpf.document > docs/ebpf.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

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
* eBPF sees what the host does: calls, bytes asked for, time blocked. What a GPU does inside (its multiprocessors, its memory, its
  link) NVML tells.
"""


def document() -> str:
    """The whole of `docs/ebpf.md`."""
    return "".join(
        (
            _INTRODUCTION,
            _section("Sets of probes", ("set", "attached", "sees", "does not see"), _sets()),
            _section("Tracepoints", ("set", "tracepoint", "needs"), _tracepoints()),
            _section("Perf events", ("set", "type", "config", "program"), _perf_events()),
            _section("Uprobes", ("set", "library", "functions", "signature", "at return", "since CUDA"), _uprobes()),
        )
    )


def _sets() -> Iterator[Sequence[str]]:
    for each in SETS:
        yield f"`{each.name}`", each.when.value, each.sees, each.blind


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
    """A table in Markdown; nothing where it has no rows."""
    lines = [_line(row) for row in rows]
    if not lines:
        return ""
    return "".join((f"\n## {title}\n\n", _line(heads), _line(["---"] * len(heads)), *lines))


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |\n"


if __name__ == "__main__":
    print(document(), end="")
