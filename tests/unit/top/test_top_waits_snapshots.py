"""What waits, locks and CUDA memory look like. After a change that is meant: pytest tests/unit/top --snapshot-update, and look."""

from __future__ import annotations

from typing import Any

import agent_waits
import pytest
from test_top_snapshots import LABEL, SIZES, OneFrame, settled, size_id

from aie_top.app import TopApp
from aie_top.rows import AgentState

# The engines stand by name: embedder (a lock), llama-70b (CUDA), reranker (unseen), smollm2 (the GIL).
PAGES = {
    "waits": ["b"],
    "lock": ["enter", *["j"] * 14],
    "cuda": ["j", "enter", *["pagedown"] * 2],
    "blind": ["j", "j", "enter", *["j"] * 10],
    "gil": ["end", "enter", *["j"] * 14],
}
sizes = pytest.mark.parametrize("size", SIZES[1:], ids=size_id)


def app(**how: Any) -> TopApp:
    return TopApp(OneFrame(AgentState(label=LABEL, phase="live", snapshot=agent_waits.fights(5), received_s=12.0)), **how)


@sizes
def test_main_with_waits(snap_compare: Any, size: tuple[int, int]) -> None:
    assert snap_compare(app(), terminal_size=size, run_before=settled)


@sizes
@pytest.mark.parametrize("page", sorted(PAGES))
def test_wait_pages(snap_compare: Any, page: str, size: tuple[int, int]) -> None:
    assert snap_compare(app(), press=PAGES[page], terminal_size=size, run_before=settled)


@pytest.mark.parametrize("look", ["ascii", "light", "ansi"])
def test_looks_of_waits(snap_compare: Any, look: str) -> None:
    shown = app(theme=look if look != "ascii" else "dark", ascii_only=look == "ascii")
    assert snap_compare(shown, press=["b"], terminal_size=(120, 40), run_before=settled)
