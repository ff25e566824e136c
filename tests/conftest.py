"""Fixtures of all tests: what the host offers, and ports and processes that clean up after themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import hypothesis
import pytest

# The same examples at every run of CI, so that it judges the change and not the dice; new ones on a developer's machine.
hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("local", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "local")

# Tests that stay in one process, one after the other, where the suite runs in several: they share what takes long to make, or look
# at what is there once on a host. All others go by file. The longest come first, so that none is waited for at the end.
_LANES = (
    ("probes", ("integration/ebpf/", "integration/agent/test_bpf_", "e2e/test_probes")),
    ("e2e", ("e2e/",)),
    ("model", ("integration/engine/",)),
)
_TESTS = Path(__file__).parent
_PROBES = tuple(f"tests/{start}" for start in _LANES[0][1])

# Where `make setup-system` puts what it takes out of Debian packages.
SYSTEM_BIN = Path("/usr/local/lib/aie/bin")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Generator[None, None, None]:
    """Says which tests stay together (`make unit` runs several processes), and puts the lanes first. A wrapper, since xdist reads
    the groups before any other hook."""
    order = {}
    for item in items:
        path = item.path.relative_to(_TESTS).as_posix()
        place, lane = next(
            ((place, name) for place, (name, starts) in enumerate(_LANES) if path.startswith(starts)), (len(_LANES), path)
        )
        order[item] = place
        if item.get_closest_marker("xdist_group") is None:  # some say with whom they share the host
            item.add_marker(pytest.mark.xdist_group(lane))
    items.sort(key=order.__getitem__)
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where AIE_REQUIRE_SYSTEM says that everything must be there, as CI does, a skip is a failure: it proves nothing. So it is
    where AIE_REQUIRE_BPF says so of all that probes need."""
    report = yield
    needs = ("AIE_REQUIRE_SYSTEM", *(("AIE_REQUIRE_BPF",) if report.nodeid.startswith(_PROBES) else ()))
    said = next((name for name in needs if os.environ.get(name)), None)
    if report.skipped and said is not None:
        report.outcome = "failed"
        report.longrepr = f"skipped, and {said} is set: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def promtool() -> str:
    """The path of promtool."""
    found = shutil.which("promtool", path=f"{SYSTEM_BIN}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip("promtool is missing: make setup-system")
    return found


@pytest.fixture(scope="session")
def bpf() -> None:
    """Asks for eBPF: all of its prerequisites. Where AIE_REQUIRE_BPF is set, as in CI, it is a failure that they are not met."""
    from aie_ebpf import prerequisites

    unmet = [f"{each.name}: {each.found}; {each.remedy}" for each in prerequisites.unmet(prerequisites.check())]
    if unmet and os.environ.get("AIE_REQUIRE_BPF"):
        pytest.fail(f"AIE_REQUIRE_BPF is set: {unmet}")
    if unmet:
        pytest.skip(f"eBPF cannot be used here: {unmet}")
