"""Single values beside their histograms, kept and bounded; what is recorded of them; and the file that is there during an alarm."""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from aie_agent.commands.drift_csv import read_table
from aie_agent.outputs.degrade import DegradeFile
from aie_agent.outputs.value_recorder import ValueRecorder
from aie_agent.request_values import MOST_HELD, STATISTICS, Arrived, RequestValues
from aie_agent.samples import Batch, Values
from aie_agent.sources.statsd_aggregate import MOST_KEPT, Aggregator
from aie_telemetry.api import Finding, Severity
from aie_telemetry.catalogue import CATALOGUE, Kind
from aie_telemetry.statsd import Parser

ENTROPY = "aie_engine_output_entropy_nats"
TAGS = (("engine", "e"), ("model", "m"))


def _feed(aggregator: Aggregator, line: str) -> None:
    for parsed in Parser().packet(line.encode()):
        for sample in parsed.samples:
            aggregator.add(sample)


def test_every_statistic_is_a_histogram_of_the_catalogue() -> None:
    for statistic in STATISTICS:
        assert CATALOGUE[statistic.metric].kind is Kind.HISTOGRAM


def test_values_are_kept_in_order_and_of_their_interval_only() -> None:
    aggregator = Aggregator()
    for value in (0.5, 0.25, 0.5):
        _feed(aggregator, f"{ENTROPY},engine=e,model=m:{value}|h|@0.1")
    _feed(aggregator, "aie_engine_time_to_first_token_seconds,engine=e,model=m:1|h")
    first = aggregator.swap(1.0)
    assert first.values() == [Values(ENTROPY, TAGS, (0.5, 0.25, 0.5))]
    _feed(aggregator, f"{ENTROPY},engine=e,model=m:2|h")
    assert aggregator.swap(2.0).values() == [Values(ENTROPY, TAGS, (2.0,))]
    assert aggregator.swap(3.0).values() == []


def test_more_than_are_kept_are_counted_and_are_in_the_histogram() -> None:
    aggregator = Aggregator()
    for number in range(MOST_KEPT + 7):
        _feed(aggregator, f"{ENTROPY},engine=e,model=m:{number / 1000}|h")
    interval = aggregator.swap(1.0)
    (values,) = interval.values()
    assert (len(values.values), values.lost) == (MOST_KEPT, 7)
    (histogram,) = interval.points()[1]
    assert sum(histogram.counts) == MOST_KEPT + 7


def test_each_reader_has_its_own_position_and_names_are_those_of_now() -> None:
    names = {"e": "e"}
    held = RequestValues(lambda name: names.get(name, name))
    held.take(Batch("statsd", 1.0, values=[Values(ENTROPY, TAGS, (1.0,))]))
    position, arrived = held.since(0)
    assert arrived == [Arrived("e", "m", "entropy", (1.0,), 0)]
    assert held.since(position) == (position, [])
    names["e"] = "first"
    held.take(Batch("statsd", 2.0, values=[Values(ENTROPY, TAGS, (2.0,))]))
    assert held.since(position)[1] == [Arrived("first", "m", "entropy", (2.0,), 0)]
    assert len(held.since(0)[1]) == 2


def test_the_oldest_make_room() -> None:
    held = RequestValues()
    for number in range(50):
        held.take(Batch("statsd", 1.0, values=[Values(ENTROPY, TAGS, (float(number),) * 1000)]))
    position, arrived = held.since(0)
    assert position == 50
    assert sum(len(each.values) for each in arrived) == MOST_HELD
    assert arrived[-1].values[0] == 49.0


def _arrived(**columns: list[float]) -> list[Arrived]:
    return [Arrived("e/x", "m", name, values, 0) for name, values in columns.items()]


def test_rows_are_recorded_once_they_are_whole(tmp_path: Path) -> None:
    recorder = ValueRecorder(tmp_path)
    recorder.take(_arrived(entropy=[1.0, 2.0], surprisal=[3.0, 4.0], first_token_logsumexp=[5.0], log_length=[6.0, 7.0]))
    recorder.write(100.0)
    (file,) = tmp_path.iterdir()
    header = "time_s,request,entropy,surprisal,first_token_logsumexp,log_length"
    assert file.read_text().splitlines() == [header, "100.0,0,1.0,3.0,5.0,6.0"]
    again = ValueRecorder(tmp_path)
    again.take(_arrived(entropy=[1.5], surprisal=[3.5], first_token_logsumexp=[5.5], log_length=[6.5], other=[1.0]))
    again.write(200.0)
    assert file.read_text().splitlines()[-1] == "200.0,1,1.5,3.5,5.5,6.5", "a restart goes on"


