"""The app against a real agent API on a real socket: it goes, comes back, hangs, sends rubbish; and every key does what it says."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import agent_api as fake
import msgspec
import pytest
from agent_api import AgentApi
from textual.pilot import Pilot

from aie_top import client, follower
from aie_top.app import TopApp
from aie_top.feed import Feed
from aie_top.rows import View
from aie_top.screens import MainScreen, PageScreen
from aie_top.targets import parse_target
from aie_top.widgets import LinesView

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same waits as in earnest, shorter."""
    monkeypatch.setattr(follower, "FIRST_BACKOFF_S", 0.05)
    monkeypatch.setattr(follower, "LONGEST_BACKOFF_S", 0.2)
    monkeypatch.setattr(client.follow, "__defaults__", (0.5,))


@asynccontextmanager
async def running(*urls: str, size: tuple[int, int] = (120, 40), **view: object) -> AsyncIterator[tuple[TopApp, Pilot[None]]]:
    feed = Feed([parse_target(url) for url in urls], interval_s=0.25)
    app = TopApp(feed, View(**view))  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        yield app, pilot


def text_of(app: TopApp) -> str:
    """What stands on the screen, as text: what was drawn, not what should be."""
    lines = []
    for widget in app.screen.query(LinesView):
        if widget.display:
            lines += ["".join(segment.text for segment in widget.render_line(y)) for y in range(widget.size.height)]
    return "\n".join(lines)


async def until(app: TopApp, pilot: Pilot[None], holds: Callable[[str], bool]) -> str:
    end = time.monotonic() + PATIENCE_S
    while not holds(text_of(app)):
        assert time.monotonic() < end, f"still:\n{text_of(app)}"
        await pilot.pause(0.02)
    return text_of(app)


def live(shown: str) -> bool:
    return "● live" in shown and "smollm2" in shown


async def test_it_shows_what_the_agent_sends_and_goes_on() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            first = (await until(app, pilot, live)).splitlines()[0]
            await until(app, pilot, lambda shown: live(shown) and shown.splitlines()[0] != first)


async def test_an_agent_that_goes_is_named_its_data_kept_and_found_again() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            api.stop()
            shown = await until(app, pilot, lambda shown: f"agent at {api.url} is away: connection refused; retrying" in shown)
            assert "stale" in shown
            assert "smollm2" in shown
            api.start()
            shown = await until(app, pilot, live)
            assert "stale" not in shown
            assert "nothing wrong" in shown


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("garbage", "is no snapshot"),
        ("hang", "no data for 0.5 s"),
        ("error", "status 503"),
        ("page", "text/html instead of events"),
        ("huge", "more than 8 MiB"),
        ("cut", "broke off in the middle"),
    ],
)
async def test_whatever_an_agent_does_is_one_clear_line_and_passes(behaviour: fake.Behaviour, reason: str) -> None:
    with AgentApi(fake.healthy) as api:
        api.behaviour = behaviour
        async with running(api.url) as (app, pilot):
            await until(app, pilot, lambda shown: reason in shown and "away" in shown)
            api.behaviour = "ok"
            await until(app, pilot, live)


async def test_another_version_of_the_api_is_said() -> None:
    with AgentApi(lambda tick: fake.snapshot(tick, version=7)) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, lambda shown: "version 7" in shown and "update aie-top" in shown)


async def test_basic_auth_comes_from_the_url_and_is_never_shown() -> None:
    with AgentApi(fake.healthy, user="sre", password="s3cret/") as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, lambda shown: "401" in shown)
        with_credentials = api.url.replace("http://", "http://sre:s3cret%2F@")
        async with running(with_credentials, "127.0.0.1:1") as (app, pilot):
            shown = await until(app, pilot, lambda shown: "smollm2" in shown and "1 of 2 away" in shown)
            assert "s3cret" not in shown


async def test_a_hanging_agent_does_not_hold_up_the_other() -> None:
    with AgentApi(fake.healthy) as good, AgentApi(fake.healthy) as bad:
        bad.behaviour = "hang"
        async with running(good.url, bad.url) as (app, pilot):
            clocks: set[str] = set()

            def three_pictures(shown: str) -> bool:
                clocks.add(app.arranged.clock)
                return len(clocks) > 3 and "1 of 2 away" in shown

            await until(app, pilot, three_pictures)


async def test_a_screen_that_is_behind_shows_the_newest_frame_and_leaves_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("127.0.0.1:1", size=(80, 24)) as (app, pilot):
        app._source.stop()
        await pilot.pause()
        frames = [msgspec.structs.replace(app.arranged, clock=f"12:00:{second:02}") for second in range(50)]
        seen: list[str] = []
        monkeypatch.setattr(app, "_show", lambda: seen.append(app._latest.clock))
        for one in frames:  # no await: the screen has no time to look
            app._deliver(one)
        await pilot.pause()
        assert seen == ["12:00:49"]
        app._deliver(frames[0])
        await pilot.pause()
        assert seen == ["12:00:49", "12:00:00"]


async def test_pause_freezes_and_goes_on() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            await pilot.press("p")
            await until(app, pilot, lambda shown: "PAUSED" in shown)
            await asyncio.sleep(0.2)  # what was drawn half is drawn whole
            frozen = text_of(app)
            await asyncio.sleep(0.6)
            assert text_of(app) == frozen
            await pilot.press("space")
            await until(app, pilot, lambda shown: live(shown) and "PAUSED" not in shown and shown != frozen)


