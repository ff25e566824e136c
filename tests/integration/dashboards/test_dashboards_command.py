"""`aie-agent dashboards`: from the source tree and from a wheel, and what it does with what is there already."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest
import yaml

import aie_dashboards
from aie_agent import cli
from tests.fakes.board_files import JSON_FILES

ROOT: Final = Path(__file__).parents[3]
_AS_INSTALLED: Final = """
import sys
import aie_dashboards
from aie_agent.cli import main
print(aie_dashboards.__file__)
sys.exit(main(["dashboards", "--export", sys.argv[1]]))
"""


def exported(directory: Path) -> set[str]:
    return {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}


EVERYTHING: Final = {f"json/{path.name}" for path in JSON_FILES} | {
    "provisioning/dashboards/aie.yaml",
    "provisioning/datasources/aie.yaml",
}


def test_everything_is_written_and_grafana_is_led_to_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "folder"
    assert cli.main(["dashboards", "--export", str(target)]) == 0
    assert exported(target) == EVERYTHING
    assert all((target / "json" / path.name).read_bytes() == path.read_bytes() for path in JSON_FILES)
    (provider,) = yaml.safe_load((target / "provisioning/dashboards/aie.yaml").read_text())["providers"]
    assert Path(provider["options"]["path"]) == target / "json"
    told = capsys.readouterr().out
    assert f"{len(EVERYTHING)} files written" in told
    assert "next: copy" in told


def test_the_path_in_a_container_is_anothers(tmp_path: Path) -> None:
    assert cli.main(["dashboards", "--export", str(tmp_path), "--seen-as", "/boards"]) == 0
    (provider,) = yaml.safe_load((tmp_path / "provisioning/dashboards/aie.yaml").read_text())["providers"]
    assert provider["options"]["path"] == "/boards/json"
    assert (provider["type"], provider["allowUiUpdates"]) == ("file", False)


def test_the_data_source_has_a_fixed_uid() -> None:
    (source,) = yaml.safe_load(aie_dashboards.files()[Path("provisioning/datasources/aie.yaml")])["datasources"]
    assert (source["type"], source["uid"]) == ("prometheus", "aie-prometheus")
    assert all(source["uid"] not in path.read_text() for path in JSON_FILES), "boards take any"


def test_a_second_time_is_no_change(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboards", "--export", str(tmp_path)]) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    assert cli.main(["dashboards", "--export", str(tmp_path)]) == 0
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before
    assert f"0 files written to {tmp_path}, {len(EVERYTHING)} were there already" in capsys.readouterr().out


def test_what_was_changed_is_not_overwritten_but_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changed = tmp_path / "json" / "aie-gpu.json"
    changed.parent.mkdir()
    changed.write_text("mine")
    assert cli.main(["dashboards", "--export", str(tmp_path)]) == 2
    assert exported(tmp_path) == {"json/aie-gpu.json"}, "nothing at all is written"
    assert changed.read_text() == "mine"
    assert f"{changed} differs" in capsys.readouterr().err
    assert cli.main(["dashboards", "--export", str(tmp_path), "--force"]) == 0
    assert exported(tmp_path) == EVERYTHING
    assert changed.read_text() != "mine"
    assert "1 replaced" in capsys.readouterr().out


def test_what_cannot_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "json").write_text("a file where the folder should be")
    assert cli.main(["dashboards", "--export", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("aie-agent dashboards: ")


def test_it_works_from_a_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    command = [sys.executable, "-c", _AS_INSTALLED, str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site")), "the wheel's, and not the tree's"
    assert exported(tmp_path / "out") == EVERYTHING
