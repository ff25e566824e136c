"""A GPU at rest stays at rest: what the agent asks costs no watts, or can be switched off.

Counters that are sampled may keep a GPU from resting (an A100 at 100 W and not 50 W, with the profiling of another exporter). The
stand-in draws `power_profiled_mw` for 2 s after each sample; whether a board does, only a board can tell.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aie_agent.simulate import PROFILES, Controller
from aie_agent.sources.nvml.source import NvmlSource
from tests.integration.agent import nvml_host as host

AWAKE_W = 150.0
LOOKS = 8
GPM_INTERVAL_S = 0.11


async def watts(at: NvmlSource, gpus: Controller) -> list[float]:
    """The power that the agent shows, look by look, a second of the GPU's time apart."""
    shown = []
    for _ in range(LOOKS):
        shown.append((await host.look(at))["aie_gpu_power_watts", "0"])
        gpus.advance(1.0)
        await asyncio.sleep(GPM_INTERVAL_S)
    return shown


@pytest.mark.parametrize(
    ("profile", "gpm", "samples"),
    [("A100", True, False), ("A100", False, False), ("H100", False, False), ("B200", False, False), ("H100", True, True)],
)
async def test_a_gpu_at_rest_is_only_kept_awake_by_gpm_and_only_where_it_is_on(
    tmp_path: Path, profile: str, gpm: bool, samples: bool
) -> None:
    with host.simulated(tmp_path / "gpus", 1, profile) as gpus:
        gpus.set(0, power_profiled_mw=round(AWAKE_W * 1000))
        at = host.source(host.section(gpm=gpm))
        shown = await watts(at, gpus)
        rests = PROFILES[profile].power_idle_w
        assert shown[0] == rests, "the first look comes before the first sample"
        assert set(shown[1:]) == {AWAKE_W if samples else rests}
        assert bool(gpus.calls("nvmlGpmSampleGet")) == samples
        await at.close()


async def test_given_back_it_lets_the_gpu_rest(tmp_path: Path) -> None:
    with host.simulated(tmp_path / "gpus", 1, "H100") as gpus:
        gpus.set(0, power_profiled_mw=round(AWAKE_W * 1000))
        at = host.source()
        assert (await watts(at, gpus))[-1] == AWAKE_W
        at.release()
        calls = gpus.call_counts()
        for _ in range(3):
            assert "given back" in await host.reason(at)
            gpus.advance(1.0)
        after = gpus.call_counts()
        assert {name for name in after if after[name] != calls.get(name, 0)} == {"nvmlGpmSampleFree", "nvmlShutdown"}
        at.release()
        assert (await host.look(at))["aie_gpu_power_watts", "0"] == PROFILES["H100"].power_idle_w
        await at.close()
