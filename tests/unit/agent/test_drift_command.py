"""`aie-agent drift` and `aie-agent baseline`, as their users run them: files in, one verdict and an exit status out."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from aie_agent.cli import main


def _csv(path: Path, columns: dict[str, Sequence[object]]) -> Path:
    rows = [",".join(columns), *(",".join(map(str, row)) for row in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(rows) + "\n")
    return path


def _normal(count: int, seed: int, mean: float = 0.0) -> list[float]:
    rng = random.Random(seed)
    return [rng.gauss(mean, 1) for _ in range(count)]


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    return _csv(tmp_path / "R.csv", {"entropy": _normal(1000, 1), "surprisal": _normal(1000, 2)})


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference made of the same once: what a CSV file is made into at each run takes most of its time."""
    folder = tmp_path_factory.mktemp("built")
    recording = _csv(folder / "R.csv", {"entropy": _normal(1000, 1), "surprisal": _normal(1000, 2)})
    return _build(folder, recording, "m.aieref", "--model", "m")


def _json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status = main([*map(str, arguments), "--json"])
    return status, json.loads(capsys.readouterr().out)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert main([*map(str, arguments)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


def test_traffic_like_the_references_is_no_drift(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = _csv(tmp_path / "S.csv", {"surprisal": _normal(5000, 3), "entropy": _normal(5000, 4)})
    status, verdict = _json(capsys, "drift", "--reference", reference, "--stream", stream)
    assert status == 0
    assert verdict["alarm"] is False
    assert verdict["first_alarm_request"] is None
    assert verdict["statistic"] is None
    assert verdict["evaluations"] == 100
    assert verdict["run_length_requests"] >= 30 * 86400
    assert verdict["run_length_days"] >= 30
    assert set(verdict["per_statistic"]) == {"entropy", "surprisal"}


@pytest.mark.parametrize(("shift", "latest"), [(1.0, 2600), (0.7, 2700)])
def test_a_shift_is_told_with_its_statistic_and_request(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], shift: float, latest: int
) -> None:
    shifted = _normal(2000, 5) + _normal(3000, 6, shift)
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(5000, 4), "surprisal": shifted})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert status == 1
    assert (verdict["alarm"], verdict["statistic"], verdict["check"]) == (True, "surprisal", "ks")
    assert 2500 <= verdict["first_alarm_request"] <= latest
    each = verdict["per_statistic"]["surprisal"]
    assert each["distance_largest"] > each["threshold"]
    assert verdict["per_statistic"]["entropy"]["alarm"] is False


def test_people_are_told_the_run_length_and_the_delays(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(900, 4), "surprisal": _normal(900, 5)})
    assert main(["drift", "--reference", str(built), "--stream", str(stream)]) == 0
    out = capsys.readouterr().out
    assert "no drift in 900 requests" in out
    assert "false alarms: one in" in out
    assert "days at the rate" in out
    assert "(+0.5 sd)" in out
    assert "warning: 1000 requests are few" in out


@pytest.mark.parametrize(("windows", "warned"), [((0, 1, 1, 1, 1) * 6, True), ((1, 1, 1, 1), True), ((0, 0, 1, 1, 0) * 2, True),
                                                 ((0,) * 30, False), ((0, 0, 0, 1, 0, 0, 1, 1), False)])  # fmt: skip
