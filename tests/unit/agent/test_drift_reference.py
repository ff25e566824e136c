"""References: what is refused, what is warned of, and that a file is what was written or nothing."""

from __future__ import annotations

import math
import random
import re
import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aie_agent.analysis.drift.build_reference import build
from aie_agent.analysis.drift.files import SHIPPED, assigned
from aie_agent.analysis.drift.independence import FEWEST_INDEPENDENT, too_dependent
from aie_agent.analysis.drift.offline import judge
from aie_agent.analysis.drift.reference import MOST, About, Aim, Reference, UnfitReferenceError
from aie_agent.analysis.drift.reference_file import hash_of, is_reference, load, replace, save
from aie_agent.analysis.drift.span import qualified, spread, warning
from aie_agent.request_values import STATISTICS

ABOUT = About(model="m", revision="r1", quantisation="q8_0", sampling="temperature 1", traffic_class="chat")


def _values(count: int, seed: int = 0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(0, 1) for _ in range(count)]


@pytest.fixture(scope="module")
def reference() -> Reference:
    return build({"x": _values(600), "y": _values(600, 1)}, ABOUT)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({}, "empty"),
        ({"x": []}, "empty"),
        ({"x": [1.0]}, "1 requests is too small"),
        ({"x": _values(499)}, "499 requests is too small"),
        ({"x": [*_values(600), math.nan]}, "x, request 601: nan"),
        ({"x": [math.inf, *_values(600)]}, "x, request 1: inf"),
        ({"x": [float(value) for value in range(10)] * 60}, "10 distinct values"),
    ],
)
def test_what_makes_no_reference_is_refused(columns: dict[str, list[float]], said: str) -> None:
    with pytest.raises(UnfitReferenceError, match=said):
        build(columns, ABOUT)


def test_few_requests_are_warned_of(reference: Reference) -> None:
    assert any("600 requests are few" in warning for warning in reference.header.warnings)
    assert build({"x": _values(2000)}, ABOUT).header.warnings == ()


@pytest.mark.parametrize("rows", [20_001, 20_500, 31_337, 1_000_000])
def test_of_very_many_requests_blocks_of_the_whole_recording_are_taken(rows: int) -> None:
    taken = spread(range(rows), MOST)
    assert len(taken) == len(set(taken)) == MOST
    assert (taken[0], taken[-1], taken == sorted(taken)) == (0, rows - 1, True)
    ends = [index for index, (one, other) in enumerate(pairwise(taken), 1) if other != one + 1]
    assert set(ends) <= set(range(1000, MOST, 1000)), "what hangs together stays together"
    assert max(other - one for one, other in pairwise(taken)) <= rows / 19
    assert spread(range(MOST), MOST) == list(range(MOST))


def test_a_recording_whose_beginning_was_another_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aie_agent.analysis.drift.build_reference.MOST", 1000)
    made = build({"x": [value + 100 for value in _values(2000)] + _values(2000, 1)}, ABOUT)
    assert len(made.values["x"]) == 1000
    assert sum(value > 50 for value in made.values["x"]) == 500
    assert any("of 4000 requests 1000 were taken" in warning for warning in made.header.warnings)


@pytest.mark.parametrize(
    ("about", "hours", "said"),
    [
        ({}, None, "unknown time"),
        ({"hours": 30.0}, 30.0, "30 hours of the recording"),
        ({"hours": 0.5}, 0.5, "time of day is not in it"),
        ({"recorded_from": "2026-11-29T23:04", "recorded_to": "2026-11-30T01:04"}, 2.0, "time of day is not in it"),
        ({"recorded_from": "2026-11-29T23:04", "recorded_to": "2026-11-29T22:04"}, None, "unknown time"),
        ({"recorded_from": "Monday", "recorded_to": "2026-11-29T22:04"}, None, "unknown time"),
        ({"recorded_from": "2026-11-29T23:04+00:00", "recorded_to": "2026-11-30T01:04"}, None, "unknown time"),
    ],
)
def test_how_long_a_reference_was_recorded_qualifies_its_claims(about: dict[str, Any], hours: float | None, said: str) -> None:
    span_hours = About(model="m", **about).span_hours
    assert span_hours == hours
    assert said in qualified(span_hours)
    assert bool(warning(span_hours)) == (hours is None or hours < 24)


def test_a_reference_of_before_there_were_hours_keeps_its_hash(reference: Reference) -> None:
    assert b"hours" not in msgspec.json.encode(reference.header.about)
    known = build({"x": _values(600)}, msgspec.structs.replace(ABOUT, hours=5.0))
    assert known.header.about.span_hours == 5.0
    assert msgspec.json.decode(msgspec.json.encode(known.header), type=type(known.header)) == known.header


def test_a_statistic_with_few_values_is_not_compared_and_others_are() -> None:
    made = build({"x": _values(2000), "flag": [float(value > 0) for value in _values(2000)]}, ABOUT)
    flag = made.header.columns[1]
    assert flag.untested == "2 distinct values, fewer than 20"
    assert any("flag is not compared" in warning for warning in made.header.warnings)