def test_a_recording_is_spread_over_all_that_came(tmp_path: Path) -> None:
    recorder = ValueRecorder(tmp_path)
    total, step = 100_000, 250
    for start in range(0, total, step):
        if start % 30_000 == 0:
            recorder = ValueRecorder(tmp_path)  # a restart goes on with the blocks
        values = [float(number) for number in range(start, start + step)]
        recorder.take(_arrived(entropy=values, surprisal=values, first_token_logsumexp=values, log_length=values))
        recorder.write(float(start))
    (file,) = tmp_path.iterdir()
    requests = read_table(file).columns["entropy"]
    assert 10_000 <= len(requests) <= 20_000
    assert sorted({int(request) // 10_000 for request in requests}) == list(range(10)), "every tenth of the time is there"
    jumps = [other - one for one, other in pairwise(requests)]
    assert sum(jump != 1 for jump in jumps) <= len(requests) / 500, "in whole blocks"
    assert max(jumps) <= 2 * 8 * 500, "one block of eight, and a restart may count as many anew"
    assert read_table(file).hours == pytest.approx(total / 3600, rel=0.05)


def test_a_recording_that_someone_else_writes_into_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = ValueRecorder(tmp_path)
    with caplog.at_level(logging.WARNING):
        for start in range(0, 25_000, 5000):
            values = [float(number) for number in range(start, start + 5000)]
            recorder.take(_arrived(entropy=values, surprisal=values, first_token_logsumexp=values, log_length=values))
            recorder.write(1.0)
            (tmp_path / "e_x-m.csv").write_text("nonsense\nnonsense\n")
    assert ["changed by someone else" in record.getMessage() for record in caplog.records] == [True]
    assert not recorder.is_on


def test_a_file_that_is_no_recording_is_left_alone_and_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "e_x-m.csv").write_text("entropy,surprisal\n1,2\n")
    recorder = ValueRecorder(tmp_path)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.take(_arrived(entropy=[1.0], surprisal=[1.0], first_token_logsumexp=[1.0], log_length=[1.0]))
            recorder.write(1.0)
    assert ["move it away" in record.getMessage() for record in caplog.records] == [True]
    assert (tmp_path / "e_x-m.csv").read_text() == "entropy,surprisal\n1,2\n"
    assert recorder.is_on, "others are recorded"


def test_a_directory_that_is_not_there_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    recorder = ValueRecorder(tmp_path / "none")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            recorder.take(_arrived(entropy=[1.0], surprisal=[1.0], first_token_logsumexp=[1.0], log_length=[1.0]))
            recorder.write(1.0)
    assert len(caplog.records) == 1
    assert not recorder.is_on
    assert not ValueRecorder(None).is_on


def _finding(cause: str, severity: Severity = "warning", explained_by: str = "") -> Finding:
    return Finding(cause=cause, subject="e", severity=severity, since_s=5.0, summary="s", explained_by=explained_by)


def test_the_file_is_there_while_an_alarm_holds(tmp_path: Path) -> None:
    path = tmp_path / "degraded"
    path.write_text("of an earlier run")
    degrade = DegradeFile(path)
    degrade.update([_finding("queue_saturation")], 100.0)
    assert not path.exists()
    degrade.update([_finding("output_drift"), _finding("nan_logits", "critical")], 100.0)
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert [(row["engine"], row["cause"], row["severity"]) for row in rows] == [
        ("e", "output_drift", "warning"),
        ("e", "nan_logits", "critical"),
    ]
    written = path.stat().st_mtime_ns
    degrade.update([_finding("output_drift"), _finding("nan_logits", "critical")], 101.0)
    assert path.stat().st_mtime_ns == written, "nothing changed"
    degrade.update([], 102.0)
    assert list(tmp_path.iterdir()) == []


def test_a_line_says_until_when_it_holds_and_is_renewed_before(tmp_path: Path) -> None:
    degrade = DegradeFile(tmp_path / "degraded")
    for now_s in range(1000, 1300):
        degrade.update([_finding("output_drift")], float(now_s))
        (row,) = [msgspec.json.decode(line) for line in (tmp_path / "degraded").read_bytes().splitlines()]
        assert 90.0 <= row["expires_s"] - now_s <= 120.0
    degrade.update([_finding("output_drift")], 500.0)
    assert msgspec.json.decode((tmp_path / "degraded").read_bytes())["expires_s"] == 620.0, "the clock was set back"


def test_what_is_explained_or_only_worth_knowing_degrades_nothing(tmp_path: Path) -> None:
    degrade = DegradeFile(tmp_path / "degraded")
    degrade.update([_finding("output_drift", "info"), _finding("output_drift", explained_by="input_drift")], 1.0)
    assert list(tmp_path.iterdir()) == []
    degrade.update([_finding("input_drift"), _finding("output_drift", explained_by="input_drift")], 2.0)
    assert [msgspec.json.decode(line)["cause"] for line in (tmp_path / "degraded").read_bytes().splitlines()] == ["input_drift"]


def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    degrade = DegradeFile(tmp_path / "none" / "file")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            degrade.update([_finding("nan_logits")], 1.0)
    assert ["cannot be written" in record.getMessage() for record in caplog.records] == [True]
    DegradeFile(None).update([_finding("nan_logits")], 1.0)
