"""docs/alerts.md: every alert, the question that it answers, and what it asks for. Pure: texts of rule files in, a document out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import yaml

_INTRODUCTION: Final = """\
# Alerts
Generated from `alerts/aie_alerts/rules/` by `python alerts/build.py`; a test compares.

`aie-agent rules --export DIR` writes the rules, their runbooks and a configuration of Alertmanager (routes by severity,
inhibition) into a folder, and says what to put into `prometheus.yml`. Severities: **critical** is for somebody now, **warning** for
today, **info** for who looks. Where the table says *as found*, the severity is the finding's: what the agent judged, and steadied.

* `action` says what the alert asks for in one word, for those who route or automate by it; `component` is what it is about.
* `for` is for how long it must be so; *then kept* for how long it stays after the signal went, so that what flutters, or an agent
  that is restarted, makes one alert and not many.
* Each has a runbook, which the agent serves (`/runbooks/NAME`) and `runbook_url` names; `aie-agent rules --runbooks URL` names
  another place.
* False alarms: how often, or why there are none, stands above each rule and in its runbook.
* A finding of the agent that has no alert of its own is `AieFindingCritical` or `AieFindingWarning`; what another finding explains
  is no alert.
* Objectives (`AieSlo...`) are set in `alerts/objectives.toml`. They need only the page of an engine, read by an agent or directly;
  availability needs an agent, and counts its host as down when that has not answered for two minutes.
* Where Prometheus finds its targets by itself (Kubernetes), a target that is gone is not down: `AieEngineVanished` asks for an
  engine by its name, its availability counts it as down for an hour, and what else is not seen there stands in `docs/deploy.md`.
* **Engines of one name in one job are replicas of each other**, whatever model they serve: `AieSloAvailability` and
  `AieEngineVanished` are silent while one of them lives, and `AieSloErrors` takes the requests of one model together. Engines that
  agents discover are named by kind and port, so `vllm-8000` of two hosts is one engine to them. Where it is not, give each its
  name (`[[engines]] name` in the agent's configuration, or `--engine NAME=URL`), or its host a job of its own. `AieEngineDown` is
  of each engine on each host, critical if requests were in it; one that was idle and only discovered is told where the
  configuration names it.
* Several Prometheus servers that share an Alertmanager say which is which by `cluster` (`external_labels`): an alert silences only
  those of its own. It has to be no label of targets, which alerts made of sums do not keep: where it is one, take it out of each
  `equal` in `alertmanager.yaml`. Other labels of targets do no harm.
* An engine that is taken away on purpose, alone or with its agent, counts as down for an hour or two: silence `AieSloAvailability`
  of it for two hours.
* An engine that an agent reads and Prometheus scrapes directly as well is there twice, by `job`: alerts on its own numbers
  (`AieSlo...`, `AieEngineStalled`, `AieEngineRestarts`, `AieKvCacheFull`) are then two. Scrape it one way.
* `--time-scale N` divides every duration, for a rehearsal: `make stack` shows a fault become an alert within two minutes.
"""

_QUESTIONS: Final[Mapping[str, str]] = {
    "agent": "Does anybody watch, and what is not seen?",
    "engine": "Does each engine serve, and what holds it up?",
    "slo": "Are users served as was promised?",
    "memory": "Does memory leak, and when is it full?",
    "drift": "Does the model still answer as it did?",
    "gpu": "Are the GPUs well, and as fast as they should be?",
    "host": "Does the host give its engines what they need?",
}
"""The rule files in the order of the document, and the question that each is about."""


class Alert(NamedTuple):
    """A row: one alert, whatever number of rules it is made of."""

    name: str
    severity: str
    action: str
    wait: str
    kept: str


def render(rule_texts: Mapping[str, str], questions: Mapping[str, str]) -> str:
    """The document, of the texts of the rule files by name, and of the question that each alert answers.

    Raises KeyError for an alert without one, and ValueError for a file that no question is known of.
    """
    parts = [_INTRODUCTION]
    for name in sorted(rule_texts, key=list(_QUESTIONS).index):
        parts.append(f"\n## {_QUESTIONS[name]} (`{name}.yaml`)\n\n")
        parts.append("| alert | answers | severity | action | for | then kept |\n| --- | --- | --- | --- | --- | --- |\n")
        parts += [_row(alert, questions[alert.name]) for alert in alerts(rule_texts[name])]
        records = [rule["record"] for rule in _rules(rule_texts[name]) if "record" in rule]
        if records:
            parts.append("\nRecorded: " + ", ".join(f"`{record}`" for record in dict.fromkeys(records)) + ".\n")
    return "".join(parts)


def alerts(rule_text: str) -> list[Alert]:
    """The alerts of a rule file, each once, in their order."""
    found: dict[str, list[dict[str, Any]]] = {}
    for rule in _rules(rule_text):
        if "alert" in rule:
            found.setdefault(rule["alert"], []).append(rule)
    return [
        Alert(
            name,
            _joined(_severity(rule["labels"]["severity"]) for rule in rules),
            _joined(_action(rule["labels"]["action"]) for rule in rules),
            _joined(rule["for"] for rule in rules),
            _joined(rule.get("keep_firing_for", "-") for rule in rules),
        )
        for name, rules in found.items()
    ]


def _rules(text: str) -> Iterator[dict[str, Any]]:
    for group in yaml.safe_load(text)["groups"]:
        yield from group["rules"]


def _joined(words: Iterator[str]) -> str:
    return ", ".join(dict.fromkeys(words))


def _severity(text: str) -> str:
    if "$labels.severity" in text:
        return "as found"
    return "by number" if "{{" in text else text


def _action(text: str) -> str:
    if "{{" not in text:
        return f"`{text}`"
    return " ".join(f"`{word}`" for word in _texts_between_actions(text))


def _texts_between_actions(text: str) -> Sequence[str]:
    """What a template can come to: the words outside its braces."""
    outside = [part.rsplit("}}", 1)[-1] for part in text.split("{{")]
    return [word for word in dict.fromkeys(outside) if word]


def question(page: str) -> str:
    """What a runbook says first, below its title."""
    return page.split("\n\n", 2)[1]


def _row(alert: Alert, answers: str) -> str:
    link = f"[{alert.name}](../alerts/aie_alerts/runbooks/{alert.name}.md)"
    return f"| {link} | {answers} | {alert.severity} | {alert.action} | {alert.wait} | {alert.kept} |\n"
