"""`aie-agent leak`: verdicts, exit statuses, and files that are no recordings."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest

from aie_agent import cli

AIE_AGENT = Path(sys.executable).parent / "aie-agent"
HEADER: Final = "time_s,physical_bytes"
KEYS: Final = {"verdict", "class", "rate_mb_per_hour", "since_s", "confidence", "time_to_full_s", "evidence"}
MB: Final = 1e6
HOUR: Final = 3600

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Writes a file and runs the command on it: exit status, standard output, standard error."""

    def run(content: str | bytes, *arguments: str) -> tuple[int, str, str]:
        file = tmp_path / "memory.csv"
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        status = cli.main(["leak", str(file), *arguments])
        out, err = capsys.readouterr()
        return status, out, err

    return run


def rows(hours: float, mb_a_minute: float, noise_mb: float = 30.0, step_s: int = 60, start_s: int = 0) -> list[tuple[int, float]]:
    random = np.random.default_rng(0)
    times = range(start_s, start_s + int(hours * HOUR), step_s)
    return [(t, 12e9 + (mb_a_minute * (t - start_s) / 60 + random.normal(0, noise_mb)) * MB) for t in times]


def csv(table: list[tuple[Any, ...]], header: str = HEADER) -> str:
    return "\n".join([header, *(",".join(str(cell) for cell in row) for row in table)]) + "\n"


def verdict(run: tuple[int, str, str]) -> dict[str, Any]:
    status, out, err = run
    assert err == ""
    found: dict[str, Any] = msgspec.json.decode(out)
    assert set(found) == KEYS
    assert status == (0 if found["verdict"] in ("none", "not_enough_data") else 1)
    return found


def test_a_leak_as_a_process_would_say_it(tmp_path: Path) -> None:
    file = tmp_path / "memory.csv"
    file.write_text(csv(rows(30, 2.8)))
    done = subprocess.run([AIE_AGENT, "leak", file, "--json"], capture_output=True, check=False, timeout=60)
    found = msgspec.json.decode(done.stdout)
    assert done.returncode == 1
    assert (found["verdict"], found["class"], found["time_to_full_s"]) == ("leak", "unknown", None)
    assert found["rate_mb_per_hour"] == pytest.approx(168, rel=0.05)
    assert found["since_s"] <= 3 * HOUR
    assert 0.9 < found["confidence"] < 1
    text = subprocess.run([AIE_AGENT, "leak", file], capture_output=True, check=False, timeout=60).stdout.decode()
    first, *more = text.splitlines()
    assert first.startswith("leak: class unknown, 16")
    assert "limit 30 MB/h" in more[0]


def test_nothing(leak: Run) -> None:
    found = verdict(leak(csv(rows(30, 0.0)), "--json"))
    assert found["verdict"] == "none"
    assert [found[key] for key in KEYS - {"verdict", "evidence"}] == [None] * 5
    assert "no steady rise above 30 MB/h" in found["evidence"][0]


def test_classes_by_columns(leak: Run) -> None:
    grown = rows(30, 2.8, noise_mb=5)
    base = rows(30, 0.0, noise_mb=5)
    header = f"{HEADER},allocated_bytes,reserved_bytes"

    def classes(allocated: list[tuple[int, float]], reserved: list[tuple[int, float]]) -> tuple[str, str]:
        table = [(t, p + 2e9, a[1] - 2e9, r[1]) for (t, p), a, r in zip(grown, allocated, reserved, strict=True)]
        found = verdict(leak(csv(table, header), "--json"))
        return found["verdict"], found["class"]

    assert classes(grown, grown) == ("leak", "live_tensors")
    assert classes(base, grown) == ("fragmentation", "fragmentation")
    assert classes(base, base) == ("leak", "outside_allocator")


def test_memory_that_the_allocator_keeps_while_less_is_in_use_is_no_fragmentation(leak: Run) -> None:
    table = [(t, 20e9, 15e9 - (t / 60 * 2.8 * MB), 18e9) for t, _ in rows(30, 0.0)]
    assert verdict(leak(csv(table, f"{HEADER},allocated_bytes,reserved_bytes"), "--json"))["verdict"] == "none"


