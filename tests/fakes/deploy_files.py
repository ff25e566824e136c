"""What stands in deploy/, read: the manifests by kind, and the services of compose."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
MANIFESTS: Final = sorted((DEPLOY / "kubernetes").glob("*.yaml"))


def documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def resources(kind: str) -> list[dict[str, Any]]:
    return [each for path in MANIFESTS for each in documents(path) if each["kind"] == kind]


def daemon_set() -> dict[str, Any]:
    (found,) = resources("DaemonSet")
    return found


def sidecar_pod() -> dict[str, Any]:
    (found,) = resources("Pod")
    return found


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return loaded