async def test_sort_reverse_and_the_cursor_stays_on_its_engine() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            assert [row.engine.name for row in app.arranged.engines] == ["embedder", "smollm2"]
            await pilot.press("j", "S")
            assert [row.engine.name for row in app.arranged.engines] == ["smollm2", "embedder"]
            assert isinstance(app.screen, MainScreen)
            assert app.screen.cursor.key("engines")[1] == "smollm2"
            await pilot.press("s", "s", "s")
            assert app.view.sort == "requests"
            assert "▾REQ/S" in text_of(app)


async def test_filter_narrows_while_typing_q_is_a_letter_there_and_esc_clears() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url, size=(80, 24)) as (app, pilot):
            await until(app, pilot, live)
            await pilot.press("slash", *"smo")
            assert [row.engine.name for row in app.arranged.engines] == ["smollm2"]
            await pilot.press("q")
            assert app.is_running
            assert app.view.filter == "smoq"
            assert "no engine matches" in text_of(app)
            await pilot.press("backspace", "enter")
            assert "filter: smo" in text_of(app)
            await pilot.press("escape")
            assert app.view.filter == ""
            assert len(app.arranged.engines) == 2


async def test_enter_opens_what_is_under_the_cursor_in_each_panel_and_esc_comes_back() -> None:
    with AgentApi(fake.troubled) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            for wanted in ("ENGINE embedder", "ENGINE embedder", "HOST gpu-07", "WHAT IS WRONG"):
                await pilot.press("enter")
                assert isinstance(app.screen, PageScreen)
                assert wanted in await until(app, pilot, lambda shown, wanted=wanted: wanted in shown)  # type: ignore[misc]
                await pilot.press("escape", "tab")
                assert isinstance(app.screen, MainScreen)


@pytest.mark.parametrize("size", [(40, 12), (80, 24), (10, 3), (1, 1), (200, 60)])
@pytest.mark.parametrize("keys", [[], ["question_mark"], ["enter"], ["p"], ["slash", "escape"], ["ctrl+p", "escape"]])
async def test_q_quits_everywhere(size: tuple[int, int], keys: list[str]) -> None:
    async with running("127.0.0.1:1", size=size) as (app, pilot):
        await pilot.press(*keys, "q")
        await pilot.pause()
        assert not app.is_running


async def test_ctrl_q_quits_out_of_the_filter_and_the_palette() -> None:
    for keys in (["slash", "x"], ["ctrl+p"]):
        async with running("127.0.0.1:1") as (app, pilot):
            await pilot.press(*keys, "ctrl+q")
            await pilot.pause()
            assert not app.is_running


async def test_any_size_on_the_way_keeps_the_values_and_their_units() -> None:
    with AgentApi(lambda _tick: fake.healthy(3)) as api:
        async with running(api.url, size=(200, 60)) as (app, pilot):
            await until(app, pilot, live)
            for size in ((40, 12), (3, 2), (120, 40), (80, 24), (200, 60), (80, 5)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                shown = text_of(app)
                if size[0] >= 40:
                    assert "184 ms" in shown
                if size[1] >= 12:
                    assert "1.20 GiB" in shown


async def test_themes_go_round_and_the_palette_has_the_commands() -> None:
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            seen = [app.theme]
            for _ in range(3):
                await pilot.press("t")
                seen.append(app.theme)
            assert seen == ["dark", "light", "ansi", "dark"]
            await pilot.press("ctrl+p", *"pause", "enter")
            await until(app, pilot, lambda shown: "PAUSED" in shown)


async def test_a_picture_is_saved_where_the_user_stands(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathlib import Path

    assert isinstance(tmp_path, Path)
    monkeypatch.chdir(tmp_path)
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await until(app, pilot, live)
            await pilot.press("ctrl+s")
            await pilot.pause()
    (picture,) = tmp_path.glob("aie-top-*.svg")
    assert "smollm2" in picture.read_text(encoding="utf-8")


async def test_quitting_does_not_wait_for_a_dead_name_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_arguments: object) -> list[object]:
        answered.wait(60)
        return []

    monkeypatch.setattr(client, "_addresses", slow)
    async with running("name.invalid:9465") as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert not app.is_running
    assert not answered.is_set()
    answered.set()


def test_only_what_changed_is_drawn_anew() -> None:
    from aie_top.text import Span, line
    from aie_top.widgets import changed_regions

    before = [line("a ", Span("1.00", "normal"), " z"), line("same")]
    after = [line("a ", Span("1.01", "normal"), " z"), line("same")]
    (region,) = changed_regions(before, after, 80)
    assert (region.x, region.y, region.width, region.height) == (2, 0, 4, 1)
    assert not list(changed_regions(after, after, 80))


async def test_a_frame_that_comes_while_it_shuts_down_is_not_painted() -> None:
    """The screens lose their parts first, and the feed ends after them."""
    with AgentApi(fake.healthy) as api:
        async with running(api.url) as (app, pilot):
            await pilot.press("question_mark")
            await pilot.pause()
        painted = app.arranged
        app._deliver(app._latest)
        app.on_top_app_arrived(app.Arrived())
        assert app.arranged is painted