def test_a_known_cache_is_no_leak(leak: Run) -> None:
    """A cache that fills for 36 hours looks like a leak as long as it does; where it is told, it is none."""
    filled = [(t, size, min(2.8 * MB * t / 60, 6e9)) for t, size in rows(34, 0.0)]
    table = [(t, size + cache, cache) for t, size, cache in filled]
    assert verdict(leak(csv(table, f"{HEADER},cache_bytes"), "--json"))["verdict"] == "none"
    assert verdict(leak(csv([row[:2] for row in table]), "--json"))["verdict"] == "leak"
    beside = [(t, size + cache + 2.8 * MB * t / 60, cache) for t, size, cache in filled]
    assert verdict(leak(csv(beside, f"{HEADER},cache_bytes"), "--json"))["verdict"] == "leak", "a leak beside a cache"


def test_the_cache_is_taken_off_where_it_lies(leak: Run) -> None:
    """In tensors, while something outside leaks as fast: the leak is not taken for the cache."""
    table = []
    for t, size in rows(34, 2.8, noise_mb=5):
        cache = min(2.8 * MB * t / 60, 6e9)
        table.append((t, size + cache, 8e9 + cache, 9e9 + cache, cache))
    found = verdict(leak(csv(table, f"{HEADER},allocated_bytes,reserved_bytes,cache_bytes"), "--json"))
    assert (found["verdict"], found["class"]) == ("leak", "outside_allocator")


def test_time_to_full(leak: Run) -> None:
    found = verdict(leak(csv(rows(30, 2.8)), "--json", "--capacity", "20e9"))
    left = 20e9 - (12e9 + 2.8 * MB * 30 * 60)
    assert found["time_to_full_s"] == pytest.approx(left / (2.8 * MB / 60), rel=0.1)
    assert any("full in" in sentence for sentence in found["evidence"])


def test_events(leak: Run) -> None:
    """A leak that a restart cuts short was one; loading something begins the warm-up anew; a probe tells retention."""
    recorded = rows(40, 2.8)
    header = f"{HEADER},event"

    def with_event(event: str, drop: bool = True, at_h: float = 32) -> dict[str, Any]:
        at = int(at_h * 60)
        table = [
            (t, size - (2.8 * MB * at if drop and row >= at else 0), event if row == at else "")
            for row, (t, size) in enumerate(recorded)
        ]
        return verdict(leak(csv(table, header), "--json"))

    restarted = with_event("restart")
    assert restarted["verdict"] == "leak"
    assert any("the engine restarted then" in sentence for sentence in restarted["evidence"])
    assert with_event("malloc_trim")["verdict"] == "retention"
    assert with_event("a note", drop=False)["verdict"] == "leak"
    assert with_event("lora_load", drop=False, at_h=20)["verdict"] == "suspect", "twenty hours, twice"


def test_a_restart_that_nobody_tells_of(leak: Run) -> None:
    recorded = [
        (t, 1e9 if 1920 <= row < 1923 else size - (2.8 * MB * 1920 if row >= 1923 else 0))
        for row, (t, size) in enumerate(rows(40, 2.8))
    ]
    found = verdict(leak(csv(recorded), "--json"))
    assert found["verdict"] == "leak"
    assert any("warm-up began anew" in sentence for sentence in found["evidence"])


def test_what_never_got_a_request_warms_up_too(leak: Run) -> None:
    table = [(t, size, 0) for t, size in rows(40, 2.8)]
    assert verdict(leak(csv(table, f"{HEADER},load"), "--json"))["verdict"] == "leak"


@pytest.mark.parametrize("step_s", [10, 60, 300, 900, 3600])
def test_any_pace(leak: Run, step_s: int) -> None:
    assert verdict(leak(csv(rows(40, 2.8, step_s=step_s)), "--json"))["verdict"] == "leak"
    assert verdict(leak(csv(rows(40, 0.0, step_s=step_s)), "--json"))["verdict"] == "none"


