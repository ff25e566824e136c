"""Which engine is on which GPU, now and lately: a GPU that is lost shows no processes any more, and an engine that ended with it
has none."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.explain import HOST
from aie_agent.analysis.findings import View

REMEMBERED_S: Final = 900.0
"""For so long an engine that was on a GPU may be what it is because of that GPU."""


class Placement:
    """Remembers pairs of GPU and engine for `REMEMBERED_S`."""

    def __init__(self) -> None:
        self._seen_s: dict[tuple[str, str], float] = {}

    def observe(self, view: View, now_s: float) -> None:
        """Notes who is where at `now_s`. A GPU that answers shows who is on it: of that, only an engine without any process is
        remembered."""
        for gpu in view.gpus():
            subject = f"gpu{gpu.index}"
            now = {each.engine for each in gpu.processes if each.engine is not None}
            for _, engine in [key for key in self._seen_s if key[0] == subject]:
                if gpu.up and engine not in now and view.state(engine) == "up":
                    del self._seen_s[subject, engine]
            self._seen_s.update(dict.fromkeys(((subject, engine) for engine in now), now_s))
        self._seen_s = {key: seen_s for key, seen_s in self._seen_s.items() if now_s - seen_s <= REMEMBERED_S}

    def related(self, cause: str, effect: str) -> bool:
        """Whether what is wrong with one subject can be felt by another: by itself; by an engine, of the GPU that it is on; by all,
        of the host."""
        return cause in (effect, HOST) or (cause, effect) in self._seen_s
