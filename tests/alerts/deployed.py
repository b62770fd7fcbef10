"""What deploy/ ships for Prometheus and Grafana, read as its users' programs read it."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from guest_metrics import table
from guest_metrics.table import Kind

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/guestscope.rules.yml"
CASES = Path(__file__).with_name("rules_test.yml")
RUNBOOK = ROOT / "docs/runbook.md"
FLEET = ROOT / "docs/fleet.md"
DASHBOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
OF_A_HISTOGRAM = ("_bucket", "_sum", "_count")
# Prometheus gives each target this one; everything else in an expression is ours.
PROMETHEUS_OWN = {"up"}

# Any: YAML and JSON trees, in the shapes that Prometheus and Grafana document.
Tree = dict[str, Any]


@functools.cache
def tree_of(file: Path) -> Tree:
    """A YAML file, read once. Whoever changes it takes a copy."""
    tree: Tree = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)
    return tree


def rules() -> list[Tree]:
    """Every rule of the file, recording ones first."""
    return [rule for group in tree_of(RULES)["groups"] for rule in group["rules"]]


def alerts() -> dict[str, Tree]:
    """The alerting rules by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> set[str]:
    """Names of the series that rules record."""
    return {rule["record"] for rule in rules() if "record" in rule}


def exported() -> set[str]:
    """Every name that a page of ours can show."""
    names: set[str] = set()
    for family in table.ALL:
        suffixes = OF_A_HISTOGRAM if family.kind is Kind.HISTOGRAM else ("",)
        names.update(family.name + suffix for suffix in suffixes)
    return names


def names_in(expression: str) -> set[str]:
    """The series that an expression asks for: words that are neither functions, keywords, labels nor in quotes."""
    bare = re.sub(r'"[^"]*"', '""', expression)
    bare = re.sub(r"\{[^}]*\}|\[[^]]*\]", "", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    words = re.findall(r"[A-Za-z_:][\w:]*(?!\w)(?!\s*\()", bare)
    return set(words) - {"and", "or", "unless", "sum", "min", "max", "avg", "count", "bool", "offset"}


@dataclass(frozen=True, slots=True)
class Query:
    """One question of a dashboard."""

    dashboard: str
    where: str
    expression: str
    instant: bool


def dashboards() -> dict[str, Tree]:
    """The dashboards by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS}


def panels(dashboard: Tree) -> Iterator[Tree]:
    """The panels that show something, those in closed rows included."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", [])
        else:
            yield panel


def queries() -> list[Query]:
    """Every question of every panel."""
    return [
        Query(name, f"{panel['title']}/{target['refId']}", target["expr"], bool(target.get("instant")))
        for name, dashboard in dashboards().items()
        for panel in panels(dashboard)
        for target in panel.get("targets", [])
    ]


def variables(dashboard: Tree) -> dict[str, Tree]:
    """The variables that ask Prometheus, by name."""
    return {each["name"]: each for each in dashboard["templating"]["list"] if each["type"] == "query"}