def test_gaps(leak: Run) -> None:
    recorded = [row for row in rows(60, 2.8) if not 20 * HOUR < row[0] < 28 * HOUR]
    found = verdict(leak(csv(recorded), "--json"))
    assert found["verdict"] == "leak"
    assert any("longest gap between rows is 8 h" in sentence for sentence in found["evidence"])
    flat = [row for row in rows(60, 0.0) if not 20 * HOUR < row[0] < 28 * HOUR]
    assert verdict(leak(csv(flat), "--json"))["verdict"] == "none"


def test_the_clock_is_set_back(leak: Run) -> None:
    recorded = [(t - (HOUR if t > 15 * HOUR else 0), size) for t, size in rows(40, 2.8)]
    found = verdict(leak(csv(recorded), "--json"))
    assert found["verdict"] == "leak"
    assert any("clock was set back" in sentence for sentence in found["evidence"])


def test_the_clock_is_set_forward(leak: Run) -> None:
    """A hundred days are missing: nothing is made of what lies between."""
    recorded = [(t + (100 * 24 * HOUR if t > 15 * HOUR else 0), size) for t, size in rows(30, 0.0)]
    assert verdict(leak(csv(recorded), "--json"))["verdict"] == "none"


def test_nan_and_empty_cells_are_not_known(leak: Run) -> None:
    recorded: list[tuple[Any, ...]] = [
        (t, "NaN" if row % 7 == 3 else "" if row % 11 == 5 else size) for row, (t, size) in enumerate(rows(30, 2.8))
    ]
    found = verdict(leak(csv(recorded), "--json"))
    assert found["verdict"] == "leak"
    assert any("empty or NaN cells" in sentence for sentence in found["evidence"])
    nothing = [(t, "nan") for t, _ in rows(30, 0.0)]
    assert verdict(leak(csv(nothing), "--json"))["verdict"] == "not_enough_data"


@pytest.mark.parametrize("hours", [0.0, 0.02, 1.0, 6.0, 12.0])
def test_not_enough_data(leak: Run, hours: float) -> None:
    """Half a day of noise is needed: what rises for less is not told from a warm-up."""
    found = verdict(leak(csv(rows(hours, 2.8)), "--json"))
    assert found["verdict"] == "not_enough_data"
    assert "too short" in found["evidence"][0]


def test_constant_series(leak: Run) -> None:
    table = [(t, 5_000_000_000) for t, _ in rows(2, 0.0)]
    assert verdict(leak(csv(table), "--json"))["verdict"] == "none", "without noise an hour and ten minutes suffice"


def test_a_size_of_zero_is_a_gap(leak: Run) -> None:
    """No process that lives has none: it is no restart, and no floor. A series of nothing else tells nothing."""
    recorded = [(t, 0 if row % 60 == 17 else size) for row, (t, size) in enumerate(rows(30, 2.8))]
    found = verdict(leak(csv(recorded), "--json"))
    assert found["verdict"] == "leak"
    assert found["rate_mb_per_hour"] == pytest.approx(168, rel=0.1)
    assert not any("restarted" in sentence for sentence in found["evidence"])
    assert any("30 physical sizes of 0 were passed over" in sentence for sentence in found["evidence"])
    flat = [(t, 0 if row % 60 == 17 else size) for row, (t, size) in enumerate(rows(30, 0.0))]
    assert verdict(leak(csv(flat), "--json"))["verdict"] == "none"
    nothing = [(t, 0) for t, _ in rows(30, 0.0)]
    assert verdict(leak(csv(nothing), "--json"))["verdict"] == "not_enough_data"


@pytest.mark.parametrize("every_min", [60, 240, 1440])
def test_one_reading_that_is_far_too_low_is_no_floor(leak: Run, every_min: int) -> None:
    def recorded(mb_a_minute: float) -> list[tuple[int, float]]:
        return [(t, 7.2e9 if row % every_min == 17 else size) for row, (t, size) in enumerate(rows(48, mb_a_minute))]

    assert verdict(leak(csv(recorded(2.8)), "--json"))["verdict"] == "leak"
    assert verdict(leak(csv(recorded(0.0)), "--json"))["verdict"] == "none"


def test_a_quiet_counter_in_an_hour_and_a_quarter(leak: Run) -> None:
    found = verdict(leak(csv(rows(1.25, 2.8, noise_mb=0.0)), "--json"))
    assert (found["verdict"], found["confidence"]) == ("suspect", 0.5)


