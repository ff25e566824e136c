"""What the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a StatsD socket may be made, in a directory that is yet to be made."""
    return tmp_path / "aie" / "statsd.sock"
