"""The Grafana boards, as data: JSON that `dashboards/build.py` made, and files for Grafana's provisioning."""

from __future__ import annotations

from pathlib import Path
from typing import Final

BOARDS: Final = "json"
PROVISIONING: Final = "provisioning"
DEFAULT_PATH: Final = "/var/lib/grafana/dashboards/aie"
"""Where the provisioning file, as it lies here, has Grafana look for the boards."""

_HERE: Final = Path(__file__).parent


def files(boards: str = DEFAULT_PATH) -> dict[Path, str]:
    """Every file, relative to here, with its text; `boards` is where Grafana finds the JSON. Raises OSError."""
    found = (path for folder in (BOARDS, PROVISIONING) for path in sorted((_HERE / folder).rglob("*")) if path.is_file())
    return {path.relative_to(_HERE): path.read_text(encoding="utf-8").replace(DEFAULT_PATH, boards) for path in found}
