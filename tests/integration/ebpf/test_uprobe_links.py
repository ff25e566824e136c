"""Many uprobes as one link, and the choice between that and perf events: on a real program, with threads."""

from __future__ import annotations

import dataclasses
import platform
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from aie_ebpf import uprobe_links
from aie_ebpf.attaching import Attached, Noted, attach_points
from aie_ebpf.calibrate import URETPROBE
from aie_ebpf.closer import Closer
from aie_ebpf.cuda_probes import Uprobe
from aie_ebpf.door import Bcc, BpfError, Module
from aie_ebpf.mappings import mapped_files
from aie_ebpf.targets import AttachPoint
from aie_ebpf.targets import attach_points as points_of
from aie_ebpf.uprobe_links import Spot, Way
from tests.fakes.compiled import program, shared_library
from tests.integration.ebpf.uprobe_ways import both_ways

FUNCTIONS = 12
LIBRARY = "".join(f"int cuCall{each}(int x) {{ return x + {each}; }}\n" for each in range(FUNCTIONS))
# Each line of its input: every function is called so many times, by a thread that is not the main one.
CALLER = (
    "#include <pthread.h>\n#include <stdio.h>\n"
    + "".join(f"extern int cuCall{each}(int);\n" for each in range(FUNCTIONS))
    + "static int times;\nstatic void *work(void *unused) {\n for (int i = 0; i < times; i++) {"
    + "".join(f" cuCall{each}(i);" for each in range(FUNCTIONS))
    + "}\n return unused;\n}\n"
    + 'int main(void) {\n puts("ready"); fflush(stdout);\n while (scanf("%d", &times) == 1) {\n'
    + "  pthread_t thread;\n  pthread_create(&thread, NULL, work, NULL);\n  pthread_join(thread, NULL);\n"
    + '  puts("done"); fflush(stdout);\n }\n return 0;\n}\n'
)
COUNT = """
#include <uapi/linux/ptrace.h>
BPF_ARRAY(calls, u64, 2);
static __always_inline int count(u32 at) {
    u64 *hit = calls.lookup(&at);
    if (hit) __sync_fetch_and_add(hit, 1);
    return 0;
}
int entry(struct pt_regs *ctx) { return count(0); }
int left(struct pt_regs *ctx) { return count(1); }
"""
ROWS = [Uprobe("test", "libcuda.so", (f"cuCall{each}",), "entry", "left", "int f(int)", "1.0") for each in range(FUNCTIONS)]
CALLS = 500


