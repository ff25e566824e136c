"""Fixtures of all tests: what the host offers, and ports and processes that clean up after themselves."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import hypothesis
import pytest

# The same examples at every run of CI, so that it judges the change and not the dice; new ones on a developer's machine.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# Where `make setup-system` puts what it takes out of Debian packages.
SYSTEM_BIN = Path("/usr/local/lib/aie/bin")


def _missing(what: str) -> None:
    """Skips on a developer's machine; fails where AIE_REQUIRE_SYSTEM says that everything must be there, as CI does."""
    if os.environ.get("AIE_REQUIRE_SYSTEM"):
        pytest.fail(f"{what} is missing, and AIE_REQUIRE_SYSTEM is set: run make setup-system")
    pytest.skip(f"{what} is missing: make setup-system")


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of promtool."""
    found = shutil.which("promtool", path=f"{SYSTEM_BIN}:{os.environ.get('PATH', '')}")
    if found is None:
        _missing("promtool")
    assert found is not None
    return found
