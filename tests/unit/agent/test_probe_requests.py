"""The file that asks engines to give back what they retain: who is asked, how often, and where it is written."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from aie_agent.config import ConfigError, parse
from aie_agent.outputs.probe_requests import EVERY_S, VALID_S, ProbeRequests
from aie_telemetry.api import Finding
from aie_telemetry.memory_probe import REQUESTS_NAME, ProbeRequest, decode_requests


def leak(subject: str = "e", since_s: float = 1000.0, cause: str = "memory_leak") -> Finding:
    return Finding(cause=cause, subject=subject, severity="info", since_s=since_s, summary="", evidence=(), advice="")


class File:
    def __init__(self, directory: Path, time_scale: float = 1.0) -> None:
        self.path = directory / REQUESTS_NAME
        self.requests = ProbeRequests(directory / "statsd.sock", time_scale)

    def rows(self, now_s: float, *findings: Finding, aliases: dict[str, str] | None = None) -> list[ProbeRequest]:
        """What stands there after these findings."""
        self.requests.update(findings, ["e", "f"], aliases or {}, now_s)
        return decode_requests(self.path.read_bytes()) if self.path.exists() else []


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path)


def test_an_engine_that_is_suspect_is_asked_while_it_is(file: File) -> None:
    assert file.rows(5000.0) == []
    (row,) = file.rows(5001.0, leak())
    assert (row.engine, row.ask, row.expires_s) == ("e", "memory_probe", 5001.0 + VALID_S)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o644, "an engine of another user reads it, and writes it not"
    assert file.rows(5002.0) == []
    assert not file.path.exists()


@pytest.mark.parametrize("finding", [leak("gpu0"), leak("g"), leak(cause="kv_accounting"), leak(cause="memory_retention")])
def test_who_is_not_asked(file: File, finding: Finding) -> None:
    """GPUs, engines that are gone, and what an answer would not settle."""
    assert file.rows(5000.0, finding) == []


def test_it_is_renewed_before_it_expires_and_not_more_often(file: File) -> None:
    (first,) = file.rows(5000.0, leak())
    written = file.path.stat().st_mtime_ns
    assert file.rows(5010.0, leak()) == [first]
    assert file.path.stat().st_mtime_ns == written
    (second,) = file.rows(5031.0, leak())
    assert (second.id, second.expires_s) == (first.id, 5031.0 + VALID_S)


@pytest.mark.parametrize("time_scale", [1.0, 240.0])
def test_it_is_asked_anew_after_half_a_day_and_never_sooner_than_ten_minutes(tmp_path: Path, time_scale: float) -> None:
    file = File(tmp_path, time_scale)
    ids = [file.rows(1000.0 + minute * 60 / time_scale, leak())[0].id for minute in range(0, 1445, 5)]
    assert len(set(ids)) == 3, "a day"
    other = file.rows(1000.0 + (1440 * 60 + EVERY_S / 2) / time_scale, leak(since_s=1001.0))
    assert other[0].id == ids[-1], "another rise, too soon"


def test_an_agent_that_was_restarted_asks_nothing_twice(tmp_path: Path) -> None:
    assert File(tmp_path).rows(9000.0, leak())[0].id == File(tmp_path).rows(9100.0, leak())[0].id


def test_an_engine_is_asked_by_each_of_its_names(file: File) -> None:
    rows = file.rows(5000.0, leak("f"), aliases={"own": "f", "other": "e"})
    assert [row.engine for row in rows] == ["f", "own"]
    assert len({row.id for row in rows}) == 1


def test_two_findings_are_one_request(file: File) -> None:
    assert len(file.rows(5000.0, leak(), leak(cause="memory_fragmentation", since_s=900.0))) == 1


def test_off(tmp_path: Path) -> None:
    ProbeRequests(None).update([leak()], ["e"], {}, 5000.0)
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_leads_nowhere(file: File, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("x")
    for name in (REQUESTS_NAME, f"{REQUESTS_NAME}.new"):
        (tmp_path / name).symlink_to(precious)
    assert file.rows(5000.0, leak())
    assert precious.read_text() == "x"
    assert not file.path.is_symlink()


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = File(tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        for second in range(3):
            assert file.rows(5000.0 + second, leak()) == []
    assert [record.getMessage().split(":")[0] for record in caplog.records] == ["leaks.memory_probe"]
    os.mkdir(tmp_path / "none")
    assert file.rows(5010.0, leak())


def test_the_configuration() -> None:
    assert not parse({}, "x").leaks.memory_probe
    assert parse({"leaks": {"memory_probe": True}}, "x").leaks.memory_probe
    with pytest.raises(ConfigError, match=r"leaks\.memory_probe: its file lies beside statsd\.unix"):
        parse({"leaks": {"memory_probe": True}, "statsd": {"unix": "off"}}, "x")
