"""Series of an engine for which the store has no room: what is shown of it is not all there is."""

from __future__ import annotations

from typing import Final

from aie_agent.analysis.findings import View
from aie_telemetry.api import Evidence, Finding

CAUSE: Final = "series_refused"

_ADVICE: Final = {
    "page_share": (
        "See with `aie-agent check` what its page is made of: labels that change with every request do not belong there. A page"
        " that the configuration names ([[engines]]) may have a quarter of store.max_series, others a twentieth."
    ),
    "series_limit": "See which engines hold the series (`/api/v1/series`); if they are all wanted, raise store.max_series.",
    "foreign_limit": "Names that are not aie's have half of the store at most: send fewer, or raise store.max_series.",
}


def series_refused(view: View, engine: str, now_s: float) -> Finding | None:
    """The finding `series_refused` at `now_s`, or None. Exact: it holds while the store refuses series with this engine's label."""
    refusal = view.store.no_room_for(engine, now_s)
    if refusal is None:
        return None
    store = view.store
    share = store.share(refusal.source)
    limit = f"share {share}" if refusal.reason == "page_share" else f"limit {store.limit}"
    held = store.held(refusal.source)
    return Finding(
        cause=CAUSE,
        subject=engine,
        severity="warning",
        since_s=refusal.since_s,
        summary=f"engine {engine}: not all of its series are taken ({refusal.reason}), so what is shown of it is not all there is",
        evidence=(
            Evidence(
                text=f"the store holds {store.size} series, {held} of them from {refusal.source} ({limit}), and refused more",
                metric="aie_agent_samples_refused_total",
            ),
        ),
        advice=_ADVICE[refusal.reason],
    )
