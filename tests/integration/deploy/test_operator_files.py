"""What deploy/build.py makes for the Prometheus Operator: the rules with runbooks that people reach, and what inhibits what."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
import yaml

from demo.monitoring import executable

ROOT: Final = Path(__file__).parents[3]
DEPLOY: Final = ROOT / "deploy"
ALERTS: Final = ROOT / "alerts" / "aie_alerts"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    """The script, which is in no package."""
    spec = importlib.util.spec_from_file_location("deploy_build", DEPLOY / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((DEPLOY / "kubernetes" / f"{name}.yaml").read_text()))


def test_the_rules_for_the_operator_are_aie_s_rules(promtool: str, tmp_path: Path) -> None:
    fresh = subprocess.run([sys.executable, str(DEPLOY / "build.py"), "--check"], capture_output=True, text=True, check=False)
    assert fresh.returncode == 0, fresh.stderr
    (resource,) = _documents("prometheusrule")
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump(resource["spec"]))
    checked = subprocess.run([promtool, "check", "rules", str(rules)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    shipped = [yaml.safe_load(path.read_text()) for path in sorted((ALERTS / "rules").glob("*.yaml"))]
    groups = resource["spec"]["groups"]
    assert _without_runbooks(groups) == _without_runbooks([group for file in shipped for group in file["groups"]])


def _without_runbooks(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rules = [[_without_runbook(rule) for rule in group["rules"]] for group in groups]
    return [group | {"rules": each} for group, each in zip(groups, rules, strict=True)]


def _without_runbook(rule: dict[str, Any]) -> dict[str, Any]:
    return rule | {"annotations": {key: value for key, value in rule.get("annotations", {}).items() if key != "runbook_url"}}


def test_runbooks_of_the_operator_s_rules_are_not_behind_the_policy(build: ModuleType) -> None:
    """Agents serve them to the namespace of Prometheus alone: the rules name the page, at the address that somebody gives them."""
    at_home, elsewhere = (
        [
            rule["annotations"]["runbook_url"]
            for group in yaml.safe_load(text)["spec"]["groups"]
            for rule in group["rules"]
            if "alert" in rule
        ]
        for text in (build.prometheus_rule(), build.prometheus_rule("https://wiki.example/aie"))
    )
    assert at_home
    pages = {path.stem for path in (ALERTS / "runbooks").glob("*.md")} | {"{{ $labels.cause }}"}
    assert {url.removeprefix("runbooks/").removesuffix(".md") for url in at_home} <= pages
    assert elsewhere == [f"https://wiki.example/aie/{url.removeprefix('runbooks/')}" for url in at_home]
    written = [rule["annotations"]["runbook_url"] for rule in _alerts_of_the_operator()]
    assert written == at_home


def _alerts_of_the_operator() -> list[dict[str, Any]]:
    (resource,) = _documents("prometheusrule")
    return [rule for group in resource["spec"]["groups"] for rule in group["rules"] if "alert" in rule]


def test_the_operator_s_inhibition_is_alertmanager_s(tmp_path: Path) -> None:
    """Back in Alertmanager's own words it is the same, and a real Alertmanager takes it."""
    (resource,) = _documents("alertmanagerconfig")
    assert resource["spec"].keys() == {"inhibitRules"}, "routes and receivers are the user's"
    shipped = yaml.safe_load((ALERTS / "alertmanager.yaml").read_text())
    rules = []
    for rule in resource["spec"]["inhibitRules"]:
        assert rule.keys() == {"sourceMatch", "targetMatch", "equal"}
        sides = {"source_matchers": rule["sourceMatch"], "target_matchers": rule["targetMatch"]}
        assert all(each.keys() == {"name", "matchType", "value"} for side in sides.values() for each in side)
        rules.append({name: [_in_words(each) for each in side] for name, side in sides.items()} | {"equal": rule["equal"]})
    assert [_bare(rule) for rule in rules] == [_bare({"equal": [], **rule}) for rule in shipped["inhibit_rules"]]
    assert f"- {len(rules)} inhibit rules" in _checked(tmp_path, shipped | {"inhibit_rules": rules})


def _in_words(matcher: dict[str, str]) -> str:
    return f'{matcher["name"]}{matcher["matchType"]}"{matcher["value"]}"'


def _bare(rule: dict[str, list[str]]) -> dict[str, list[str]]:
    """Its matchers without blanks and quotes, of which Alertmanager takes any."""
    return {key: [re.sub(r'[\s"]', "", each) for each in value] for key, value in rule.items()}


def _checked(folder: Path, settings: dict[str, Any]) -> str:
    path = folder / "alertmanager.yaml"
    path.write_text(yaml.safe_dump(settings))
    done = subprocess.run([executable("amtool"), "check-config", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("text", ["severity", "a b = c", '= "x"'])
def test_what_is_no_matcher(build: ModuleType, text: str) -> None:
    with pytest.raises(ValueError, match="no matcher"):
        build.matcher(text)
