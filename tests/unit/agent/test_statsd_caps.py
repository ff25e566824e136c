"""What StatsD's series may take: each sender its share, the silent ones make room, and nothing grows without bound."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable

import pytest
from fakes.statsd_lines import feed, taken

from aie_agent.samples import Batch, Point
from aie_agent.sources.statsd_aggregate import ANONYMOUS, SILENT_S, Aggregator
from aie_agent.sources.statsd_series import GENERAL_BOUNDS
from aie_agent.store import Store
from aie_telemetry.catalogue import Kind
from aie_telemetry.statsd import Parser


class TestCaps:
    def test_series_are_capped_and_the_known_ones_go_on(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5)), sender=1)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5, 10)), sender=2)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(10, 25)), sender=3)
        assert aggregator.size == 10
        assert aggregator.refused == {"series_limit": 15}
        assert len(aggregator.swap(1.0).points()[0]) == 10
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(25)), sender=3)
        assert len(aggregator.swap(2.0).points()[0]) == 10
        assert aggregator.size == 10

    @pytest.mark.parametrize("hostile", [ANONYMOUS, 4711])
    def test_no_sender_takes_more_than_half(self, hostile: int) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(25)), sender=hostile)
        assert aggregator.size == 5
        assert aggregator.refused == {"series_share": 20}
        feed(aggregator, "b:1|c", "c:1|g", sender=4712)
        feed(aggregator, "b:1|c", "a,x=0:1|c", sender=hostile)  # known series are anybody's
        assert {(point.name, point.value) for point in aggregator.swap(1.0).points()[0]} == {("a", 1), ("a", 2), ("b", 2), ("c", 1)}
        assert aggregator.refused == {"series_share": 20}

    def test_a_histogram_weighs_what_it_weighs_in_the_store(self) -> None:
        store = Store(max_series=1000, retention_s=60.0)
        _, (histogram,), _ = taken("a:1|h")
        store.apply(Batch("statsd", 1.0, [], [histogram]))
        weight = len(GENERAL_BOUNDS) + 3
        assert store.size == weight
        aggregator = Aggregator(max_series=4 * weight)
        feed(aggregator, *(f"a,x={number}:1|h" for number in range(3)), sender=1)
        assert (aggregator.size, aggregator.refused) == (2, {"series_share": 1})
        feed(aggregator, "a,x=8:1|h", *(f"b,x={number}:1|c" for number in range(weight)), sender=2)
        assert (aggregator.size, aggregator.refused) == (3 + weight, {"series_share": 1})
        feed(aggregator, "c:1|c", "a,x=9:1|h", "a,x=0:1|h", sender=3)  # no room but for what is known
        assert (aggregator.size, aggregator.refused) == (3 + weight, {"series_share": 1, "series_limit": 2})

    def test_a_silent_histogram_gives_back_its_weight(self) -> None:
        weight = len(GENERAL_BOUNDS) + 3
        aggregator = Aggregator(max_series=2 * weight)
        feed(aggregator, "a:1|h", sender=1)
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, "b:1|h", "c:1|c", sender=1)
        feed(aggregator, "d:1|h", sender=2)
        assert (aggregator.size, aggregator.refused) == (2, {"series_share": 1})

    def test_a_sender_gets_its_share_back_with_its_silent_series(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(6)), sender=1)
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, *(f"b,x={number}:1|c" for number in range(6)), sender=1)
        assert aggregator.size == 5
        assert aggregator.refused == {"series_share": 2}

    def test_silent_series_make_room(self) -> None:
        aggregator = Aggregator(max_series=10)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5)), sender=1)
        feed(aggregator, *(f"a,x={number}:1|c" for number in range(5, 10)), sender=2)
        feed(aggregator, "b:1|c", sender=3)
        aggregator.swap(0.0)
        assert aggregator.refused == {"series_limit": 1}
        for now_s in range(60, int(SILENT_S) + 120, 60):
            feed(aggregator, "a,x=0:1|c")
            aggregator.swap(float(now_s))
        assert aggregator.size == 1
        feed(aggregator, "b:1|g", "a,x=0:1|c")
        assert {point.name for point in aggregator.swap(500.0).points()[0]} == {"a", "b"}

    def test_a_forgotten_name_may_come_back_as_another_kind(self) -> None:
        aggregator = Aggregator()
        feed(aggregator, "a:1|c")
        aggregator.swap(0.0)
        aggregator.swap(SILENT_S + 60)
        feed(aggregator, "a:1|g")
        assert aggregator.swap(SILENT_S + 61).points()[0] == [Point("a", Kind.GAUGE, (), 1.0, False)]

    def test_a_new_series_survives_a_sweep_in_its_own_interval(self) -> None:
        aggregator = Aggregator()
        aggregator.swap(0.0)
        feed(aggregator, "a:1|c")
        aggregator.swap(1000.0)
        assert aggregator.size == 1

    @pytest.mark.parametrize(
        "lines",
        [
            pytest.param((f"a,x={number}:1|h" for number in range(20_000)), id="series"),
            pytest.param((f"a,x={'y' * 900}{number}:1|c" for number in range(20_000)), id="long series"),
            pytest.param((f"a{chr(0x4E00 + number % 5_000)}{number}:1|c" for number in range(20_000)), id="spellings"),
            pytest.param((f"a:{'m' * 500}{number}|s" for number in range(20_000)), id="set members"),
            pytest.param((f"aie_hooks_process,engine=e,pid={number}:1|g" for number in range(20_000)), id="hellos"),
            pytest.param((f"aie_engine_x{number},engine=e:1|c" for number in range(20_000)), id="reserved names"),
        ],
    )
    def test_a_flood_of_anything_takes_bounded_memory(self, lines: Iterable[str]) -> None:
        aggregator = Aggregator(max_series=1000, max_set_members=1000)
        parser = Parser()
        tracemalloc.start()
        for line in lines:
            for sample in parser.line(line.encode()).samples:
                aggregator.add(sample)
        del parser  # bounds itself
        size, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert size < 8 << 20
        assert aggregator.size <= 1000
