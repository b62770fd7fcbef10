"""The shipped dashboards as they stand: what they ask for exists, absent stays absent, and every panel obeys the variables.

What Prometheus answers to them is in test_in_prometheus.py.
"""

from __future__ import annotations

import itertools
import json
import re

import pytest

from tests.alerts.deployed import PROMETHEUS_OWN, Tree, dashboards, exported, names_in, panels, queries

ALL = dashboards()
SELECTED = {"fleet.json": {"host", "vm_id", "card"}, "guest.json": {"host", "instance", "vm_id", "card"}}

# A series of ours or a target's, where it is asked for and not named in a join.
NAME_OF_OURS = r"\b(?:dstack_|vmm_proxy_|guest_service_|process_)\w+|\bup\{"


def _variables(dashboard: Tree) -> set[str]:
    return {variable["name"] for variable in dashboard["templating"]["list"]}


def test_there_is_one_for_the_fleet_and_one_for_a_guest() -> None:
    assert {name: dashboard["uid"] for name, dashboard in ALL.items()} == {
        "fleet.json": "guestscope-fleet",
        "guest.json": "guestscope-guest",
    }


@pytest.mark.parametrize("name", ALL)
def test_what_a_dashboard_asks_for_is_on_a_page_of_ours(name: str) -> None:
    """Recorded series are not used: a dashboard is imported where nobody may load rules."""
    asked = {series for query in queries() if query.dashboard == name for series in names_in(query.expression)}
    assert "dstack_gpu_sample_age_seconds" in asked
    assert asked - exported() - PROMETHEUS_OWN == set()


@pytest.mark.parametrize("name", ALL)
def test_every_panel_asks_the_chosen_datasource_and_about_the_chosen_guests(name: str) -> None:
    dashboard = ALL[name]
    assert _variables(dashboard) == {"datasource"} | SELECTED[name]
    for panel in panels(dashboard):
        assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == "${datasource}", panel["title"]
            used = set(re.findall(r"\$(\w*[a-z]\w*)", target["expr"])) - {"__rate_interval"}
            assert used <= SELECTED[name], panel["title"]
            asked_of_hosts = target["expr"].count('host=~"$host"')
            assert asked_of_hosts == len(re.findall(NAME_OF_OURS, target["expr"])), "two hosts may have guests of one name"
            assert "{{" not in target["legendFormat"] or name == "guest.json" or target["legendFormat"].startswith("{{host}} ")
            if any(series.startswith("dstack_") for series in names_in(target["expr"])):
                assert "vm_id" in used, panel["title"]
            if "uuid" in target["expr"]:
                assert "card" in used, panel["title"]


@pytest.mark.parametrize("name", ALL)
def test_absent_is_shown_as_a_dash_or_a_gap_and_never_as_zero(name: str) -> None:
    for panel in panels(ALL[name]):
        assert panel["fieldConfig"]["defaults"]["noValue"] == "–", panel["title"]  # noqa: RUF001 - what is shown
        if panel["type"] == "timeseries":
            assert panel["fieldConfig"]["defaults"]["custom"]["spanNulls"] is False, panel["title"]
        for target in panel["targets"]:
            assert not re.search(r"vector\(|absent|\bor\s+0|default", target["expr"]), panel["title"]
        assert not [each["id"] for each in panel.get("transformations", []) if each["id"] not in ("merge", "organize")]


@pytest.mark.parametrize("name", ALL)
def test_a_stat_and_a_line_show_how_old_the_values_are(name: str) -> None:
    of_age = [panel for panel in panels(ALL[name]) if "dstack_gpu_sample_age_seconds" in json.dumps(panel["targets"])]
    assert {"stat", "timeseries"} <= {panel["type"] for panel in of_age}
    assert {panel["fieldConfig"]["defaults"].get("unit") for panel in of_age if panel["type"] != "table"} == {"s"}


@pytest.mark.parametrize("name", ALL)
def test_panels_have_ids_and_places_of_their_own(name: str) -> None:
    everything = ALL[name]["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    for panel in panels(ALL[name]):
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]), panel["title"]
    for one, other in itertools.combinations(everything, 2):
        assert not _overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    across = one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"]
    return across and one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"]


def test_links_between_dashboards_lead_to_one_that_is_shipped() -> None:
    text = json.dumps(list(ALL.values()))
    led_to = set(re.findall(r'"/d/([\w-]+)\?', text))
    assert led_to == {dashboard["uid"] for dashboard in ALL.values()}
    passed = set(re.findall(r"var-(\w+)=", text))
    assert passed <= _variables(ALL["guest.json"])
