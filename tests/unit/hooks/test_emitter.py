"""What arrives at a receiver that listens."""

from __future__ import annotations

import math
import os
import random
from collections import Counter
from pathlib import Path

import pytest
from hook_receivers import Clock, UdpReceiver, UnixReceiver, decode, hellos, levels, manual_emitter, observations, total, totals

from aie_hooks import Emitter
from aie_hooks.naming import _sayable
from aie_hooks.series import MAX_WAITING
from aie_telemetry.statsd import Dialect

ITL = "aie_engine_inter_token_seconds"
TOKENS = "aie_engine_generation_tokens_total"
DIALECTS: tuple[Dialect, ...] = ("telegraf", "datadog")


@pytest.fixture(params=DIALECTS)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param  # type: ignore[no-any-return]


def test_hello_comes_first_and_alone(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    manual_emitter(f"unix://{socket_path}", dialect=dialect)
    first, *_ = receiver.packets()
    (hello,) = decode([first])
    assert (hello.name, hello.type, hello.value) == ("aie_hooks_process", "gauge", 1.0)
    assert dict(hello.tags) == {"engine": "chat", "pid": str(os.getpid())}
    assert set(receiver.pids) == {os.getpid()}


def test_over_udp(udp_receiver: UdpReceiver, dialect: Dialect) -> None:
    emitter = manual_emitter(f"udp://127.0.0.1:{udp_receiver.port}", dialect=dialect)
    emitter.counter(TOKENS, model="m").add(3)
    emitter.flush()
    assert total(udp_receiver.samples(), TOKENS) == 3


def test_a_counter_is_one_exact_sum(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    tokens = emitter.counter(TOKENS, model="m")
    amounts = [1, 0, 2**40, 0.5, 12345.678]
    for amount in amounts:
        tokens.add(amount)
    emitter.flush()
    emitter.flush()
    (sample,) = [sample for sample in receiver.samples() if sample.name == TOKENS]
    assert sample.value == sum(amounts)
    assert sample.tags == (("engine", "chat"), ("model", "m"))


def test_constant_tags_go_where_they_are_known(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    """An agent refuses a metric of the catalogue with a label that is not in it."""
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect, tags=[("zone", "a"), ("model", "m")])
    emitter.counter(TOKENS).add(1)
    emitter.counter("mine").add(1)
    emitter.flush()
    tags = {sample.name: sample.tags for sample in receiver.samples()}
    assert tags[TOKENS] == (("engine", "chat"), ("model", "m"))
    assert tags["mine"] == (("engine", "chat"), ("model", "m"), ("zone", "a"))


def test_a_counter_is_announced_at_zero(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    emitter.counter("aie_engine_requests_total", model="m", outcome="error")
    emitter.flush()
    key = ("aie_engine_requests_total", (("engine", "chat"), ("model", "m"), ("outcome", "error")))
    assert totals(receiver.samples())[key] == 0


@pytest.mark.parametrize("value", [5.0, 0.0, -0.0, -3.25, 1e300, -1e-300, 123456789.123])
def test_the_last_level_of_a_gauge_arrives(receiver: UnixReceiver, socket_path: Path, dialect: Dialect, value: float) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    gauge = emitter.gauge("queue_depth", kind="x")
    levels_so_far = []
    for level in (-100.0, 77.0, value):
        gauge.set(99.0)
        gauge.set(level)
        emitter.flush()
        levels_so_far += receiver.samples()
        assert levels(levels_so_far)["queue_depth", (("engine", "chat"), ("kind", "x"))] == level


def test_a_negative_gauge_and_its_zero_share_a_packet(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    receiver.packets()
    gauges = [emitter.gauge("level", part=str(part).zfill(40)) for part in range(60)]
    for gauge in gauges:
        gauge.set(-1.5)
    emitter.flush()
    packets = receiver.packets()
    assert len(packets) > 2
    for packet in packets:
        assert set(levels(decode([packet])).values()) <= {-1.5}


def test_every_observation_arrives_in_packets_of_limited_size(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    rng = random.Random(1)
    names = [ITL, "aie_engine_queue_seconds", "aie_engine_time_to_first_token_seconds"]
    handles = {name: emitter.histogram(name, model="m" * length) for name, length in zip(names, (1, 300, 1200), strict=True)}
    offered: dict[str, Counter[float]] = {name: Counter() for name in names}
    arrived: dict[str, Counter[float]] = {name: Counter() for name in names}
    for _ in range(200):
        for name in rng.choices(names, [50, 3, 1], k=20):
            value = rng.choice([0.0, 1e-300, 1.79e308, rng.random(), rng.expovariate(0.001)])
            handles[name].observe(value)
            offered[name][float(f"{value:.6g}")] += 1
        emitter.flush()
        samples = receiver.samples()
        for name in names:
            arrived[name].update(observations(samples, name))
    assert arrived == offered
    assert not any(emitter.stats().dropped.values())


def test_many_values_share_a_packet(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    receiver.packets()
    histogram = emitter.histogram(ITL, model="m")
    for _ in range(200):
        histogram.observe(0.0123456)
    emitter.flush()
    assert len(receiver.packets()) <= (3 if dialect == "telegraf" else 13)


def test_a_value_has_a_line_of_its_own_in_dogstatsds_dialect(receiver: UnixReceiver, socket_path: Path) -> None:
    """Values packed before one type are lost on netdata, but for the first, and refused by Telegraf."""
    emitter = manual_emitter(f"unix://{socket_path}", dialect="datadog")
    receiver.packets()
    histogram = emitter.histogram("mine", 0.5, kind="x")
    for value in (0.25, 0.5):
        histogram.record(value)
    emitter.flush()
    (packet,) = receiver.packets()
    assert packet.split(b"\n") == [b"mine:0.25|h|@0.5|#engine:chat,kind:x", b"mine:0.5|h|@0.5|#engine:chat,kind:x"]


def test_samples_carry_the_rate_they_were_drawn_at(receiver: UnixReceiver, socket_path: Path, dialect: Dialect) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect, rng=random.Random(7))
    expected = random.Random(7)
    histogram = emitter.histogram(ITL, 0.25, model="m")
    for value in range(400):
        histogram.observe(float(value))
    emitter.flush()
    samples = [sample for sample in receiver.samples() if sample.name == ITL]
    assert [sample.value for sample in samples] == [float(value) for value in range(400) if expected.random() < 0.25]
    assert {sample.rate for sample in samples} == {0.25}


def test_the_shared_random_generator_is_left_alone(receiver: UnixReceiver, socket_path: Path) -> None:
    random.seed(3)
    expected = random.random()
    random.seed(3)
    emitter = manual_emitter(f"unix://{socket_path}")
    emitter.histogram(ITL, 0.5, model="m").observe(1.0)
    assert random.random() == expected


def test_two_rates_of_one_histogram_are_two_handles(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    assert emitter.histogram(ITL, 0.5, model="m") is emitter.histogram(ITL, 0.5, model="m")
    assert emitter.histogram(ITL, 0.5, model="m") is not emitter.histogram(ITL, 1.0, model="m")
    assert emitter.counter(TOKENS, model="m") is emitter.counter(TOKENS, model="m")
    assert emitter.gauge("depth", a="1", b="2") is emitter.gauge("depth", b="2", a="1")


def test_a_histogram_holds_a_bounded_number_between_flushes(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    histogram = emitter.histogram(ITL, model="m")
    for _ in range(MAX_WAITING + 5):
        histogram.observe(1.0)
    histogram.record(1.0, 10)
    assert emitter.stats().dropped["budget"] == 15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda e: e.counter("aie_engine_nonsense_total", model="m"), "not in the catalogue"),
        (lambda e: e.counter("aie_", model="m"), "not in the catalogue"),
        (lambda e: e.gauge(TOKENS, model="m"), "is a counter, not a gauge"),
        (lambda e: e.counter(TOKENS), "lacks \\['model'\\]"),
        (lambda e: e.counter(TOKENS, model="m", gpu="0"), "has no \\['gpu'\\]"),
        (lambda e: e.counter(TOKENS, model="m", engine="other"), "given twice"),
        (lambda e: e.counter("my.requests"), "contains"),
        (lambda e: e.counter("my_requests", **{"model name": "m"}), "contains white space"),
        (lambda e: e.counter("my_requests", model="m" * 1430), "more than the 1432 bytes"),
        (lambda e: e.gauge("my_level", model="m" * 700), "more than the 1432 bytes"),
        (lambda e: e.histogram("my_seconds", model="m" * 1400), "more than the 1432 bytes"),
        (lambda e: e.histogram(ITL, 0.0, model="m"), "outside"),
        (lambda e: e.histogram(ITL, 1.01, model="m"), "outside"),
        (lambda e: e.histogram(ITL, math.nan, model="m"), "outside"),
        (lambda e: e.counter("mine", **{f"label{number}": "x" for number in range(32)}), "more than 32"),
    ],
)
def test_a_handle_that_cannot_work_is_refused_when_it_is_made(make: object, message: str) -> None:
    for endpoint in ("off", "udp://127.0.0.1:9"):
        with pytest.raises(ValueError, match=message):
            make(manual_emitter(endpoint))  # type: ignore[operator]


@pytest.mark.parametrize(
    "options",
    [
        {"endpoint": "tcp://x:1"}, {"packets_per_second": 0}, {"packets_per_second": math.nan}, {"flush_interval_s": 0},
        {"flush_interval_s": math.nan}, {"engine": ""}, {"engine": "a:b"}, {"engine": "a\nb"}, {"tags": [("engine", "x")]},
        {"tags": [("a b", "x")]}, {"tags": [("a", "x"), ("a", "y")]},
    ],
)  # fmt: skip
def test_a_configuration_that_cannot_work_is_refused_at_construction(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Emitter(**{"engine": "chat", "endpoint": "off", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["my engine", "-chat", "<b>", "é", "e" * 64])
def test_an_engine_that_the_agent_would_refuse_is_refused_at_construction(engine: str) -> None:
    with pytest.raises(ValueError, match=r"engine name .*: expected 1 to 63"):
        Emitter(engine, "off")


@pytest.mark.parametrize(("dialect", "said"), [("telegraf", "org/llama3_8b_q4_"), ("datadog", "org/llama3:8b_q4_")])
def test_separators_in_label_values_are_replaced_with_one_warning(
    receiver: UnixReceiver, socket_path: Path, caplog: pytest.LogCaptureFixture, dialect: Dialect, said: str
) -> None:
    _sayable.cache_clear()
    emitter = manual_emitter(f"unix://{socket_path}", dialect=dialect)
    for _ in range(2):
        emitter.counter(TOKENS, model="org/llama3:8b,q4|").add(1)
        emitter.counter("aie_engine_prompt_tokens_total", model="org/llama3:8b,q4|").add(1)
    emitter.flush()
    models = {dict(sample.tags).get("model") for sample in receiver.samples()}
    assert models == {None, said}
    assert len(caplog.records) == 1


def test_off_checks_names_and_does_nothing() -> None:
    emitter = Emitter("chat", "off")
    counter, gauge, histogram = emitter.counter(TOKENS, model="m"), emitter.gauge("depth"), emitter.histogram(ITL, model="m")
    for _ in range(MAX_WAITING + 1):
        counter.add()
        gauge.set(1)
        histogram.observe(1)
        histogram.record(1, 2)
    emitter.flush()
    assert emitter.stats().values_sent == 0
    assert not any(emitter.stats().dropped.values())
    emitter.close()


def test_hello_and_levels_are_said_again_every_ten_seconds(receiver: UnixReceiver, socket_path: Path, clock: Clock) -> None:
    emitter = manual_emitter(f"unix://{socket_path}", clock=clock)
    emitter.gauge("capacity").set(4096)
    emitter.flush()
    assert len(hellos(receiver.samples())) == 1
    clock.now_s += 9.99
    emitter.flush()
    assert receiver.samples() == []
    clock.now_s += 0.01
    emitter.flush()
    samples = receiver.samples()
    assert hellos(samples) == [str(os.getpid())]
    assert levels(samples)["capacity", (("engine", "chat"),)] == 4096


def test_close_sends_the_rest_and_then_nothing(receiver: UnixReceiver, socket_path: Path) -> None:
    emitter = manual_emitter(f"unix://{socket_path}")
    counter = emitter.counter(TOKENS, model="m")
    counter.add(2)
    emitter.close()
    assert total(receiver.samples(), TOKENS) == 2
    counter.add(1)
    emitter.flush()
    emitter.close()
    assert receiver.samples() == []
