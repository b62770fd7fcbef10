"""The shipped rules: Prometheus takes them, each alert fires and stays silent where it should, and each has its page of the runbook.

That a case notices a broken rule is tried out on each of them: one that never fires and one that always does must both be caught.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.alerts.deployed import (
    CASES,
    FLEET,
    PROMETHEUS_OWN,
    RULES,
    RUNBOOK,
    alerts,
    exported,
    names_in,
    recorded,
    rules,
    tree_of,
)

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="missing: promtool (Debian package prometheus)")
# Of the proxy itself: there is no guest that could be scraped without it.
OF_THE_PROXY = {"GuestscopeProxyDown", "GuestscopeProxyOverloaded", "GuestscopeDirectoryRefused", "GuestscopeSourceLost"}
# Not exported by every agent; a rule that asks for them says what holds without them.
OF_THE_WHOLE_CARD = {
    "dstack_gpu_temperature_margin_celsius",
    "dstack_gpu_temperature_slowdown_celsius",
    "dstack_gpu_clocks_event_active",
}
NEVER, ALWAYS = "vector(0) > 1", 'label_replace(vector(1), "instance", "nobody", "", "")'
# A second of work; the machine may be busy with other tests.
BOUND_SECONDS = 100


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    assert PROMTOOL is not None
    return subprocess.run([PROMTOOL, *arguments], capture_output=True, text=True, check=False, timeout=BOUND_SECONDS)


@needs_promtool
def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(rules())} rules found" in done.stdout


@needs_promtool
def test_each_case_of_the_rules_comes_out_as_written() -> None:
    done = promtool("test", "rules", CASES)
    assert done.returncode == 0, done.stdout + done.stderr


def _expected() -> list[tuple[str, list[dict[str, str]]]]:
    """Alert, and the labels of those that a case expects; none in a silent one."""
    found = []
    for case in tree_of(CASES)["tests"]:
        for moment in case.get("alert_rule_test", []):
            found.append((moment["alertname"], [alert["exp_labels"] for alert in moment.get("exp_alerts", [])]))
    return found


@pytest.mark.parametrize("name", alerts())
def test_an_alert_has_a_silent_case_and_fires_for_a_guest_itself_and_one_behind_a_proxy(name: str) -> None:
    cases = [labels for alert, labels in _expected() if alert == name]
    assert [] in cases
    fired = [labels for case in cases for labels in case]
    assert fired
    if name not in OF_THE_PROXY:
        assert {"vm_id" in labels for labels in fired} == {True, False}


def _name_of(rule: dict[str, Any]) -> str:
    return str(rule.get("alert") or rule["record"])


def _made_from(name: str) -> set[str]:
    """The rule called `name`, and the alerts that ask for what it records."""
    return {name} | {alert for alert, rule in alerts().items() if name in names_in(rule["expr"])}


def _about(case: dict[str, Any], name: str) -> dict[str, Any]:
    """What `case` expects of the rule, and of an alert that is made from it; nothing that another rule could fail."""
    moments = [moment for moment in case.get("alert_rule_test", []) if moment["alertname"] in _made_from(name)]
    asked = [each for each in case.get("promql_expr_test", []) if name in names_in(each["expr"])]
    return {**case, "alert_rule_test": moments, "promql_expr_test": asked} if moments or asked else {}


def _rules_for(name: str, expression: str) -> dict[str, Any]:
    """The shipped rules with another expression in the one called `name`, and only those that it, or what is made from it, asks for."""
    needed = _made_from(name)
    needed |= {asked for rule in rules() if _name_of(rule) in needed for asked in names_in(rule["expr"])}
    groups = [
        {**group, "rules": [rule for rule in group["rules"] if _name_of(rule) in needed]} for group in tree_of(RULES)["groups"]
    ]
    tree = copy.deepcopy({"groups": [group for group in groups if group["rules"]]})
    [rule] = [rule for group in tree["groups"] for rule in group["rules"] if _name_of(rule) == name]
    rule["expr"] = expression
    return tree


def _write_cases(folder: Path, name: str, expression: str) -> Path:
    """The cases about the rule called `name`, for rules of which it has another expression; as JSON, which is YAML and quick to write."""
    (folder / RULES.name).write_text(json.dumps(_rules_for(name, expression)), encoding="utf-8")
    cases = tree_of(CASES)
    tests = [about for case in cases["tests"] if (about := _about(case, name))]
    file = folder / CASES.name
    file.write_text(json.dumps(cases | {"rule_files": [RULES.name], "tests": tests}), encoding="utf-8")
    return file


def _cases_with(folder: Path, name: str, expression: str) -> subprocess.CompletedProcess[str]:
    """They, tried. Every case with every rule would cost seconds."""
    return promtool("test", "rules", _write_cases(folder, name, expression))


@needs_promtool
def test_the_cases_about_each_rule_alone_pass_while_it_is_as_shipped(tmp_path: Path) -> None:
    files = []
    for number, rule in enumerate(rules()):
        folder = tmp_path / str(number)
        folder.mkdir()
        files.append(_write_cases(folder, _name_of(rule), rule["expr"]))
    done = promtool("test", "rules", *files)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("name", [*alerts(), *sorted(recorded())])
def test_a_rule_that_never_says_anything_is_noticed(tmp_path: Path, name: str) -> None:
    done = _cases_with(tmp_path, name, NEVER)
    assert done.returncode != 0
    assert "FAILED" in done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("name", alerts())
def test_an_alert_that_always_fires_is_noticed(tmp_path: Path, name: str) -> None:
    done = _cases_with(tmp_path, name, ALWAYS)
    assert done.returncode != 0
    assert f"alertname: {name}" in done.stdout + done.stderr


def test_each_rule_asks_for_series_that_exist() -> None:
    known = exported() | recorded() | PROMETHEUS_OWN | OF_THE_WHOLE_CARD
    assert {(rule.get("alert"), name) for rule in rules() for name in names_in(rule["expr"]) if name not in known} == set()
    assert names_in('sum by (a) (rate(one{x="two"}[5m])) > on (b) three:four and up') == {"one", "three:four", "up"}


def test_each_alert_has_its_page_of_the_runbook_and_leads_there() -> None:
    headings = re.findall(r"^## (Guestscope\w+)$", RUNBOOK.read_text(encoding="utf-8"), re.MULTILINE)
    assert headings == list(alerts()), "the same ones, in the same order"
    for name, rule in alerts().items():
        assert rule["annotations"]["runbook"] == f"docs/runbook.md#{name.lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_what_is_joined_is_joined_within_one_host_and_one_job() -> None:
    """Two hosts may have a guest of one name, and a guest may be scraped in two jobs."""
    for rule in rules():
        for joined in re.findall(r"\bon \(([^)]*)\)|\bby \(([^)]*)\)", rule["expr"]):
            assert {"host", "job", "instance"} <= set(re.split(r",\s*", "".join(joined))), rule


def test_the_join_of_the_pages_is_the_one_that_is_tried() -> None:
    joins = re.findall(r"^ *(dstack_gpu\w+ \* on .*)$", FLEET.read_text(encoding="utf-8"), re.MULTILINE)
    tried = [each["expr"] for case in tree_of(CASES)["tests"] for each in case.get("promql_expr_test", [])]
    assert joins
    assert set(joins) <= set(tried)


def test_no_rule_turns_absent_into_zero() -> None:
    for rule in rules():
        assert not re.search(r"or\s+(on\s*\(\)\s*)?vector\(|absent", rule["expr"]), rule
