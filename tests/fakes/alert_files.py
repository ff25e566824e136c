"""What the alert files say, read as Prometheus reads them: their rules, and their promtool tests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

ALERTS: Final = Path(__file__).parents[2] / "alerts"
RULE_FILES: Final = tuple(sorted((ALERTS / "aie_alerts" / "rules").glob("*.yaml")))
TEST_FILES: Final = tuple(sorted((ALERTS / "tests").glob("*.yaml")))
_QUERY: Final = re.compile(r'(?:printf )?"((?:[^"\\]|\\.)*)"(?: \$labels\.\w+)* \| query|query "((?:[^"\\]|\\.)*)"')


class Rule(NamedTuple):
    """One rule: the file and group that it is in, and what it says."""

    file: str
    group: str
    table: dict[str, Any]

    @property
    def name(self) -> str:
        """Of the alert, or of what is recorded."""
        name: str = self.table.get("alert") or self.table["record"]
        return name

    @property
    def queries(self) -> list[str]:
        """Its expression, and the queries in its annotations."""
        texts = "\n".join(self.table.get("annotations", {}).values())
        found = [(match[1] or match[2]).replace('\\"', '"').replace("%q", '"x"') for match in _QUERY.finditer(texts)]
        return [self.table["expr"], *found]


def rules() -> Iterator[Rule]:
    """All rules, in their order."""
    for path in RULE_FILES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for table in group["rules"]:
                yield Rule(path.stem, group["name"], table)


ALL: Final = tuple(rules())
ALERT_RULES: Final = tuple(rule for rule in ALL if "alert" in rule.table)
NAMES: Final = tuple(dict.fromkeys(rule.name for rule in ALERT_RULES))
"""Of the alerts, each once."""


def named_causes() -> tuple[tuple[str, str], ...]:
    """The alerts about findings of a cause, with each cause that they name."""
    return tuple(
        (rule.name, cause)
        for rule in ALERT_RULES
        if rule.table["labels"]["severity"] == "{{ $labels.severity }}"
        for causes in re.findall(r'cause=~?"([^"]+)"', rule.table["expr"])
        for cause in causes.split("|")
    )
