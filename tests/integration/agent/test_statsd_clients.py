"""What the StatsD clients that people use send, each by a real socket: nothing of it is refused, and the values are theirs."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiodogstatsd
import statsd
from datadog.dogstatsd.base import DogStatsd
from statsd_running import Running, running

from aie_agent.samples import HistogramPoint, Point, Tags
from aie_agent.sources.statsd_aggregate import SET_INTERVAL_S

UDP = ("127.0.0.1", 0)
NOW_S = 2_000_000_000.0


def port_of(it: Running) -> int:
    return int(it.source.addresses["udp"].rpartition(":")[2])


class Shown:
    """What a source delivered, added up as the store does."""

    def __init__(self, it: Running) -> None:
        self.values: dict[tuple[str, Tags], float] = {}
        self.distributions: dict[tuple[str, Tags], tuple[float, float]] = {}
        for batch in it.batches:
            for point in batch.points:
                self._take(point)
            for histogram in batch.histograms:
                self._observe(histogram)

    def _take(self, point: Point) -> None:
        key = (point.name, point.tags)
        self.values[key] = point.value + (self.values.get(key, 0.0) if point.delta else 0.0)

    def _observe(self, histogram: HistogramPoint) -> None:
        assert histogram.delta
        count, total = self.distributions.get((histogram.name, histogram.tags), (0.0, 0.0))
        self.distributions[histogram.name, histogram.tags] = (count + sum(histogram.counts), total + histogram.total)

    def value(self, name: str, **tags: str) -> float:
        return self.values[name, tuple(sorted(tags.items()))]

    def distribution(self, name: str, **tags: str) -> tuple[float, float]:
        """How many, and their sum."""
        count, total = self.distributions[name, tuple(sorted(tags.items()))]
        return round(count, 9), round(total, 9)


async def stand_still(it: Running) -> None:
    """Stops its clock: the members of sets are told once an interval, which must not end while they come."""
    it.clock = lambda: NOW_S
    await it.collect()


async def shown(it: Running, samples: int, *, ignored: Mapping[str, int] | None = None) -> Shown:
    """When so much has come; nothing was refused, and nothing passed over but what is named."""
    passed_over = sum((ignored or {}).values())
    await it.until(lambda: it.source.counters().samples >= samples and sum(it.source.counters().ignored.values()) >= passed_over)
    counters = it.source.counters()
    assert counters.dropped == {}
    assert counters.ignored == (ignored or {})
    assert counters.samples == samples
    set_ends_s = it.clock() + SET_INTERVAL_S
    it.clock = lambda: set_ends_s
    await it.collect()
    return Shown(it)


async def test_statsd() -> None:
    async with running(None, UDP) as it:
        await stand_still(it)
        with contextlib.closing(statsd.StatsClient("127.0.0.1", port_of(it), prefix="shop")) as client:
            client.incr("orders.paid")
            client.incr("orders.paid", 41)
            client.gauge("queue", 5)
            client.gauge("queue", 3, delta=True)
            client.gauge("queue", -2, delta=True)
            client.gauge("cold", -7.5)  # it sends a 0 first
            client.set("users", "ada")
            client.set("users", "grace")
            client.set("users", "ada")
            client.timing("render", 250)
            client.timing("render", 500.0)
        found = await shown(it, 12)
    assert found.value("shop_orders_paid") == 42
    assert found.value("shop_queue") == 6
    assert found.value("shop_cold") == -7.5
    assert found.value("shop_users") == 2
    assert found.distribution("shop_render_seconds") == (2, 0.75)


async def test_statsds_pipeline_packs_and_its_rate_weighs() -> None:
    async with running(None, UDP) as it:
        with contextlib.closing(statsd.StatsClient("127.0.0.1", port_of(it))) as client:
            with client.pipeline() as pipe:
                for number in range(100):
                    pipe.incr("packed")
                    pipe.timing("took", number)
            for _ in range(400):
                client.incr("sampled", rate=0.5)
            client.gauge("last", 1)
        await it.until(lambda: ("last", ()) in Shown(it).values)
        sent = it.source.counters().samples - 201
        found = await shown(it, sent + 201)
    assert found.value("packed") == 100
    assert found.distribution("took_seconds") == (100, 4.95)
    # As many as were sent, each for two: which are is the client's dice.
    assert found.value("sampled") == 2 * sent
    assert 0 < sent < 400


async def test_datadog_by_both_sockets_with_tags(path: Path) -> None:
    """Each call a packet, and buffered; with container id, cardinality and time stamps, which it adds by itself."""
    async with running(path, UDP) as it:
        await stand_still(it)
        quiet: dict[str, Any] = {"disable_telemetry": True}
        udp = {"host": "127.0.0.1", "port": port_of(it), **quiet}
        clients = (
            DogStatsd(**udp, constant_tags=["via:udp", "live"]),
            DogStatsd(**udp, constant_tags=["via:buffer", "live"], disable_buffering=False, flush_interval=0.0),
            # By default it drops what finds the socket's short queue full.
            DogStatsd(
                socket_path=f"unixgram://{path}", socket_timeout=5, disable_telemetry=True, constant_tags=["via:unix", "live"]
            ),
        )
        for client in clients:
            send_as_datadog(client)
        found = await shown(it, 3 * 10, ignored={"event": 3, "service_check": 3})
    for via in ("udp", "unix", "buffer"):
        tags = {"via": via, "live": "true"}
        assert found.value("orders_paid", **tags, city="Zürich:_west") == 42  # the client changes it so
        assert found.value("late", **tags) == 7
        assert found.value("queue", **tags) == 6
        assert found.value("users", **tags) == 1
        assert found.distribution("size", **tags) == (1, -1.5)
        assert found.distribution("wide", **tags) == (2, 3.0)
        assert found.distribution("render_seconds", **tags) == (1, 0.25)
        assert found.value("aged", **tags) == 9


def send_as_datadog(client: DogStatsd) -> None:
    client.increment("orders.paid", tags=["city:Zürich: west"])
    client.increment("orders.paid", 41, tags=["city:Zürich: west"], cardinality="low")
    client.count_with_timestamp("late", 7, timestamp=1_700_000_000)
    client.gauge("queue", 6)
    client.gauge_with_timestamp("aged", 9, timestamp=1_700_000_000)
    client.set("users", "ada")
    client.histogram("size", -1.5)
    client.distribution("wide", 1.0)
    client.distribution("wide", 2.0)
    client.timing("render", 250)
    client.event("deploy", "of\nversion 2", tags=["env:prod"], alert_type="warning")
    client.service_check("up", DogStatsd.OK, message="fine")
    client.flush()
    client.stop()


async def test_datadog_packs_values_of_one_name() -> None:
    """Its aggregation sends one line for the values of a context: `wide:1:2:3|d`, and a counter's sum."""
    async with running(None, UDP) as it:
        client = DogStatsd(
            host="127.0.0.1",
            port=port_of(it),
            disable_telemetry=True,
            disable_aggregation=False,
            max_metric_samples_per_context=64,
            flush_interval=0.0,  # not by itself: no thread of its own, which each fork of this process would wait for
        )
        for number in range(50):
            client.increment("orders")
            client.gauge("queue", number)
            client.histogram("size", number)
            client.distribution("wide", float(number), tags=["a:b"])
            client.timing("render", number)
        client.flush_aggregated_metrics()
        client.flush()
        client.gauge("last", 1)  # in a packet of its own: the values of a context may fill two
        client.flush_aggregated_metrics()
        client.flush()
        await it.until(lambda: ("last", ()) in Shown(it).values)
        assert it.source.counters().dropped == {}
        found = Shown(it)
        client.stop()
    assert found.value("orders") == 50
    assert found.value("queue") == 49
    assert found.distribution("size") == (50, 1225.0)
    assert found.distribution("wide", a="b") == (50, 1225.0)
    assert found.distribution("render_seconds") == (50, 1.225)


