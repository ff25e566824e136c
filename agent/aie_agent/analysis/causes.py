"""Every cause that the agent looks for. A new one is a function in a file of its own, and a row here."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import EngineCause
from aie_agent.analysis.hung import engine_hung
from aie_agent.analysis.series_refused import series_refused
from aie_agent.analysis.stopped import engine_stopped

ENGINE_CAUSES: Final[tuple[EngineCause, ...]] = (engine_hung, engine_stopped, series_refused)
