"""The alert of a GPU near its heat limit, and the finding of the same: of what stays as it is, both say the same.

The alert looks at five minutes of scrapes, the finding at seconds: of what changes meanwhile they may differ.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

from aie_agent.analysis.gpu_causes.clocks import gpu_clocks
from tests.fakes.agent_gpus import gpu
from tests.fakes.alert_files import RULE_FILES
from tests.fakes.cause_world import BEGIN_S, CauseWorld

HIGHEST_HERTZ: Final = 2e9
GPU_RULES: Final = next(path for path in RULE_FILES if path.stem == "gpu")


class Warm(NamedTuple):
    """What is known of a GPU whose driver gives sw_thermal as the reason: None is not known. `clock` is a share of the highest."""

    utilization: float | None
    clock: float | None
    has_highest: bool
    is_capped: bool


UTILIZATIONS: Final = (None, 0.3, 0.49, 0.51)
WARM: Final = {
    f"host{number}": Warm(*each)
    for number, each in enumerate(
        itertools.product(UTILIZATIONS, (None, 0.55, 0.62, 0.74, 0.76, 0.98), (False, True), (False, True))
    )
}


def found(warm: Warm) -> str:
    """The severity of the finding."""
    events = ("sw_thermal", "sw_power_cap")[: 1 + warm.is_capped]
    hertz, highest = warm.clock and warm.clock * HIGHEST_HERTZ, HIGHEST_HERTZ if warm.has_highest else None
    hot = gpu(
        clock_events=events,
        clock_events_since_s=dict.fromkeys(events, BEGIN_S - 900.0),
        utilization_ratio=warm.utilization,
        sm_clock_hertz=hertz,
        sm_clock_max_hertz=highest,
    )
    (only,) = CauseWorld(gpus=[hot]).subjects(gpu_clocks)
    return only.severity


def series(instance: str, warm: Warm) -> list[dict[str, str]]:
    def one(name: str, value: float, more: str = "") -> dict[str, str]:
        return {"series": f'{name}{{job="aie", instance="{instance}", gpu="0"{more}}}', "values": f"{value}x60"}

    made = [
        one("aie_gpu_clock_event_active", 1, ', reason="sw_thermal"'),
        one("aie_gpu_clock_event_active", int(warm.is_capped), ', reason="sw_power_cap"'),
    ]
    if warm.utilization is not None:
        made.append(one("aie_gpu_utilization_ratio", warm.utilization))
    if warm.clock is not None:
        made.append(one("aie_gpu_clock_hertz", warm.clock * HIGHEST_HERTZ, ', clock="sm"'))
    if warm.has_highest:
        made.append(one("aie_gpu_clock_max_hertz", HIGHEST_HERTZ, ', clock="sm"'))
    return made


def of(utilization: float | None) -> dict[str, Any]:
    """A test of promtool, of those that are so busy: it loads no more than ten thousand values at once."""
    hosts = {instance: warm for instance, warm in WARM.items() if warm.utilization == utilization}
    return {
        "interval": "15s",
        "input_series": [each for instance, warm in hosts.items() for each in series(instance, warm)],
        "promql_expr_test": [
            {
                "expr": 'count by (instance) (ALERTS{alertname="AieGpuThrottled", alertstate="firing"})',
                "eval_time": "12m",
                "exp_samples": [
                    {"labels": f'{{instance="{instance}"}}', "value": 1}
                    for instance, warm in hosts.items()
                    if found(warm) == "warning"
                ],
            }
        ],
    }


def test_the_alert_of_heat_is_of_what_the_finding_warns_of(promtool: str, tmp_path: Path) -> None:
    assert {found(warm) for warm in WARM.values()} == {"info", "warning"}
    tests = [of(utilization) for utilization in UTILIZATIONS]
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"rule_files": [str(GPU_RULES)], "evaluation_interval": "15s", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
