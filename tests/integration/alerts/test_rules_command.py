"""`aie-agent rules`, as it stands in the tree and as it comes in a wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

import aie_alerts
from aie_agent import cli

ROOT: Final = Path(__file__).parents[3]


def exported(directory: Path) -> dict[Path, str]:
    return {path.relative_to(directory): path.read_text() for path in sorted(directory.rglob("*")) if path.is_file()}


def test_everything_is_copied_and_the_next_step_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--export", str(tmp_path / "out")]) == 0
    assert exported(tmp_path / "out") == aie_alerts.files()
    assert f"rule_files: ['{tmp_path / 'out' / 'rules'}/*.yaml']" in capsys.readouterr().out


def test_what_was_changed_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--export", str(tmp_path)]) == 0
    changed = tmp_path / "rules" / "slo.yaml"
    changed.write_text("groups: []\n")
    assert cli.main(["rules", "--export", str(tmp_path)]) == 2
    assert str(changed) in capsys.readouterr().err
    assert changed.read_text() == "groups: []\n"
    assert cli.main(["rules", "--export", str(tmp_path), "--force"]) == 0
    assert exported(tmp_path) == aie_alerts.files()


def test_another_address_and_another_pace(tmp_path: Path) -> None:
    assert cli.main(["rules", "--export", str(tmp_path), "--runbooks", "https://wiki.example/aie", "--time-scale", "60"]) == 0
    assert exported(tmp_path) == aie_alerts.files("https://wiki.example/aie", 60.0)


def test_a_pace_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rules", "--export", str(tmp_path / "out"), "--time-scale", "0"]) == 2
    assert "time scale" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_from_a_wheel(tmp_path: Path) -> None:
    """The pages of causes stand elsewhere in the tree than in a wheel, and must be in it. No YAML parser is asked for."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            tmp_path / "site", [name for name in archive.namelist() if name.endswith((".py", ".md", ".yaml", ".json"))]
        )
    script = (
        "import sys; sys.modules['yaml'] = None\n"
        "import aie_alerts, aie_agent.cli\n"
        "print(aie_alerts.__file__)\n"
        f"sys.exit(aie_agent.cli.main(['rules', '--export', {str(tmp_path / 'out')!r}]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "site" / "aie_alerts"))
    assert exported(tmp_path / "out") == aie_alerts.files()
