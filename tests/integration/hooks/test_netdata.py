"""What hooks send in DogStatsD's dialect is read back from another server, equal: that a server takes a line proves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from netdata_server import Netdata, netdata

from aie_hooks import Emitter

TOKENS = "aie_engine_generation_tokens_total"
TTFT = "aie_engine_time_to_first_token_seconds"
QUEUE = "aie_engine_queue_seconds"
RUNNING = "aie_engine_requests_running"
MINE = "mine_celsius"
BYTES = "mine_bytes"
RATE = 0.25


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Netdata]:
    directory = tmp_path_factory.mktemp("netdata")
    with netdata(directory, counters=[TOKENS], gauges=[RUNNING, MINE, BYTES], distributions=[TTFT, QUEUE]) as it:
        yield it


@pytest.fixture
def emitter(server: Netdata) -> Iterator[Emitter]:
    it = Emitter("chat", server.statsd, dialect="datadog", packets_per_second=float("inf"), flush_interval_s=float("inf"))
    yield it
    it.close()
    assert not any(it.stats().dropped.values())


def test_a_sum_is_the_sum(server: Netdata, emitter: Emitter) -> None:
    tokens = emitter.counter(TOKENS, model="m")
    for amount in (5, 7, 2**40):
        tokens.add(amount)
        emitter.flush()
    server.until(lambda: server.last(TOKENS, "sum") == 12 + 2**40)


@pytest.mark.parametrize(
    ("name", "labels", "levels"),
    [
        (RUNNING, {"model": "m"}, (8.0, 3.0)),
        (MINE, {}, (21.5, -3.25, -7.125)),
        (BYTES, {}, (80 * 2.0**30, 0.0)),
    ],
)
def test_a_level_is_the_last_one_whatever_its_sign(
    server: Netdata, emitter: Emitter, name: str, labels: dict[str, str], levels: tuple[float, ...]
) -> None:
    gauge = emitter.gauge(name, **labels)
    for level in levels:
        gauge.set(level)
        emitter.flush()
        server.until(lambda level=level: server.last(name, "level") == level)  # type: ignore[misc]


def test_no_observation_is_lost_or_changed(server: Netdata, emitter: Emitter) -> None:
    ttft = emitter.histogram(TTFT, model="m")
    values = [0.001 * number for number in range(1, 201)]
    for start in range(0, len(values), 10):  # few enough for the socket's queue
        for value in values[start : start + 10]:
            ttft.observe(value)
        emitter.flush()
    server.until(lambda: server.last(TTFT, "events") == len(values))
    server.until(lambda: sum(server.seconds(TTFT, "sum")) == pytest.approx(sum(values), abs=1e-4))
    assert min(server.seconds(TTFT, "min")) == pytest.approx(values[0])
    assert max(server.seconds(TTFT, "max")) == pytest.approx(values[-1])


def test_what_is_sampled_weighs_as_much_as_it_stands_for(server: Netdata, emitter: Emitter) -> None:
    queue = emitter.histogram(QUEUE, RATE, model="m")
    for value in (0.25, 0.5, 0.75):
        queue.record(value)
    emitter.flush()
    # It counts lines and adds each up as often as it stands for.
    server.until(lambda: server.last(QUEUE, "events") == 3)
    server.until(lambda: sum(server.seconds(QUEUE, "sum")) == 1.5 / RATE)
    assert (min(server.seconds(QUEUE, "min")), max(server.seconds(QUEUE, "max"))) == (0.25, 0.75)
