"""The configuration: every error is one line that names file, key and what is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest

from aie_agent import config
from aie_agent.config import Config, ConfigError


def load(tmp_path: Path, text: str) -> Config:
    file = tmp_path / "agent.toml"
    file.write_text(text)
    return config.parse(config.read(file), str(file))


def test_defaults_open_nothing_outside_loopback() -> None:
    default = config.parse({}, "defaults")
    assert default.api.listen.is_loopback
    assert default.statsd.udp.is_loopback
    assert default.statsd.relay == "off"


def test_everything_can_be_said(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """
        [api]
        listen = "[::1]:9999"
        [statsd]
        unix = "off"
        udp = "127.0.0.1:18125"
        datadog = false
        relay = "udp://127.0.0.1:8126"
        [store]
        max_series = 500
        retention = "10m"
        window = "30s"
        [sources]
        host_period = "500ms"
        process_period = "2s"
        scrape_period = "1.5s"
        scrape_timeout = "3s"
        [[engines]]
        name = "chat"
        metrics_url = "http://127.0.0.1:8000/metrics"
        [[engines]]
        name = "batch"
        pid_file = "/run/batch.pid"
        """,
    )
    assert (loaded.api.listen.host, loaded.api.listen.port) == ("::1", 9999)
    assert loaded.statsd.unix.path is None
    assert (loaded.store.retention, loaded.store.window) == (600.0, 30.0)
    assert (loaded.sources.host_period, loaded.sources.scrape_period) == (0.5, 1.5)
    assert [engine.name for engine in loaded.engines] == ["chat", "batch"]


@pytest.mark.parametrize(
    ("text", "key", "accepted"),
    [
        ("[store]\nmax_serie = 1", "store.max_serie", "did you mean max_series?"),
        (
            "[stor]\n",
            "stor",
            "accepted: api, statsd, store, sources, discovery, findings, leaks, drift, gpu, dcgm, otlp, bpf, state, engines",
        ),
        ("[store]\nmax_series = '5'", "store.max_series", "expected int, got str"),
        ("[store]\nmax_series = 5", "store.max_series", "100 to 100000"),
        ("[store]\nretention = 10", "store.retention", '"10s"'),
        ("[store]\nretention = '10'", "store.retention", '"10s"'),
        ("[store]\nretention = '10 parsecs'", "store.retention", '"10s"'),
        ("[store]\nwindow = '2m'\nretention = '1m'", "store.retention", "at least store.window"),
        ("[sources]\nhost_period = '1ms'", "sources.host_period", '"100ms" to "60s"'),
        ("[api]\nlisten = 'localhost'", "api.listen", "HOST:PORT"),
        ("[api]\nlisten = '0.0.0.0:9465'", "api.listen", "insecure"),
        ("[api]\nlisten = '127.evil.example:9465'", "api.listen", "insecure"),
        ("[api]\ninsecure = 'yes'", "api.insecure", "expected bool"),
        ("[statsd]\nunix = 'statsd.sock'", "statsd.unix", "absolute path"),
        ("[statsd]\nunix = '/" + "x" * 120 + "'", "statsd.unix", "107 bytes"),
        ("[statsd]\nudp = '127.0.0.1'", "statsd.udp", "HOST:PORT"),
        ("[statsd]\nrelay = 'tcp://h:1'", "statsd.relay", "udp://HOST:PORT"),
        ("[[engines]]\nmetrics_url = 'http://h/'", "engines[0]", "missing key name"),
        ("[[engines]]\nname = 'a b'", "engines.name", "letters, digits"),
        ("[[engines]]\nname = 'a'\nmetrics_url = 'ftp://h'", "engines[0].metrics_url", "http://127.0.0.1:8000/metrics"),
        ("[[engines]]\nname = 'a'\n[[engines]]\nname = 'a'", "engines", "given twice"),
        ("[[engines]]\nname = 'a'\nurl = 'x'", "engines[0].url", "accepted: name, metrics_url, pid_file"),
        ("engines = 1", "engines", "expected array"),
        (
            "[[engines]]\nname = 'a'\nmetrics_url = \"http://h/\\u001b[31m\"",
            "engines[0].metrics_url",
            "http://127.0.0.1:8000/metrics",
        ),
        ('[statsd]\nunix = "/run/a\\u0000b"', "statsd.unix", "absolute path"),
        ("[discovery]\nperiod = '500ms'", "discovery.period", '"1s" to "1h"'),
        ("[discovery]\nenable = false", "discovery.enable", "did you mean enabled?"),
        ("[gpu]\nperiod = '1ms'", "gpu.period", '"100ms" to "60s"'),
        ("[gpu]\nperiod = 3", "gpu.period", '"10s"'),
        ("[gpu]\nslow_period = '500ms'", "gpu.slow_period", "at least gpu.period"),
        ("[gpu]\nhung_after = '100ms'", "gpu.hung_after", '"1s" to "1h"'),
        ("[gpu]\nexpected = -1", "gpu.expected", "0 to 64"),
        ("[gpu]\nsimulate = '17:H100'", "gpu.simulate", "1 to 16"),
        ("[gpu]\nsimulate = 8", "gpu.simulate", '"8:H100"'),
        ("[leaks]\ntime_scale = 0", "leaks.time_scale", "1 to 10000"),
        ("[leaks]\nwarm_up = '1s'", "leaks.warm_up", '"1m" to "24h"'),
        ("[leaks]\nwarm_up_requests = -1", "leaks.warm_up_requests", "0 to 1000000"),
        ("[leaks]\nlimit_mb_per_hour = 0", "leaks.limit_mb_per_hour", "1 to 100000"),
        ("[leaks]\nhorizon = '1m'", "leaks.horizon", '"1h" to "8784h"'),
        ("[findings]\nhung_after = '1s'", "findings.hung_after", "at least"),
        ("[findings]\nhung_after = '20s'\n[sources]\nscrape_period = '15s'", "findings.hung_after", "twice sources.scrape_period"),
        ("[findings]\nhung_after = '10m'", "findings.hung_after", "at most store.retention"),
    ],
)
def test_one_clear_line(tmp_path: Path, text: str, key: str, accepted: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(tmp_path / "agent.toml"))
    assert f"{key}:" in message
    assert accepted in message


@pytest.mark.parametrize(
    ("text", "retention_s", "hung_after_s"),
    [
        ("[store]\nretention = '60s'", 60.0, 30.0),
        ("[store]\nretention = '30s'\nwindow = '20s'", 30.0, 30.0),
        ("[findings]\nhung_after = '300s'", 300.0, 300.0),
    ],
)
def test_whoever_remembers_little_or_waits_long_need_not_know_of_the_other(
    tmp_path: Path, text: str, retention_s: float, hung_after_s: float
) -> None:
    """What both together need is remembered by the agent (`looks_back_s`)."""
    loaded = load(tmp_path, text)
    assert (float(loaded.store.retention), float(loaded.findings.hung_after)) == (retention_s, hung_after_s)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "not UTF-8"),
        (b"a = ", "not valid TOML"),
        (b"a = " + b"9" * 5000, "not valid TOML"),
        (b"a = " + b"[" * 5000, "not valid TOML"),
        (None, "cannot be read"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes | None, says: str) -> None:
    file = tmp_path / "agent.toml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        config.read(file)


def test_insecure_is_an_explicit_act(tmp_path: Path) -> None:
    assert not load(tmp_path, "[api]\nlisten = '0.0.0.0:9465'\ninsecure = true").api.listen.is_loopback
