"""Prints the metric reference: `python -m aie_telemetry.catalogue > docs/metrics.md`."""

from __future__ import annotations

from aie_telemetry.catalogue.markdown import markdown

print(markdown(), end="")
