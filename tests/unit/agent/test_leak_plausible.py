"""Files whose numbers cannot be what their columns say: refused, or told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from aie_agent import cli
from aie_agent.analysis.leaks.recording import RecordingError, Seen, read
from aie_agent.analysis.leaks.settings import LeakSettings
from aie_agent.analysis.leaks.whole import WholeVerdict, judge

_GB: Final = 1e9
_PARTS: Final = "time_s,physical_bytes,allocated_bytes,reserved_bytes"
_TIMES: Final = np.arange(0, 30 * 3600, 120.0)
_LEAK: Final = 12 * _GB + 168e6 / 3600 * _TIMES

Rows = Sequence[Sequence[float]]


def _file(folder: Path, rows: Rows, header: str = "time_s,physical_bytes") -> Path:
    path = folder / "memory.csv"
    path.write_text("\n".join([header, *(",".join(map(repr, map(float, row))) for row in rows)]) + "\n")
    return path


def _refused(folder: Path, rows: Rows, header: str = "time_s,physical_bytes") -> str:
    with pytest.raises(RecordingError) as error:
        list(read(_file(folder, rows, header), Seen()))
    return str(error.value)


def _judged(folder: Path, rows: Rows, header: str = "time_s,physical_bytes") -> WholeVerdict:
    seen = Seen()
    return judge(read(_file(folder, rows, header), seen), seen, LeakSettings())


@pytest.mark.parametrize("unit", [1e6, 1e9])
def test_no_bytes(tmp_path: Path, unit: float) -> None:
    assert "physical_bytes: never above" in _refused(tmp_path, list(zip(_TIMES, _LEAK / unit, strict=True)))


def test_kib_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["leak", str(_file(tmp_path, list(zip(_TIMES, _LEAK / 1024, strict=True))))]) == 0
    out = capsys.readouterr().out
    assert out.startswith("not enough data")
    assert "less than 64 MB, which is no engine's" in out


@pytest.mark.parametrize("apart_s", [0.0, 1.0])
@pytest.mark.parametrize("first", ["flat", "leak"])
def test_two_processes(tmp_path: Path, apart_s: float, first: str) -> None:
    flat = np.full(len(_TIMES), 9 * _GB)
    one, other = (flat, _LEAK) if first == "flat" else (_LEAK, flat)
    rows = [row for t, a, b in zip(_TIMES, one, other, strict=True) for row in ((t, a), (t + apart_s, b))]
    assert "of several processes? one a file" in _refused(tmp_path, rows)


def test_one_process_seen_often_is_one(tmp_path: Path) -> None:
    """Null: a row a second, noise of 1 GB, readings of 0 and a model that loads."""
    noise = np.random.default_rng(0).normal(0, _GB, 3600)
    sizes = np.where(np.arange(3600) % 3 == 0, 0.0, np.minimum(np.arange(3600) / 60, 1) * 20 * _GB + 3 * _GB + np.abs(noise))
    assert len(list(read(_file(tmp_path, list(zip(range(3600), sizes, strict=True))), Seen()))) == 3600


def test_a_few_rows_of_equal_times_are_no_two_processes(tmp_path: Path) -> None:
    rows = [(t - (120 if i in (5, 9) else 0), size) for i, (t, size) in enumerate(zip(_TIMES, _LEAK, strict=True))]
    assert len(list(read(_file(tmp_path, rows), Seen()))) == len(rows)


@pytest.mark.parametrize(("rate", "stamped_s"), [(2, 1), (1 / 30, 60)])
def test_times_in_whole_units(tmp_path: Path, rate: float, stamped_s: int) -> None:
    """Rows share a time, and their sizes are of one level: of one process, for all that is known."""
    times = np.arange(0, 14 * 3600, 1 / rate)
    rows = list(zip(times // stamped_s * stamped_s, 12 * _GB + 200e6 / 3600 * times, strict=True))
    told = _judged(tmp_path, rows)
    assert told.verdict == "suspect"
    assert any("have the time of the row before: if they are of several processes" in sentence for sentence in told.evidence)


def test_buffers_of_requests_are_no_second_process(tmp_path: Path) -> None:
    """Null: 0.45 GB more in 45 % of the rows, a row a second, at random; or at a pace of its own."""
    times = np.arange(0, 13 * 3600.0)
    leak = _GB + 50e6 / 3600 * times
    for busy in (np.random.default_rng(0).random(len(times)) < 0.45, np.mod(times, 5.3) < 3, np.mod(times, 2.1) < 1):
        told = _judged(tmp_path, list(zip(times, leak + 0.45 * _GB * busy, strict=True)))
        assert told.verdict == "suspect"
        assert any("differ from it by a fifth, to and fro" in sentence for sentence in told.evidence)


@pytest.mark.parametrize("orders", [[(0, 1, 2)], [(0, 2), (2, 0)]])
def test_more_processes_and_in_any_order(tmp_path: Path, orders: list[tuple[int, ...]]) -> None:
    sizes = (9 * _GB, 9.5 * _GB, 30 * _GB)
    at = np.random.default_rng(0).integers(0, len(orders), len(_TIMES))
    rows = [(t, sizes[each]) for t, order in zip(_TIMES, at, strict=True) for each in orders[order]]
    assert "take turns: of several processes? one a file" in _refused(tmp_path, rows)


_MANY: Final = {
    5: (1, 2, 5, 5, 5),
    6: (1, 2, 5, 5, 5, 5),
    10: (1, 2, 5, 5, 5, 8, 8, 8, 12, 12),
    16: (1, 2, 5, 8) * 4,
}


@pytest.mark.parametrize("count", _MANY)
def test_many_processes_of_one_engine(tmp_path: Path, count: int) -> None:
    """A row of each with one time, every minute; the second leaks."""
    rows = [
        (t, size * _GB + (60e6 / 3600 * t if at == 1 else 0.0))
        for t in np.arange(0, 30 * 3600, 60.0)
        for at, size in enumerate(_MANY[count])
    ]
    assert "take turns: of several processes? one a file" in _refused(tmp_path, rows)


def test_a_round_of_many_processes_that_goes_over_a_second(tmp_path: Path) -> None:
    """It takes 0.4 s, each 7.3 s, in whole seconds: of some rounds a part has another time."""
    starts = np.arange(0, 3600, 7.3) + 0.37
    rows = [(float(t + 0.04 * at) // 1, size * _GB) for t in starts for at, size in enumerate(_MANY[10])]
    assert "take turns: of several processes? one a file" in _refused(tmp_path, rows)


@pytest.mark.parametrize("sizes", [(1, 2, *[5] * 8), (5,) * 17], ids=["two levels too few", "alike"])
def test_processes_that_are_not_told_from_one_are_not_called_none(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """Only the first of each time is followed, which is flat."""
    rows = [
        (t, size * _GB + (60e6 / 3600 * t if at == 1 else 0.0))
        for t in np.arange(0, 30 * 3600, 60.0)
        for at, size in enumerate(sizes)
    ]
    told = _judged(tmp_path, rows)
    assert told.verdict == "not_enough_data"
    assert any("have the time of the row before: if they are of several processes" in sentence for sentence in told.evidence)


def test_buffers_at_a_pace_under_shared_times_are_one_process(tmp_path: Path) -> None:
    """Null: 0.45 GB to and fro at a pace of its own, stamped in whole seconds or minutes; some keep step with the
    rows at a lag."""
    at = np.arange(7200.0)
    for pace, a_stamp in ((2.1, 60), (5.3, 60), (5.503, 2), (7.517, 2), (3.49, 2), (6.004, 2), (11.9, 60)):
        sizes = _GB + 0.45 * _GB * (np.mod(at, pace) < pace / 2)
        rows = list(zip(at // a_stamp * (60 if a_stamp == 60 else 1), sizes, strict=True))
        assert len(list(read(_file(tmp_path, rows), Seen()))) == len(rows)


def test_an_allocator_that_is_hardly_used(tmp_path: Path) -> None:
    rows = [(t, size, 512, 2_097_152) for t, size in zip(_TIMES, _LEAK, strict=True)]
    told = _judged(tmp_path, rows, _PARTS)
    assert (told.verdict, told.leak_class) == ("leak", "outside_allocator")
    assert any("allocated_bytes below 1e+06 were passed over" in sentence for sentence in told.evidence)


def test_parts_larger_than_wholes(tmp_path: Path) -> None:
    rows = [(t, size + _GB, size, 8 * _GB) for t, size in zip(_TIMES, _LEAK, strict=True)]
    told = _refused(tmp_path, rows, _PARTS)
    assert "allocated_bytes is above reserved_bytes in 900 of 900 rows" in told
    fine = [(t, size + _GB, 8 * _GB, size) for t, size in zip(_TIMES, _LEAK, strict=True)]
    assert len(list(read(_file(tmp_path, fine, _PARTS), Seen()))) == 900


def test_parts_in_another_unit(tmp_path: Path) -> None:
    """They are passed over, and the rest is judged."""
    rows = [(t, size + _GB, size / 1e6, size) for t, size in zip(_TIMES, _LEAK, strict=True)]
    told = _judged(tmp_path, rows, _PARTS)
    assert (told.verdict, told.leak_class) == ("leak", "unknown"), "with the column it would be fragmentation"
    assert any("900 values of allocated_bytes below 1e+06 were passed over" in sentence for sentence in told.evidence)
    empty = [(t, size + _GB, 0.0, 0.0) for t, size in zip(_TIMES, _LEAK, strict=True)]
    assert len(list(read(_file(tmp_path, empty, _PARTS), Seen()))) == 900, "an engine that uses no allocator"


def test_digits_with_underscores_are_no_number(tmp_path: Path) -> None:
    path = tmp_path / "memory.csv"
    path.write_text("time_s,physical_bytes\n0,12_000_000_000\n")
    with pytest.raises(RecordingError, match="line 2: physical_bytes: expected a number"):
        list(read(path, Seen()))
    path.write_text("time_s,physical_bytes\n1_0,12000000000\n")
    with pytest.raises(RecordingError, match="line 2: time_s: expected seconds"):
        list(read(path, Seen()))


@pytest.mark.parametrize("scale", ["1e308", "1e-300", "0", "nan"])
def test_a_time_scale_of_no_use(tmp_path: Path, scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = _file(tmp_path, list(zip(_TIMES, _LEAK, strict=True)))
    with pytest.raises(SystemExit) as ended:
        cli.main(["leak", str(path), "--time-scale", scale])
    assert ended.value.code == 2
    assert "argument --time-scale: expected" in capsys.readouterr().err


@pytest.mark.parametrize("scale", ["0.001", "1e6"])
def test_the_ends_of_the_time_scale(tmp_path: Path, scale: str) -> None:
    path = _file(tmp_path, list(zip(_TIMES, _LEAK, strict=True)))
    assert cli.main(["leak", str(path), "--time-scale", scale]) in (0, 1)
