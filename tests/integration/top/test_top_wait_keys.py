"""The key for waits, their panel under the mouse, and `--once` and `--json` of them, against a real agent API on a real socket."""

from __future__ import annotations

import json
import subprocess
import sys

import agent_api as fake
import agent_waits
import msgspec
from agent_api import AgentApi
from test_top_gpu_keys import app_for, text_of, until

from aie_telemetry.api import Snapshot
from aie_top.screens import MainScreen, PageScreen
from aie_top.widgets import LinesView


def run(*options: str) -> str:
    command = [sys.executable, "-m", "aie_top", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


async def test_b_shows_what_blocks_each_engine_and_escape_goes_back() -> None:
    with AgentApi(agent_waits.fights) as api:
        app = app_for(api)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, "TO 8 THREADS")
            await pilot.press("b")
            shown = await until(app, pilot, "no CPU")
            assert isinstance(app.screen, PageScreen)
            assert "tokenizer.py:118 (encode)" in shown
            assert "reranker: waits, locks and CUDA (privilege" in shown
            await pilot.press("escape")
            assert isinstance(app.screen, MainScreen)


async def test_a_click_on_a_bar_and_enter_open_that_engine() -> None:
    with AgentApi(agent_waits.fights) as api:
        app = app_for(api)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(app, pilot, "TO 8 THREADS")
            panel = app.screen.query_one("#waits", LinesView)
            row = next(y for y in range(panel.size.height) if "llama" in "".join(one.text for one in panel.render_line(y)))
            await pilot.click("#waits", offset=(60, row))
            await pilot.press("enter")
            await until(app, pilot, "ENGINE llama-70b")
            await pilot.press("end")
            await until(app, pilot, "cuMemHostRegister")


async def test_the_panel_goes_when_nothing_is_seen_any_more() -> None:
    with AgentApi(agent_waits.fights) as api:
        app = app_for(api)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, "TO 8 THREADS")
            api.snapshots = fake.healthy
            for _ in range(1000):
                if "TO 8 THREADS" not in text_of(app):
                    break
                await pilot.pause(0.01)
            assert "TO 8 THREADS" not in text_of(app)
            await pilot.press("b")
            assert "no lock" not in await until(app, pilot, "not seen")


def test_once_prints_bars_and_locks() -> None:
    with AgentApi(agent_waits.fights) as api:
        printed = run("--once", "--connect", api.url)
    assert "0 TO 8 THREADS" in printed
    assert "prefix_cache.py:204 (lookup)" in printed
    assert max(map(len, printed.splitlines())) <= 80


def test_json_has_them_as_the_agent_sent_them() -> None:
    with AgentApi(agent_waits.fights) as api:
        line = json.loads(run("--once", "--json", "--connect", api.url))
    told = msgspec.convert(line["snapshot"], Snapshot)
    assert told.engines == agent_waits.fights(0).engines
    assert line["snapshot"]["engines"][0]["waits"]["gil"] == agent_waits.fights(0).engines[0].waits.gil  # type: ignore[union-attr]