def test_times_of_an_epoch(leak: Run) -> None:
    found = verdict(leak(csv(rows(30, 2.8, start_s=1_790_000_000)), "--json"))
    assert found["verdict"] == "leak"
    assert found["since_s"] > 1_790_000_000


def test_time_scale(leak: Run) -> None:
    fast = [(t / 60, size) for t, size in rows(30, 2.8)]
    assert verdict(leak(csv(fast), "--json"))["verdict"] == "not_enough_data"
    assert verdict(leak(csv(fast), "--json", "--time-scale", "60"))["verdict"] == "leak"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty: expected the header"),
        (b"\n", "column time_s is missing"),
        (b"time,physical_bytes\n0,1\n", "did you mean time_s?"),
        (b"time_s,physical\n0,1\n", "did you mean physical_bytes?"),
        (b"time_s,physical_bytes,alocated_bytes\n0,1,1\n", "did you mean allocated_bytes?"),
        (b"time_s,allocated_bytes\n0,1\n", "column physical_bytes is missing"),
        (b"physical_bytes,load\n1,1\n", "column time_s is missing"),
        (b"time_s,physical_bytes,load,load\n0,1,1,1\n", "column load stands there twice"),
        (b"time_s;physical_bytes\n0;1\n", "unknown column"),
        (b"0,12000000000\n60,12000000000\n", "unknown column '0'"),
        (b"time_s,physical_bytes\n0,1\n60\n", "line 3: expected 2 cells, got 1"),
        (b"time_s,physical_bytes\n0,1,2\n", "line 2: expected 2 cells, got 3"),
        (b"time_s,physical_bytes\n0,12 GB\n", "line 2: physical_bytes: expected a number, got '12 GB'"),
        (b"time_s,physical_bytes\n0,-5\n", "physical_bytes: expected 0 to"),
        (b"time_s,physical_bytes\n0,inf\n", "physical_bytes: expected 0 to"),
        (b"time_s,physical_bytes\n0,1e300\n", "physical_bytes: expected 0 to"),
        (b"time_s,physical_bytes\nyesterday,5\n", "time_s: expected seconds, got 'yesterday'"),
        (b"time_s,physical_bytes\nnan,5\n", "time_s: expected seconds"),
        (b"time_s,physical_bytes\n1790000000000,5\n", "milliseconds?"),
        (b"time_s,physical_bytes\n9,1\n8,1\n7,1\n6,1\n5,1\n", "time_s goes back"),
        (b"time_s,physical_bytes\n0,\xff\xfe\n", "not UTF-8"),
        (b"time_s,physical_bytes\n0,1\x00\n", "line"),
    ],
)
def test_no_recording(leak: Run, content: bytes, says: str) -> None:
    for arguments in ((), ("--json",)):
        status, out, err = leak(content, *arguments)
        assert status == 2
        assert out == ""
        assert says in err
        assert err.count("\n") == 1, "one line"


def test_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path, says in ((tmp_path / "absent.csv", "No such file"), (tmp_path, "Is a directory")):
        assert cli.main(["leak", str(path)]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [("--capacity", "0"), ("--capacity", "much"), ("--time-scale", "-1"), ("--time-scale", "inf")]
)
def test_arguments(leak: Run, arguments: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        leak(csv(rows(1, 0.0)), *arguments)
    assert ended.value.code == 2


def test_a_byte_order_mark_and_spaces(leak: Run) -> None:
    text = csv(rows(30, 0.0)).replace(HEADER, "\ufefftime_s, physical_bytes").replace("\n", "\r\n")
    assert verdict(leak(text, "--json"))["verdict"] == "none"


def test_what_a_cache_keeps_on_purpose_has_a_column(leak: Run) -> None:
    table = [
        (t, 20e9, 0 if t % 600 else 4, 3e9 + 90 * MB * t / HOUR + 400 * MB * t / HOUR, 400 * MB * t / HOUR)
        for t, _ in rows(40, 0.0)
    ]
    found = verdict(leak(csv(table, f"{HEADER},load,cache_bytes,evictable_bytes"), "--json"))
    assert (found["verdict"], found["class"]) == ("accounting", "kv_accounting")