async def test_datadog_sampled() -> None:
    async with running(None, UDP) as it:
        client = DogStatsd(host="127.0.0.1", port=port_of(it), disable_telemetry=True)
        for _ in range(400):
            client.increment("sampled", sample_rate=0.25)
            client.histogram("seen", 2.0, sample_rate=0.25)
        client.gauge("last", 1)
        await it.until(lambda: ("last", ()) in Shown(it).values)
        found = Shown(it)
        sent = it.source.counters().samples - 1
        assert it.source.counters().dropped == {}
        client.stop()
    count, total = found.distribution("seen")
    assert total == 2 * count
    assert found.value("sampled") + count == 4 * sent
    assert 0 < sent < 800


async def test_aiodogstatsd() -> None:
    async with running(None, UDP) as it:
        async with aiodogstatsd.Client(
            host="127.0.0.1", port=port_of(it), namespace="shop", constant_tags={"live": True}, read_timeout=0.01
        ) as client:
            client.increment("orders", tags={"city": "Zürich"})
            client.increment("orders", value=41, tags={"city": "Zürich"})
            client.gauge("queue", value=6)
            client.histogram("size", value=1.5)
            client.distribution("wide", value=2.5)
            client.timing("render", value=250)
            with client.timeit("block"):
                pass
        found = await shown(it, 7)
    tags = {"live": "True"}
    assert found.value("shop_orders", **tags, city="Zürich") == 42
    assert found.value("shop_queue", **tags) == 6
    assert found.distribution("shop_size", **tags) == (1, 1.5)
    assert found.distribution("shop_wide", **tags) == (1, 2.5)
    assert found.distribution("shop_render_seconds", **tags) == (1, 0.25)
    count, total = found.distribution("shop_block_seconds", **tags)
    assert count == 1
    assert math.isfinite(total)