def test_values_that_hang_together_are_warned_of() -> None:
    walk = [0.0]
    rng = random.Random(1)
    for _ in range(3999):
        walk.append(0.8 * walk[-1] + rng.gauss(0, 1))
    warnings = build({"x": walk}, ABOUT).header.warnings
    assert any("depend on each other" in warning for warning in warnings)
    assert any("times that of p < 0.01" in warning for warning in warnings)


def _walk(rho: float, count: int = 2000) -> list[float]:
    """Values of which each depends on the one before by `rho`, of scatter 1."""
    rng = random.Random(1)
    walk = [0.0]
    for _ in range(count - 1):
        walk.append(rho * walk[-1] + rng.gauss(0, math.sqrt(1 - rho * rho)))
    return walk


@pytest.mark.parametrize("rho", [0.97, 0.99])
def test_values_that_hang_together_too_much_are_not_compared(rho: float) -> None:
    made = build({"x": _walk(rho), "y": _values(2000)}, ABOUT)
    x, y = made.header.columns
    assert x.untested.startswith("not enough data: ")
    assert (x.delay_requests, x.false_alarm, y.untested) == ({}, 0.0, "")
    assert any("x is not compared: not enough data" in warning for warning in made.header.warnings)
    assert made.header.run_length_requests >= made.header.aim.requests
    stream = {"x": [value + 2 for value in _walk(rho, 1000)], "y": _values(1000, 2)}
    assert (judge(made, stream).alarm, judge(made, stream).state) == (False, "ok")
    far = judge(made, {"x": [value + 30 for value in _walk(rho, 1000)], "y": _values(1000, 2)})
    assert (far.statistic, far.check, far.first_alarm_request) == ("x", "out_of_range", 500), "nowhere near what it ever was"


def _spells(length: int) -> list[float]:
    """Five thousand requests of two populations, in spells of such a mean length."""
    rng = random.Random(1)
    spells: list[float] = []
    while len(spells) < 5000:
        level = rng.choice((0.0, 4.0))
        spells += [rng.gauss(level, 1.0) for _ in range(round(rng.expovariate(1 / length)) + 1)]
    return spells[:5000]


@pytest.mark.parametrize(
    ("spell", "do"),
    [
        (40, r"so record about (\d+) requests"),
        (100, r"about (\d+) requests, of which 20000 are taken at most: make a reference of each kind of traffic by itself"),
    ],
)
def test_what_tells_too_little_is_not_compared_and_says_what_would_do(spell: int, do: str) -> None:
    """Spells of two populations: windows were beyond the threshold a hundred times as often as calibrated to. It asked for more
    requests than are ever taken, however many there are."""
    (x,) = build({"x": _spells(spell)}, ABOUT).header.columns
    independent = x.m / x.dependence
    assert independent < FEWEST_INDEPENDENT
    said, _, told = x.untested.partition(" are needed, ")
    assert said == (
        f"not enough data: its 5000 values depend on each other, and tell as much as {math.floor(independent)} that do not;"
        " at least 200"
    )
    needed = re.fullmatch(do, told)
    assert needed is not None, told
    assert 1.5 * x.dependence * FEWEST_INDEPENDENT <= int(needed.group(1)) < 1.65 * x.dependence * FEWEST_INDEPENDENT
    assert set(needed.group(1)[2:]) == {"0"}, "no more digits than are known"


@pytest.mark.parametrize(
    ("m", "dependence", "said"),
    [
        (2000, 10.0, ""),
        (1998, 10.0, "tell as much as 199 that do not; at least 200 are needed, so record about 3000 requests"),
        (500, 46.0, "tell as much as 10 that do not; at least 200 are needed, so record about 14000 requests"),
    ],
)
def test_what_is_not_enough_is_never_told_as_enough(m: int, dependence: float, said: str) -> None:
    """It said that 200 were too few of 200, and asked for so many that by chance the next recording was too short again."""
    assert too_dependent(m, dependence).endswith(said)
    assert bool(too_dependent(m, dependence)) == bool(said)


def test_a_file_of_before_it_was_asked_what_it_tells_is_as_one_that_is_built_now(tmp_path: Path) -> None:
    now = build({"x": _spells(40), "y": _values(5000)}, ABOUT)
    x, y = now.header.columns
    compared = msgspec.structs.replace(x, untested="", false_alarm=1e-6, delay_requests={"1": 500.0})
    warnings = ("x: its values depend on each other, 5000 tell as much as 100 independent ones",)
    header = msgspec.structs.replace(now.header, columns=(compared, y), warnings=warnings)
    before = Reference(msgspec.structs.replace(header, sha256=hash_of(header, now.values)), now.values)
    save(before, tmp_path / "old")
    read = load(tmp_path / "old")
    assert (read.header.columns, read.header.warnings) == (now.header.columns, now.header.warnings)
    assert read.header.sha256 == hash_of(read.header, read.values) != before.header.sha256
    assert judge(read, {"x": [value + 5 for value in _spells(40)], "y": _values(5000, 1)}).alarm is False
    replace(read, tmp_path / "replaced")
    assert load(tmp_path / "replaced").header == read.header


