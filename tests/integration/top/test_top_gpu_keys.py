"""The keys and the mouse on GPUs, against a real agent API on a real socket."""

from __future__ import annotations

import agent_api as fake
import agent_gpus
import msgspec
from agent_api import AgentApi
from textual.pilot import Pilot

from aie_telemetry.api import Snapshot
from aie_top.app import TopApp
from aie_top.feed import Feed
from aie_top.rows import View
from aie_top.screens import MainScreen, PageScreen
from aie_top.targets import parse_target
from aie_top.widgets import LinesView


def with_gpus(tick: int) -> Snapshot:
    return msgspec.structs.replace(fake.healthy(tick), gpus=agent_gpus.troubled(8, tick, simulated=True))


def app_for(api: AgentApi) -> TopApp:
    return TopApp(Feed([parse_target(api.url)], interval_s=0.25), View())


def text_of(app: TopApp) -> str:
    shown = [widget for widget in app.screen.query(LinesView) if widget.display]
    return "\n".join(
        "".join(segment.text for segment in widget.render_line(y)) for widget in shown for y in range(widget.size.height)
    )


async def until(app: TopApp, pilot: Pilot[None], words: str) -> str:
    for _ in range(1000):
        if words in text_of(app):
            return text_of(app)
        await pilot.pause(0.01)
    raise AssertionError(f"no {words!r} in:\n{text_of(app)}")


async def test_u_opens_the_gpu_under_the_cursor_then_the_next_one_and_escape_goes_back() -> None:
    with AgentApi(with_gpus) as api:
        app = app_for(api)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, "GPUS (SIM)")
            await pilot.press("u")
            await until(app, pilot, "GPU 0: NVIDIA H100 80GB HBM3, simulated")
            await pilot.press("u")
            await until(app, pilot, "held down by    hw_thermal")
            await pilot.press("escape")
            assert isinstance(app.screen, MainScreen)


async def test_w_lists_every_process_that_holds_a_gpu() -> None:
    with AgentApi(with_gpus) as api:
        app = app_for(api)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, "GPUS (SIM)")
            await pilot.press("w")
            shown = await until(app, pilot, "▲ orphan")
            assert isinstance(app.screen, PageScreen)
            assert "└ python train.py --rank 0" in shown


async def test_a_click_on_a_gpu_puts_the_cursor_there_and_enter_opens_it() -> None:
    with AgentApi(with_gpus) as api:
        app = app_for(api)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(app, pilot, "GPUS (SIM)")
            panel = app.screen.query_one("#gpus", LinesView)
            row = next(y for y in range(panel.size.height) if "LOST" in "".join(one.text for one in panel.render_line(y)))
            await pilot.click("#gpus", offset=(5, row))
            await pilot.press("enter")
            await until(app, pilot, "GPU 3: NVIDIA H100 80GB HBM3, simulated")


async def test_without_gpus_u_says_so_and_opens_nothing() -> None:
    with AgentApi(fake.healthy) as api:
        app = app_for(api)
        async with app.run_test(size=(120, 40)) as pilot:
            await until(app, pilot, "smollm2")
            await pilot.press("u")
            await pilot.pause()
            assert isinstance(app.screen, MainScreen)
            assert any("no GPU is seen" in note.message for note in app._notifications)
