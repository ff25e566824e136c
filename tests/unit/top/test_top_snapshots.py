"""What it looks like, at four sizes. After a change that is meant: pytest tests/unit/top --snapshot-update, and look."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import agent_api as fake
import agent_gpus
import msgspec
import pytest
from textual.pilot import Pilot

from aie_top.app import TopApp
from aie_top.model import build_frame
from aie_top.rows import AgentState, Frame

SIZES = [(40, 12), (80, 24), (120, 40), (200, 60)]
LABEL = "http://127.0.0.1:9465"
AWAY = AgentState(label=LABEL, phase="away", reason="connection refused", snapshot=fake.healthy(5), received_s=0.0)

SCENES: dict[str, AgentState] = {
    "healthy": AgentState(label=LABEL, phase="live", snapshot=fake.healthy(5), received_s=12.0),
    "empty": AgentState(label=LABEL, phase="live", snapshot=fake.snapshot(), received_s=12.0),
    "away": AWAY,
    "troubled": AgentState(label=LABEL, phase="live", snapshot=fake.troubled(5), received_s=12.0),
}


GPUS = {
    "one": agent_gpus.healthy(1, 5),
    "eight": agent_gpus.troubled(8, 5, simulated=True),
    "sixteen": agent_gpus.troubled(16, 5),
    "odd": (agent_gpus.divided(0, 5), agent_gpus.unified(1, 5), agent_gpus.unknown(2)),
}
GPU_PAGES = {"hot": ["tab", "tab", "tab", "tab", "tab", "j", "enter"], "lost": ["u", "u", "u", "u"], "who": ["w"]}


def with_gpus(name: str) -> AgentState:
    told = (agent_gpus.xid_event(fake.TIME_S - 20),)
    seen = msgspec.structs.replace(fake.healthy(5), gpus=GPUS[name], events=told)
    return AgentState(label=LABEL, phase="live", snapshot=seen, received_s=12.0)


PAGES = {"help": ["question_mark"], "detail": ["end", "enter"], "problem": ["shift+tab", "j", "enter"]}


class OneFrame:
    """A source of one frame: time stands still, at 12 s on the monotonic clock and in UTC."""

    def __init__(self, *states: AgentState) -> None:
        self._frame = build_frame(states, 12.0, datetime.UTC)

    def first(self) -> Frame:
        return self._frame

    def start(self, sink: Callable[[Frame], None]) -> None:
        sink(self._frame)

    def stop(self) -> None:
        """There is nothing to stop."""


def size_id(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


sizes = pytest.mark.parametrize("size", SIZES, ids=size_id)


async def settled(pilot: Pilot[Any]) -> None:
    """Also makes sure that there is a picture: a screen that failed to start is blank, and equal to its last blank picture."""
    await pilot.pause()
    assert "aie-top" in pilot.app.export_screenshot(title="?")


@sizes
@pytest.mark.parametrize("scene", sorted(SCENES))
def test_main(snap_compare: Any, scene: str, size: tuple[int, int]) -> None:
    assert snap_compare(TopApp(OneFrame(SCENES[scene])), terminal_size=size, run_before=settled)


@sizes
@pytest.mark.parametrize("page", sorted(PAGES))
def test_pages(snap_compare: Any, page: str, size: tuple[int, int]) -> None:
    assert snap_compare(TopApp(OneFrame(SCENES["troubled"])), press=PAGES[page], terminal_size=size, run_before=settled)


@sizes
@pytest.mark.parametrize("look", ["ascii", "light", "ansi"])
def test_looks(snap_compare: Any, look: str, size: tuple[int, int]) -> None:
    app = TopApp(OneFrame(SCENES["troubled"]), theme=look if look != "ascii" else "dark", ascii_only=look == "ascii")
    assert snap_compare(app, terminal_size=size, run_before=settled)


def test_two_hosts_one_away(snap_compare: Any) -> None:
    other = AgentState(label="http://gpu-08:9465", phase="away", reason="no data for 5 s")
    assert snap_compare(TopApp(OneFrame(SCENES["healthy"], other)), terminal_size=(120, 40), run_before=settled)


gpu_sizes = pytest.mark.parametrize("size", SIZES[1:], ids=size_id)


@gpu_sizes
@pytest.mark.parametrize("name", sorted(GPUS))
def test_gpus(snap_compare: Any, name: str, size: tuple[int, int]) -> None:
    assert snap_compare(TopApp(OneFrame(with_gpus(name))), terminal_size=size, run_before=settled)


@gpu_sizes
@pytest.mark.parametrize("page", sorted(GPU_PAGES))
def test_gpu_pages(snap_compare: Any, page: str, size: tuple[int, int]) -> None:
    assert snap_compare(TopApp(OneFrame(with_gpus("eight"))), press=GPU_PAGES[page], terminal_size=size, run_before=settled)


@gpu_sizes
def test_mig_page(snap_compare: Any, size: tuple[int, int]) -> None:
    """The end of the page: links, errors, instances, processes."""
    assert snap_compare(TopApp(OneFrame(with_gpus("odd"))), press=["u", "end"], terminal_size=size, run_before=settled)


def test_gpus_in_ascii(snap_compare: Any) -> None:
    app = TopApp(OneFrame(with_gpus("eight")), ascii_only=True)
    assert snap_compare(app, terminal_size=(120, 40), run_before=settled)
