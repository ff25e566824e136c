"""The file that tells engines to degrade: who can read it, and what is not written through."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from aie_agent.outputs.degrade import DegradeFile
from aie_telemetry.api import Finding

DRIFT = Finding(cause="output_drift", subject="e", severity="warning", since_s=5.0, summary="its answers look different")
NOBODY = 65534


@pytest.fixture
def strict_umask() -> Iterator[None]:
    """That of the shipped unit."""
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
@pytest.mark.skipif(os.geteuid() != 0, reason="runs a process of another user")
def test_an_engine_of_another_user_can_read_it() -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(directory, "degraded")
        DegradeFile(path).update([DRIFT], 1.0)
        read = subprocess.run(["cat", path], user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=True)
    assert msgspec.json.decode(read.stdout)["cause"] == "output_drift"


@pytest.mark.usefixtures("strict_umask")
def test_it_is_for_everybody_to_read_and_for_nobody_else_to_write(tmp_path: Path) -> None:
    path = tmp_path / "degraded"
    DegradeFile(path).update([DRIFT], 1.0)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path = tmp_path / "degraded"
    (tmp_path / "degraded.new").symlink_to(victim)
    DegradeFile(path).update([DRIFT], 1.0)
    assert victim.read_text() == "precious"
    assert msgspec.json.decode(path.read_bytes())["engine"] == "e"
