"""The rules before a real promtool: they are valid at every pace, and behave as their tests say."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aie_alerts.scale import scaled
from aie_telemetry.xids import XIDS
from tests.fakes.alert_files import RULE_FILES, TEST_FILES, named_causes

UNKNOWN_XID = 999
ASKS_FOR = {
    "Restart": "restart_engine",
    "Look at PCIe": "check_link",
    "Look at nvidia-smi": "check_link",
    "Look at the XID": "none",
    "Update": "update_driver",
    "Stop what runs": "reset_gpu",
    "Reset the GPU": "reset_gpu",
    "Nothing at once. Reset the GPU at the next chance": "reset_gpu",
    "Nothing at once. Reset the GPU when convenient": "watch",
    "Nothing at once.": "none",
    "Have the GPU checked; work may go on": "watch",
    "Watch it": "watch",
    "Connect the power": "check_power",
    "Switch the host off": "check_power",
    "Reboot": "reboot_host",
    "Do what its line": "read_kernel_log",
}
"""How the catalogue's advice on a number begins, and the word of the alert's `action`; the longest that fits."""
GPU_RULES = next(path for path in RULE_FILES if path.stem == "gpu")


def run(*arguments: object) -> None:
    """promtool, which must find nothing wrong."""
    environment = {**os.environ, "GOGC": "400"}  # its garbage collector takes a third of its time
    done = subprocess.run(
        [str(each) for each in arguments], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_are_valid(promtool: str, tmp_path: Path) -> None:
    at_other_paces = []
    for by in (60, 100_000):
        for path in RULE_FILES:
            copy = tmp_path / f"{path.stem}-{by}.yaml"
            copy.write_text(scaled(path.read_text(), by))
            at_other_paces.append(copy)
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *RULE_FILES)
    run(promtool, "check", "rules", "--lint=all", "--lint-fatal", *at_other_paces)


def as_test(rules: list[Path], series: dict[str, str], query: str, samples: dict[str, float]) -> dict[str, Any]:
    """A test of promtool (JSON is YAML): series with a value each minute, and what a query says after a quarter of an hour."""
    return {
        "rule_files": [str(path) for path in rules],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": each, "values": values} for each, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "15m",
                        "exp_samples": [{"labels": key, "value": value} for key, value in samples.items()],
                    }
                ],
            }
        ],
    }


def asks_for(advice: str) -> str:
    """The word for an advice of the catalogue."""
    return ASKS_FOR[max((begin for begin in ASKS_FOR if advice.startswith(begin)), key=len)]


def of_xids() -> dict[str, Any]:
    """Each number of the catalogue, and one that it does not have: the alert of its family, with its severity and action."""
    known = {xid.number: (f"AieGpuXid{xid.blame.capitalize()}", xid.severity, asks_for(xid.action)) for xid in XIDS}
    expected = known | {UNKNOWN_XID: ("AieGpuXidUnknown", "warning", "investigate")}
    return as_test(
        [GPU_RULES],
        {f'aie_gpu_xid_errors_total{{job="aie", instance="host", gpu="0", xid="{number}"}}': "0x11 1x10" for number in expected},
        'count by (alertname, severity, action, xid) (ALERTS{alertname=~"AieGpuXid.+", alertstate="firing"})',
        {
            f'{{alertname="{name}", severity="{severity}", action="{action}", xid="{number}"}}': 1
            for number, (name, severity, action) in expected.items()
        },
    )


def of_first_xids() -> dict[str, Any]:
    """The same where a number was never seen before: its series begins at 1, and says when it was (in the twelfth minute)."""
    made = of_xids()
    (test,) = made["tests"]
    first = {each["series"]: "_x11 1x10" for each in test["input_series"]}
    times = {each.replace("errors_total", "last_timestamp_seconds"): "_x11 660x10" for each in first}
    test["input_series"] = [{"series": each, "values": values} for each, values in (first | times).items()]
    return made


def of_findings() -> dict[str, Any]:
    """Each cause that an alert names, at each severity: information is no alert, and the rest keeps its severity."""
    named = named_causes()
    assert named
    return as_test(
        list(RULE_FILES),
        {
            f'aie_finding{{job="aie", instance="host", cause="{cause}", severity="{severity}", subject="x"}}': "0x11 1x10"
            for _, cause in named
            for severity in ("info", "warning", "critical")
        },
        'count by (alertname, cause, severity) (ALERTS{cause!="", alertstate="firing"})',
        {
            f'{{alertname="{name}", cause="{cause}", severity="{severity}"}}': 1
            for name, cause in named
            for severity in ("warning", "critical")
        },
    )


@pytest.mark.parametrize("path", TEST_FILES, ids=lambda path: path.stem)
def test_alerts_behave_as_their_tests_say(promtool: str, path: Path) -> None:
    run(promtool, "test", "rules", path)


@pytest.mark.parametrize("made", [of_xids, of_first_xids, of_findings])
def test_alerts_of_tables(promtool: str, tmp_path: Path, made: Callable[[], dict[str, Any]]) -> None:
    (tmp_path / "made.json").write_text(json.dumps(made()))
    run(promtool, "test", "rules", tmp_path / "made.json")


@pytest.mark.parametrize(
    ("old", "new"), [("          > 0", "          > 5"), ("[10m]", "[1h]"), ("add_memory", "add_disk"), ("for: 0s", "for: 1h")]
)
def test_tests_of_promtool_see_a_broken_rule(promtool: str, tmp_path: Path, old: str, new: str) -> None:
    rules, tests = (next(path for path in paths if path.stem == "host").read_text() for paths in (RULE_FILES, TEST_FILES))
    assert old in rules
    (tmp_path / "rules.yaml").write_text(rules.replace(old, new))
    (tmp_path / "tests.yaml").write_text(tests.replace("../aie_alerts/rules/host.yaml", "rules.yaml"))
    done = subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yaml")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "AieHostOomKill" in done.stdout + done.stderr
