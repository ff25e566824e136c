"""The catalogue as a document."""

from __future__ import annotations

from aie_telemetry.catalogue import CATALOGUE, FAMILIES, Kind


def markdown() -> str:
    """The metric reference as Markdown: what `docs/metrics.md` holds."""
    parts = [
        "# Metrics\n",
        "Generated from `telemetry/aie_telemetry/catalogue/` by `python -m aie_telemetry.catalogue`; a test compares.\n",
    ]
    for title, family in FAMILIES:
        parts.append(f"\n## {title}\n\n| metric | kind | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n")
        for metric in family:
            labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
            parts.append(f"| `{metric.name}` | {metric.kind} | {metric.unit} | {labels} | {metric.help} |\n")
    parts.append("\n## Buckets of the histograms\n\n| metric | upper bounds |\n| --- | --- |\n")
    for metric in CATALOGUE.values():
        if metric.kind is Kind.HISTOGRAM:
            bounds = " ".join(f"{bound:g}" for bound in metric.buckets)
            parts.append(f"| `{metric.name}` | {bounds} |\n")
    return "".join(parts)
