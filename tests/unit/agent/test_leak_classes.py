"""What grows in a process outside its allocator: told by its hooks, by the kernel, or not at all."""

from __future__ import annotations

import pytest

from aie_agent.samples import Batch, Point
from aie_telemetry.api import Finding
from aie_telemetry.catalogue import CATALOGUE, Kind
from tests.fakes.leak_world import GB, LEAK_S, MB, World

HOURS = 14.0
BLOCKS = "aie_engine_python_blocks"
USED = "aie_engine_malloc_used_bytes"
HELD = "aie_engine_malloc_held_bytes"


def told(
    world: World, blocks_s: float = 0.0, used_s: float = 0.0, held_s: float = 0.0, *, processes: int = 1, hours: float = HOURS
) -> Finding:
    """The one finding about an engine that grows beside its allocator, and tells what of it Python and malloc hold: so much more a
    second, with the noise of requests that come and go."""

    def shape(second: float) -> dict[str, float]:
        world.store.apply(Batch("process", world.now_s + 1, world.gauge("aie_process_instances", float(processes))))
        return {
            "physical": 6 * GB + LEAK_S * second + world.noise(5.0),
            "allocated": 3 * GB,
            "reserved": 4 * GB,
            "python_blocks": 500_000 + blocks_s * second + abs(world.noise(0.002)),
            "malloc_used_bytes": GB + used_s * second + abs(world.noise(5.0)),
            "malloc_held_bytes": 1.2 * GB + held_s * second,
        }

    world.run(hours, shape)
    return world.only()


def test_python_objects() -> None:
    """Lists of some hundred bytes: malloc has the large ones, the interpreter all of them."""
    finding = told(World("cpu"), blocks_s=LEAK_S / 200, used_s=0.6 * LEAK_S, held_s=0.6 * LEAK_S)
    assert "Python objects" in finding.summary
    assert any("Python holds" in each.text and each.metric == BLOCKS for each in finding.evidence)
    assert "tracemalloc" in finding.advice
    assert not any("neither hooks nor the kernel" in each for each in finding.not_visible)


def test_native_heap() -> None:
    finding = told(World("cpu"), blocks_s=3.0, used_s=LEAK_S, held_s=LEAK_S)
    assert "native heap" in finding.summary
    assert any(each.metric == USED for each in finding.evidence)
    assert "memleak" in finding.advice


def test_a_native_leak_beside_which_some_objects_of_python_grow() -> None:
    """One for each 2 kB of it, as handles of what leaks: 5 % of the rise by themselves."""
    finding = told(World("cpu"), blocks_s=LEAK_S / 1900, used_s=LEAK_S, held_s=LEAK_S)
    assert "native heap" in finding.summary
    assert any("Python holds" in each.text and each.metric == USED for each in finding.evidence)


def test_a_heap_in_fragments() -> None:
    finding = told(World("cpu"), held_s=LEAK_S)
    assert "native heap" in finding.summary
    assert any("keeps what is freed, in fragments" in each.text for each in finding.evidence)


def test_mappings_past_malloc() -> None:
    finding = told(World("cpu"))
    assert "anonymous mappings" in finding.summary
    assert any(each.metric == HELD for each in finding.evidence)
    assert "UCX" in finding.advice


def test_of_several_processes_one_tells_nothing_of_the_others() -> None:
    assert "outside the allocator" in told(World("cpu"), processes=4).summary
    assert "native heap" in told(World("cpu"), used_s=LEAK_S, held_s=LEAK_S, processes=4).summary


def test_tensors_are_tensors_whatever_malloc_holds() -> None:
    world = World("cpu")
    world.run(
        HOURS,
        lambda second: {
            "physical": 6 * GB + LEAK_S * second,
            "allocated": 3 * GB + LEAK_S * second,
            "reserved": 4 * GB + LEAK_S * second,
            "malloc_used_bytes": GB + LEAK_S * second,
            "malloc_held_bytes": GB + LEAK_S * second,
            "python_blocks": 500_000 + second * LEAK_S / 200,
        },
    )
    assert "live tensors" in world.only().summary


def test_objects_that_come_and_go_are_no_finding() -> None:
    """A garbage collector's sawtooth in blocks and in malloc, with memory that does not grow."""
    world = World("cpu")
    world.run(
        26,
        lambda second: {
            "physical": 6 * GB + world.noise(),
            "python_blocks": 500_000 + 2000.0 * (second % 100),
            "malloc_used_bytes": GB + 2 * MB * (second % 100),
            "malloc_held_bytes": 1.2 * GB,
        },
    )
    assert world.found() == []
    assert set(world.states()) == {"physical"}, "what is only compared with is no line of its own"


class TestMaps:
    """Without hooks, from outside."""

    @staticmethod
    def run(world: World, hours: float, kind: str, size_class: str, since: float = 0.0) -> None:
        """All of what grows is of one kind; the kernel is asked once the engine is suspect."""

        def shape(second: float) -> dict[str, float]:
            second += since
            if world.found():
                held = {(kind, size_class): GB + LEAK_S * second, ("heap", "1048576"): 0.3 * GB, ("file", "4096"): 2 * MB}
                points = [
                    Point("aie_process_anonymous_bytes", Kind.GAUGE, (("engine", "e"), ("kind", name), ("size_class", size)), value)
                    for (name, size), value in held.items()
                ]
                world.store.apply(Batch("memory_maps", world.now_s + 1, points, whole=("aie_process_anonymous_bytes",)))
            return {"physical": 6 * GB + LEAK_S * second + world.noise(5.0)}

        world.run(hours, shape)

    @pytest.mark.parametrize(
        ("kind", "size_class", "words", "says"),
        [
            ("heap", "67108864", "native heap", "malloc's heap and arenas grew by"),
            ("mapping", "134217728", "anonymous mappings", "other mappings of up to 134 MB each"),
        ],
    )
    def test_what_grows(self, kind: str, size_class: str, words: str, says: str) -> None:
        world = World("cpu")
        self.run(world, HOURS, kind, size_class)
        finding = world.only()
        assert words in finding.summary
        assert any(says in each.text for each in finding.evidence)
        assert {each.metric for each in finding.evidence} <= CATALOGUE.keys()

    def test_not_before_there_is_something_to_compare(self) -> None:
        world = World("cpu")
        minutes = 0
        while not world.found():
            self.run(world, 1 / 60, "mapping", "4096", since=float(minutes))
            minutes += 1
        self.run(world, 2 / 60, "mapping", "4096", since=float(minutes))
        assert "class unknown" in world.only().summary

    def test_what_does_not_explain_the_rise_is_not_named(self) -> None:
        """Mappings that stand still while the process grows: the kernel's answer is of something else."""
        world = World("cpu")
        points = [
            Point("aie_process_anonymous_bytes", Kind.GAUGE, (("engine", "e"), ("kind", "mapping"), ("size_class", "4096")), GB)
        ]

        def shape(second: float) -> dict[str, float]:
            world.store.apply(Batch("memory_maps", world.now_s + 1, points, whole=("aie_process_anonymous_bytes",)))
            return {"physical": 6 * GB + LEAK_S * second + world.noise(5.0)}

        world.run(HOURS, shape)
        assert "class unknown" in world.only().summary