def test_what_comes_and_goes_is_no_alarm_but_a_finding(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], windows: tuple[int, ...], warned: bool
) -> None:
    entropy = [value + 0.7 * windows[number // 100] for number, value in enumerate(_normal(100 * len(windows), 4))]
    stream = _csv(tmp_path / "S.csv", {"entropy": entropy, "surprisal": _normal(len(entropy), 5)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["alarm"], verdict["unsteady"]) == (int(warned), False, ["entropy"] if warned else [])
    said = f"entropy: {sum(windows)} of {len(windows)} windows are beyond the threshold"
    assert any(warning.startswith(said) for warning in verdict["warnings"]) == warned
    assert not any(warning.startswith("surprisal:") for warning in verdict["warnings"])


@pytest.mark.parametrize(("each", "unsteady"), [(40, True), (2000, False)])
def test_few_requests_that_are_far_out_are_a_finding(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], each: int, unsteady: bool
) -> None:
    entropy = [1e6 if number % each == each - 1 else value for number, value in enumerate(_normal(6000, 4))]
    stream = _csv(tmp_path / "S.csv", {"entropy": entropy, "surprisal": _normal(6000, 5)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["alarm"], verdict["unsteady"]) == (int(unsteady), False, ["entropy"] if unsteady else [])
    far_out = "are beyond all of the reference's, where 0.20% are expected at most"
    assert any(far_out in text for text in verdict["warnings"]) == unsteady
    assert main(["drift", "--reference", str(built), "--stream", str(stream)]) == int(unsteady)
    said = "unsteady: entropy: no alarm by the rule, but more windows or values beyond the reference than chance gives\n"
    assert capsys.readouterr().out.startswith(said) == unsteady


@pytest.mark.parametrize("value", ["1e300", "-1e155", "3.5e38"])
def test_what_no_float32_holds_is_no_number(
    built: Path, reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    columns = {"entropy": [*_normal(600, 4), value], "surprisal": _normal(601, 5)}
    stream = _csv(tmp_path / "S.csv", columns)
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["check"], verdict["first_alarm_request"]) == (1, "nonfinite", 601)
    assert f"entropy, request 601: {float(value)} in a reference" in _refused(
        capsys, "drift", "--reference", stream, "--stream", reference
    )


def test_no_drift_says_which_shifts_so_few_requests_cannot_show(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(600, 4), "surprisal": _normal(600, 5)})
    assert main(["drift", "--reference", str(built), "--stream", str(stream)]) == 0
    assert capsys.readouterr().out.startswith(
        "no drift in 600 requests (too few requests to find a shift of: entropy by 0.5 sd, surprisal by 0.3 sd)"
    )


def test_a_pipe_is_no_reference(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe, which cannot be read twice" in _refused(
        capsys, "drift", "--reference", tmp_path / "pipe", "--stream", reference
    )


def test_where_a_reference_cannot_be_written_nothing_is_left(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "full.aieref"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        said = _refused(capsys, "baseline", "build", reference, "--output", target, "--model", "m")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert said == f"aie-agent baseline: {target}: File too large\n"
    assert list(tmp_path.glob("*full*")) == []


def test_days_are_at_the_streams_own_rate_and_fewer_than_promised_is_said(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rate = 5e7  # the longest run length that is claimed takes less than 30 days at it
    times = [f"{number / rate:.9f}" for number in range(600)]
    stream = _csv(tmp_path / "S.csv", {"time_s": times, "entropy": _normal(600, 3), "surprisal": _normal(600, 4)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert status == 0
    assert verdict["rate_is_of_stream"]
    assert verdict["requests_per_second"] == pytest.approx(rate, rel=0.01)
    assert verdict["run_length_days"] == pytest.approx(verdict["run_length_requests"] / verdict["requests_per_second"] / 86400)
    assert any(warning.startswith("not the 30 days that the reference was made for") for warning in verdict["warnings"])


def test_a_reference_that_says_nothing_gives_no_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    walk = [0.0]
    for step in _normal(1999, 1):
        walk.append(0.99 * walk[-1] + step)
    recorded = _csv(tmp_path / "R.csv", {"entropy": walk})
    assert main(["drift", "--reference", str(recorded), "--stream", str(recorded)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("not enough data: ")
    assert "entropy: not compared: not enough data" in out
    assert "no drift" not in out
    assert "false alarms:" not in out


@pytest.mark.parametrize(
    ("times", "options", "hours", "said"),
    [
        (None, [], None, "for an unknown time"),
        ([1.7e9 + 180 * row for row in range(600)], [], 29.95, "as in the 29.9 hours"),
        ([1.7e9 + row for row in range(600)], [], 599 / 3600, "how it changes with the time of day is not in it"),
        ([1.7e9 + row for row in range(600)], ["--hours", "48"], 48.0, "as in the 48 hours"),
        ([f"2026-11-29T{row}" for row in range(600)], [], None, "for an unknown time"),
    ],
)
def test_how_long_was_recorded_stands_beside_the_run_length(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    times: list[object] | None,
    options: list[str],
    hours: float | None,
    said: str,
) -> None:
    columns: dict[str, Sequence[object]] = {"entropy": _normal(600, 1)}
    recorded = _csv(tmp_path / "R.csv", columns if times is None else {"time_s": times} | columns)
    stream = _csv(tmp_path / "S.csv", columns)
    arguments = ["drift", "--reference", recorded, "--stream", stream, *options]
    assert main([*map(str, arguments)]) == 0
    (claim,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("false alarms")]
    assert said in claim
    _, verdict = _json(capsys, *arguments)
    assert verdict["reference_hours"] == (None if hours is None else pytest.approx(hours))
    assert any("holds for no other time of the day" in each for each in verdict["warnings"]) == (hours is None or hours < 24)
    assert main(["baseline", "build", str(recorded), "--output", str(tmp_path / "r"), "--model", "m", *options]) == 0
    assert said in next(line for line in capsys.readouterr().out.splitlines() if line.startswith("false alarms"))


@pytest.mark.parametrize("rows", [0, 1, 99, 499])
def test_too_few_requests_are_no_verdict(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], rows: int) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(rows, 4, 3.0), "surprisal": _normal(rows, 5, 3.0)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    is_unsteady = rows == 499  # four windows of four
    assert (status, verdict["alarm"], verdict["state"]) == (int(is_unsteady), False, "not_enough_data")


def test_nan_in_the_stream_is_an_alarm_at_once(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": [0.1, 0.2, "nan", 0.3], "surprisal": _normal(4, 5)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["first_alarm_request"], verdict["check"]) == (1, 3, "nonfinite")


def test_a_constant_stream_is_an_alarm(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns: dict[str, Sequence[object]] = {"entropy": _normal(60, 4) + [0.25] * 540, "surprisal": _normal(50, 5) + [0.5] * 550}
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", _csv(tmp_path / "S.csv", columns))
    assert (status, verdict["first_alarm_request"], verdict["check"], verdict["statistic"]) == (1, 160, "constant", "entropy")
    assert verdict["per_statistic"]["surprisal"]["first_alarm_request"] == 160


def test_one_statistic_that_is_constant_is_a_shift_and_no_collapse(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(600, 4), "surprisal": [0.5] * 600})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["first_alarm_request"], verdict["check"], verdict["statistic"]) == (1, 500, "ks", "surprisal")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "empty"),
        ("0.1,0.2\n0.3,0.4\n", "must be a header"),
        ("entropy,entropy\n1,2\n", "stands twice"),
        ("entropy\n1\n", "columns missing: surprisal"),
        ("entropy,surprisle\n1,2\n", "columns missing: surprisal (there are: entropy, surprisle)"),
        ("entropy,surprisal\n1\n", "line 2: 1 fields, the header has 2"),
        ("entropy,surprisal\n1,2\n3,abc\n", "line 3: surprisal: not a number: 'abc'"),
        ("entropy,surprisal\n1,1_000\n", "line 2: surprisal: not a number: '1_000'"),
        ("entropy,surprisal\n1,\n", "line 2: surprisal: not a number: ''"),
        ("entropy,surprisal,model\n1,2,a\n1,2,b\n", "of several models"),
        ('entropy,surprisal\n"1,2\n', "no CSV"),
    ],
)
def test_a_stream_that_cannot_be_read_is_refused(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    stream = tmp_path / "S.csv"
    stream.write_text(content)
    complaint = _refused(capsys, "drift", "--reference", built, "--stream", stream)
    assert str(stream) in complaint
    assert said in complaint


def test_what_is_no_text_or_not_there_is_refused(
    reference: Path, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"entropy,surprisal\n\xff\xfe\n")
    assert "not UTF-8" in _refused(capsys, "drift", "--reference", built, "--stream", binary)
    assert "No such file" in _refused(capsys, "drift", "--reference", built, "--stream", tmp_path / "none")
    assert "No such file" in _refused(capsys, "drift", "--reference", tmp_path / "none", "--stream", reference)
    assert "Is a directory" in _refused(capsys, "drift", "--reference", tmp_path, "--stream", reference)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"entropy": _normal(499, 1)}, "499 requests is too small"),
        ({"entropy": []}, "empty"),
        ({"entropy": ["nan", *_normal(999, 1)]}, "nan in a reference"),
        ({"entropy": [1.0, 2.0] * 500}, "2 distinct values"),
    ],
)
def test_a_reference_that_is_none_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], columns: dict[str, Sequence[object]], said: str
) -> None:
    path = _csv(tmp_path / "bad.csv", columns)
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(900, 4)})
    assert said in _refused(capsys, "drift", "--reference", path, "--stream", stream)


