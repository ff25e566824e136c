"""The engines' pages of fixtures/pages through the reader, and what it says by name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from fixtures.pages import render
from fixtures.pages.traffic import Request

from aie_agent.samples import HistogramPoint
from aie_agent.sources.pages.reader import PageReader, PageReading

PAGES: Final = Path(render.__file__).parent


def read(page: str) -> PageReading:
    return PageReader("e").read((PAGES / f"{page}.prom").read_bytes())


def scalars(reading: PageReading) -> dict[str, float]:
    """Values by name without the prefix, followed by the labels that are not the engine's or the model's."""
    found = {}
    for point in reading.reading.points:
        labels = [f"{name}={value}" for name, value in point.tags if name not in ("engine", "model")]
        if point.name != "aie_engine_info":
            found[" ".join([point.name.removeprefix("aie_engine_"), *labels])] = point.value
    return found


def histograms(reading: PageReading) -> dict[str, HistogramPoint]:
    found = {point.name.removeprefix("aie_engine_"): point for point in reading.reading.histograms}
    assert len(found) == len(reading.reading.histograms)
    return found


VLLM = ("error", "cancelled", "rejected")
TRTLLM = ("error", "cancelled", "timeout", "rejected")
"""How requests may end beside well, as the engines' pages tell it."""


def outcomes(done: list[Request], others: tuple[str, ...] = ()) -> dict[str, float]:
    """All ended well; what the page has no line of yet has not come, and is 0."""
    return {"requests_total outcome=ok": float(len(done)), **{f"requests_total outcome={other}": 0.0 for other in others}}
