"""What drift looks like. After a change that is meant: pytest tests/unit/top --snapshot-update, and look."""

from __future__ import annotations

from typing import Any

import agent_drift
import pytest
from test_top_snapshots import LABEL, OneFrame, settled, size_id

from aie_top.app import TopApp
from aie_top.rows import AgentState

# By name: embedder, llama-70b, plain, reranker, smollm2.
PAGES = {"main": [], "drift": ["d"], "engine": ["j", "enter"]}
sizes = pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=size_id)


def app() -> TopApp:
    return TopApp(OneFrame(AgentState(label=LABEL, phase="live", snapshot=agent_drift.snapshot(), received_s=12.0)))


@sizes
@pytest.mark.parametrize("page", sorted(PAGES))
def test_drift(snap_compare: Any, page: str, size: tuple[int, int]) -> None:
    assert snap_compare(app(), press=PAGES[page], terminal_size=size, run_before=settled)