def test_a_file_written_elsewhere_is_read(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a byte order mark, CRLF, spaces in the header, empty lines, and a column of times."""
    rows = "".join(f"{at},{a},{b}\r\n" for at, (a, b) in enumerate(zip(_normal(600, 4), _normal(600, 5), strict=True)))
    stream = tmp_path / "S.csv"
    stream.write_text("\ufefftime_s, entropy ,surprisal\r\n\r\n" + rows + "\r\n", newline="")
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["requests"], verdict["state"]) == (0, 600, "ok")


def test_a_column_that_the_reference_does_not_have_is_told(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(600, 4), "surprisal": _normal(600, 5), "canary": _normal(600, 6, 9.0)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, set(verdict["per_statistic"])) == (0, {"entropy", "surprisal"})
    assert "not in the reference, and not compared: canary" in verdict["warnings"]


def _build(tmp_path: Path, recording: Path, name: str, *more: str) -> Path:
    path = tmp_path / name
    assert main(["baseline", "build", str(recording), "--output", str(path), *more]) == 0
    return path


def test_a_reference_is_built_shown_and_used(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = _build(tmp_path, reference, "m.aieref", "--model", "m", "--traffic-class", "chat")
    assert "model: m" in capsys.readouterr().out
    status, header = _json(capsys, "baseline", "show", built)
    assert (status, header["about"]["traffic_class"], header["requests"]) == (0, "chat", 1000)
    stream = _csv(tmp_path / "S.csv", {"entropy": _normal(900, 4), "surprisal": _normal(900, 5)})
    status, verdict = _json(capsys, "drift", "--reference", built, "--stream", stream)
    assert (status, verdict["reference_sha256"]) == (0, header["sha256"])
    # The same as of the CSV file that it was made of.
    _, of_csv = _json(capsys, "drift", "--reference", reference, "--stream", stream)
    assert of_csv["per_statistic"] == verdict["per_statistic"]


def test_a_reference_for_another_model_is_refused(
    reference: Path, built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "for the model 'm', the stream is of 'n'" in _refused(
        capsys, "drift", "--reference", built, "--stream", reference, "--model", "n"
    )
    unsaid = "the reference is for the model 'm'; of which the stream is, nothing says: give --model"
    for more, warned in (([], True), (["--model", "m"], False)):
        _, verdict = _json(capsys, "drift", "--reference", built, "--stream", reference, *more)
        assert (unsaid in verdict["warnings"]) == warned
    named = _csv(tmp_path / "n.csv", {"entropy": [1.0], "surprisal": [1.0], "model": ["n"]})
    assert "for the model 'm', the stream is of 'n'" in _refused(capsys, "drift", "--reference", built, "--stream", named)


def test_a_reference_is_never_overwritten(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    built = _build(tmp_path, reference, "m.aieref", "--model", "m")
    capsys.readouterr()
    before = built.read_bytes()
    assert "File exists" in _refused(capsys, "baseline", "build", reference, "--output", built, "--model", "m")
    assert built.read_bytes() == before


def test_replacing_is_explicit_and_keeps_the_old_one(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = _build(tmp_path, reference, "m.aieref", "--model", "m")
    recording = _csv(tmp_path / "new.csv", {"entropy": _normal(800, 7), "surprisal": _normal(800, 8)})
    new = _build(tmp_path, recording, "new.aieref", "--model", "m")
    other = _build(tmp_path, recording, "other.aieref", "--model", "n")
    capsys.readouterr()
    before = old.read_bytes()
    assert "for the model 'n', not 'm'" in _refused(capsys, "baseline", "replace", old, other)
    assert old.read_bytes() == before
    status, header = _json(capsys, "baseline", "replace", old, new)
    assert (status, header["requests"]) == (0, 800)
    assert old.read_bytes() == new.read_bytes()
    assert [path.read_bytes() for path in tmp_path.glob("m.aieref.*")] == [before]


def test_a_model_must_be_named(reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Give --model" in _refused(capsys, "baseline", "build", reference, "--output", tmp_path / "x")
    assert not (tmp_path / "x").exists()