class Calls:
    """A program that calls, and how often the kernel has seen it."""

    def __init__(self, process: subprocess.Popen[str], module: Module) -> None:
        self._process = process
        self._table = module.table("calls", "I", "Q")
        self.tgid = process.pid
        self.points = points_of(mapped_files(process.pid), ROWS)[0]
        self.seen()

    def make(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{CALLS}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n"

    def seen(self) -> tuple[int, int]:
        """Entries and returns since the last call."""
        found = tuple((self._table.get(each) or (0,))[0] for each in range(2))
        for each in range(2):
            self._table.put((each,), (0,))
        return found[0], found[1]


@pytest.fixture(scope="module")
def counter(bcc: Bcc) -> Module:
    return bcc.compile_text(COUNT)


@pytest.fixture
def calls(tmp_path: Path, counter: Module) -> Iterator[Calls]:
    library = shared_library(tmp_path / "libcuda.so.1", LIBRARY)
    path = program(tmp_path / "caller", CALLER, str(library), "-pthread", f"-Wl,-rpath,{tmp_path}")
    with subprocess.Popen([path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield Calls(process, counter)
        finally:
            process.kill()


def attach_all(module: Module, way: Way, points: list[AttachPoint], tgid: int) -> tuple[Attached, list[str], list[Noted]]:
    """To the end, in as many steps as it takes."""
    attached = Attached()
    noted: list[Noted] = []
    steps = attach_points(module, way, points, tgid, attached, noted.append)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return attached, end.value, noted


@both_ways
def test_every_call_of_another_thread_is_seen_in_and_out(calls: Calls, counter: Module, way: Way) -> None:
    attached, errors, noted = attach_all(counter, way, calls.points, calls.tgid)
    assert errors == []
    assert attached.points == set(calls.points)
    assert len(noted) == 2 * FUNCTIONS
    assert sum(each.kind == URETPROBE for each in noted) == FUNCTIONS
    assert len(attached.probes) == (2 if way is Way.LINKS else 2 * FUNCTIONS)
    calls.make()
    assert calls.seen() == (FUNCTIONS * CALLS, FUNCTIONS * CALLS)
    assert Closer().close(attached.release()).wait(60)
    calls.make()
    assert calls.seen() == (0, 0)


@both_ways
def test_a_place_that_cannot_be_probed_takes_no_others_with_it(calls: Calls, counter: Module, way: Way) -> None:
    """Beyond the end of the file there is nothing to probe."""
    bad = dataclasses.replace(calls.points[3], offset=1 << 40)
    points = [bad, *calls.points[:3], *calls.points[4:]]
    attached, errors, _ = attach_all(counter, way, points, calls.tgid)
    (error,) = errors
    assert error.startswith(f"{bad.symbol}: ")
    assert "cannot be probed" in error
    assert attached.points == {point for point in points if point is not bad}
    calls.make()
    assert calls.seen() == ((FUNCTIONS - 1) * CALLS, (FUNCTIONS - 1) * CALLS)
    Closer().close(attached.release())


@both_ways
def test_nothing_stays_attached_of_what_was_refused(calls: Calls, counter: Module, way: Way) -> None:
    good = calls.points[0]
    with pytest.raises(BpfError, match="cannot be probed"):
        uprobe_links.attach(counter, way, str(good.path), [Spot(good.offset), Spot(1 << 40)], "entry", calls.tgid)
    calls.make()
    assert calls.seen() == (0, 0)
    assert f"_{calls.tgid}_" not in Path("/sys/kernel/tracing/uprobe_events").read_text()


@both_ways
def test_a_set_that_is_released_meanwhile_is_attached_no_further(calls: Calls, counter: Module, way: Way) -> None:
    attached = Attached()
    steps = attach_points(counter, way, calls.points, calls.tgid, attached, lambda noted: None)
    next(steps)
    (first,) = attached.release()
    with pytest.raises(StopIteration):
        next(steps)
    assert attached.probes == []
    counter.detach(first)
    calls.make()
    assert calls.seen() == (0, 0)


def test_links_are_used_where_they_see_all_threads(bcc: Bcc) -> None:
    """From 6.10 on every kernel has the fix of the pid filter; before 6.6 none has such links."""
    choice = uprobe_links.choose(bcc)
    assert (choice.way is Way.EVENTS) == bool(choice.reason)
    match = re.match(r"(\d+)\.(\d+)", platform.release())
    assert match is not None
    version = int(match[1]), int(match[2])
    if not (6, 6) <= version < (6, 10):
        assert choice.way is (Way.LINKS if version >= (6, 10) else Way.EVENTS), choice.reason


def test_the_closer_takes_haste_before_what_waits(calls: Calls, counter: Module) -> None:
    """Events are detached one by one: whoever comes last in haste waits for those that are under way only."""
    attached, _, _ = attach_all(counter, Way.EVENTS, calls.points, calls.tgid)
    *many, last = attached.release()
    closer = Closer()
    slow = closer.close(many)
    fast = closer.close([last], haste=True)
    assert fast.wait(60)
    assert not slow.is_set()
    assert slow.wait(60)
    assert closer.close([]).is_set(), "of nothing, it is done"
    assert closer.waiting == 0


def test_the_closer_takes_first_what_is_put_forward(calls: Calls, counter: Module) -> None:
    attached, _, _ = attach_all(counter, Way.EVENTS, calls.points, calls.tgid)
    *many, last = attached.release()
    closer = Closer()
    slow, one = closer.close(many, haste=True), closer.close([last], haste=True)
    closer.put_forward([last])
    assert one.wait(60)
    assert not slow.is_set()
    closer.put_forward([last])  # it is off: whoever has its number now is another
    assert slow.wait(60)
    assert closer.waiting == 0
    assert closer.finish(0.0)