@pytest.mark.parametrize("dependence", [0.0, -3.0])
def test_a_file_whose_values_depend_on_less_than_nothing_is_refused(
    reference: Reference, dependence: float, tmp_path: Path
) -> None:
    """Its hash is right: somebody wrote it so. What it tells is asked of each file, and is a division by that."""
    column, *others = reference.header.columns
    header = msgspec.structs.replace(reference.header, columns=(msgspec.structs.replace(column, dependence=dependence), *others))
    header = msgspec.structs.replace(header, sha256=hash_of(header, reference.values))
    save(Reference(header, reference.values), tmp_path / "odd.aieref")
    with pytest.raises(UnfitReferenceError, match="dependence"):
        load(tmp_path / "odd.aieref")


def test_where_nothing_can_be_compared_there_is_no_verdict() -> None:
    made = build({"x": _walk(0.99)}, ABOUT)
    verdict = judge(made, {"x": _walk(0.99)})
    assert (verdict.alarm, verdict.state, verdict.run_length_requests) == (False, "not_enough_data", None)
    assert judge(made, {"x": [math.nan]}).check == "nonfinite", "what needs no statistics is looked at"


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_every_statistic_that_is_compared_is_as_rarely_wrong_as_asked_for(rho: float) -> None:
    header = build({"x": _walk(rho, 6000)}, ABOUT).header
    assert header.columns[0].untested == ""
    assert header.columns[0].threshold <= 0.5
    assert header.run_length_requests >= 0.999999 * header.aim.requests


def test_no_longer_run_length_is_claimed_than_a_replay_can_tell() -> None:
    made = build({"x": _values(2000)}, ABOUT, Aim(days=30.0, requests_per_second=1e6)).header
    assert any("no more than one in 1e+10 is claimed" in warning for warning in made.warnings)


def test_a_file_is_what_was_written(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "r.aieref"
    save(reference, path)
    assert is_reference(path)
    read = load(path)
    assert read.header == reference.header
    assert {name: list(values) for name, values in read.values.items()} == {
        name: list(values) for name, values in reference.values.items()
    }


def test_a_file_is_written_once_and_for_readers_only(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "r.aieref"
    save(reference, path)
    assert stat.S_IMODE(path.stat().st_mode) & 0o222 == 0
    with pytest.raises(FileExistsError):
        save(reference, path)


@pytest.mark.parametrize("at", [30, 200, -20, -1])
def test_a_byte_that_changed_is_noticed(reference: Reference, tmp_path: Path, at: int) -> None:
    path = tmp_path / "r.aieref"
    save(reference, path)
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    changed = tmp_path / "changed"
    changed.write_bytes(content)
    with pytest.raises(UnfitReferenceError, match=r"hash|header|reference"):
        load(changed)


@pytest.mark.parametrize("keep", [0, 10, 100, -1])
def test_a_file_that_is_cut_off_is_refused(reference: Reference, tmp_path: Path, keep: int) -> None:
    path = tmp_path / "r.aieref"
    save(reference, path)
    cut = tmp_path / "cut"
    cut.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UnfitReferenceError):
        load(cut)


def test_equal_values_make_equal_references(reference: Reference) -> None:
    again = build({"x": _values(600), "y": _values(600, 1)}, ABOUT)
    assert again.header.sha256 == reference.header.sha256


def test_a_reference_may_be_for_one_engine(reference: Reference, tmp_path: Path) -> None:
    path = tmp_path / "r.aieref"
    save(reference, path)
    (tmp_path / "other").write_text("not one")
    found, problems = assigned([str(path), f"e1={path}", f"{tmp_path}/none", f"{tmp_path}/other"])
    assert [each.engine for each in found] == ["", "e1"]
    assert ["No such file" in problem or "no drift reference" in problem for problem in problems] == [True, True]


def test_the_reference_that_ships_is_of_the_demos_traffic() -> None:
    (demo,), problems = assigned(["demo"])
    header = demo.reference.header
    assert problems == []
    assert (demo.engine, header.about.model, header.about.traffic_class) == ("", "smollm2", "demo")
    assert header.requests >= 2000
    assert header.warnings == ()
    assert [column.name for column in header.columns] == [each.name for each in STATISTICS]
    assert SHIPPED["demo"].stat().st_size < 100_000
    assert header.run_length_requests >= header.aim.requests
    rng = random.Random(1)
    drawn = {name: rng.choices(list(values), k=2000) for name, values in demo.reference.values.items()}
    assert judge(demo.reference, drawn).alarm is False
    drawn["entropy"] = [value + header.columns[0].deviation for value in drawn["entropy"]]
    assert judge(demo.reference, drawn).first_alarm_request == 500
