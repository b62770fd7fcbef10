"""Rules and dashboards, asked of Debian's Prometheus that has scraped a simulated fleet: all is answered, and about the right guests.

Grafana itself is in no Debian; what it would send is made here from the dashboards as it does (variables filled in, intervals chosen).
"""

from __future__ import annotations

import contextlib
import re
import urllib.parse
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from guest_metrics import table
from tests.alerts.deployed import alerts, dashboards, names_in, queries, rules, variables
from tests.alerts.simulated_fleet import SimulatedFleet, simulated_fleet
from tests.eventually import eventually
from tests.http.test_prometheus import PROMETHEUS

pytestmark = [
    pytest.mark.skipif(PROMETHEUS is None, reason="missing: prometheus (Debian package prometheus)"),
    pytest.mark.timeout(300),
    pytest.mark.asyncio(loop_scope="module"),
]
# Of the fleet, by who it is about: a guest's id, or "proxy". SampleOld is not among them: how old samples are here is the machine's load.
FOUND: Mapping[str, set[str]] = {
    "GuestscopeGuestDown": {"dead"},
    "GuestscopeProxyDown": set(),
    "GuestscopeGpuLost": {"faulty"},
    "GuestscopeDriverNotLoaded": {"no-driver"},
    "GuestscopeCollectorFailing": {"failing"},
    "GuestscopeCcNotReady": {"faulty"},
    "GuestscopeDevToolsOn": {"faulty"},
    "GuestscopeCardHot": {"faulty"},
    "GuestscopeCardMemoryFull": {"faulty"},
    "GuestscopeCardFailed": {"faulty", "sick"},
    "GuestscopeCardDegraded": {"sick"},
    "GuestscopeXidNeedsReset": {"sick"},
    "GuestscopeUncorrectedEcc": {"sick"},
    "GuestscopeRowRemapPending": {"sick"},
    "GuestscopeRowRemapFailed": {"sick"},
    "GuestscopeRecoveryAction": {"sick"},
    "GuestscopePowerBrake": {"sick"},
    "GuestscopeLinkDegraded": {"sick"},
    "GuestscopePersistenceModeOff": {"sick"},
    "GuestscopeProxyOverloaded": set(),
    "GuestscopeDirectoryRefused": {"proxy"},
    "GuestscopeSourceLost": set(),
}
ON_THE_GUESTS_OWN_PAGE = {family.name for family in (*table.AGENT_FAMILIES, *table.PROCESS_FAMILIES)}
# A machine whose disks are all overlays of a container has none to show.
OF_DISKS = {"dstack_guest_disk_used_ratio"}
# The healthy guest has no XIDs.
OF_SICK_CARDS = {"dstack_gpu_xid_errors_total"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet() -> AsyncIterator[SimulatedFleet]:
    async with simulated_fleet() as running:
        yield running


def filled_in(text: str, values: Mapping[str, str]) -> str:
    """As Grafana fills in variables; one that is not known would be sent as it stands."""
    known = {"__rate_interval": "1m", **values}
    return re.sub(r"\$(?:\{(\w+)\}|(\w*[A-Za-z_]\w*))", lambda found: known[found[1] or found[2]], text)


async def answered(fleet: SimulatedFleet, expression: str) -> bool:
    return bool(await fleet.server.query(expression))


async def found_by_alerts(fleet: SimulatedFleet) -> dict[str, set[str]]:
    found = {}
    for name, rule in alerts().items():
        series = [dict(labels) for labels in await fleet.server.query(rule["expr"])]
        found[name] = {labels.get("vm_id", "proxy" if labels.get("instance") == fleet.proxy else "guest") for labels in series}
    del found["GuestscopeSampleOld"]
    return found


async def test_each_alert_finds_the_guests_that_have_its_fault_and_no_other(fleet: SimulatedFleet) -> None:
    found: dict[str, set[str]] = {}

    async def as_it_should() -> bool:
        nonlocal found
        found = await found_by_alerts(fleet)
        return found == FOUND

    # A window with a step of 15 s has its first value at the next quarter of a minute by the clock.
    with contextlib.suppress(AssertionError):
        await eventually(as_it_should)
    assert found == FOUND


async def test_prometheus_evaluates_each_rule_without_an_error(fleet: SimulatedFleet) -> None:
    groups = (await fleet.server.get("/api/v1/rules"))["groups"]
    evaluated = [rule for group in groups for rule in group["rules"]]
    assert len(evaluated) == len(rules())
    assert {
        rule["name"]: rule.get("lastError", "") for rule in evaluated if rule.get("lastError") or rule["health"] != "ok"
    } == {}


async def test_each_panel_of_the_fleet_has_data_for_all_guests(fleet: SimulatedFleet) -> None:
    everything = {"host": ".*", "vm_id": ".*", "card": ".*"}
    asked = [query for query in queries() if query.dashboard == "fleet.json"]
    assert len(asked) > 30
    assert [query.where for query in asked if not await answered(fleet, filled_in(query.expression, everything))] == []


@pytest.mark.parametrize("vm_id", ["eight", ""])
async def test_each_panel_of_one_guest_has_data_behind_a_proxy_and_at_its_own_page(fleet: SimulatedFleet, vm_id: str) -> None:
    values = {"host": ".*", "instance": fleet.proxy if vm_id else fleet.guest, "vm_id": vm_id, "card": ".*"}
    silent = []
    for query in queries():
        if query.dashboard == "guest.json" and not await answered(fleet, filled_in(query.expression, values)):
            silent.append(query)
    # The agent's own series are on no other page than its own.
    expected = ON_THE_GUESTS_OWN_PAGE if vm_id else set()
    assert [query.where for query in silent if not names_in(query.expression) & (expected | OF_DISKS | OF_SICK_CARDS)] == []


async def test_a_card_that_is_chosen_is_the_only_one_shown(fleet: SimulatedFleet) -> None:
    [temperature] = [query for query in queries() if query.dashboard == "guest.json" and query.where == "Temperature/A"]
    values = {"host": ".*", "instance": fleet.proxy, "vm_id": "eight"}
    everything = await fleet.server.query(filled_in(temperature.expression, {**values, "card": ".*"}))
    assert len(everything) == 8
    uuid = dict(next(iter(everything)))["uuid"]
    assert len(await fleet.server.query(filled_in(temperature.expression, {**values, "card": uuid}))) == 1


async def test_a_guest_without_a_gpu_has_no_card_and_no_age_and_is_not_unknown(fleet: SimulatedFleet) -> None:
    values = {"host": ".*", "instance": fleet.proxy, "vm_id": "none", "card": ".*"}
    shown: dict[str, Any] = {}
    for query in queries():
        if query.dashboard == "guest.json":
            shown[query.where] = list((await fleet.server.query(filled_in(query.expression, values))).values())
    assert (shown["Answers/A"], shown["GPUs known/A"], shown["GPUs/B"]) == ([1], [1], [0])
    absent = ("Age of GPU values/A", "CC on/A", "CC ready/A", "CC DevTools/A", "Power/A", "Temperature/A", "Utilization/A")
    assert [where for where in absent if shown[where]] == []


async def offered(fleet: SimulatedFleet, query: str) -> list[str]:
    """What a variable offers: Grafana's label_values(selector, label)."""
    asked = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert asked is not None, query
    return list(await fleet.server.get(f"/api/v1/label/{asked[2]}/values?match[]={urllib.parse.quote(asked[1])}"))


async def test_each_variable_offers_what_there_is(fleet: SimulatedFleet) -> None:
    of = {name: variables(dashboard) for name, dashboard in dashboards().items()}
    running = ["dead", "eight", "failing", "faulty", "no-driver", "none", "sick"]
    everywhere = {"host": ".*"}
    assert await offered(fleet, of["fleet.json"]["host"]["definition"]) == ["host1"]
    assert await offered(fleet, filled_in(of["fleet.json"]["vm_id"]["definition"], everywhere)) == running
    card = of["fleet.json"]["card"]["definition"]
    assert len(await offered(fleet, filled_in(card, {**everywhere, "vm_id": "eight"}))) == 8
    one = of["guest.json"]
    assert set(await offered(fleet, filled_in(one["instance"]["definition"], everywhere))) == {fleet.proxy, fleet.guest}
    assert await offered(fleet, filled_in(one["vm_id"]["definition"], {**everywhere, "instance": fleet.proxy})) == running
    assert await offered(fleet, filled_in(one["vm_id"]["definition"], {**everywhere, "instance": fleet.guest})) == []
    for instance, vm_id in ((fleet.proxy, "eight"), (fleet.guest, "")):
        values = {**everywhere, "instance": instance, "vm_id": vm_id}
        assert len(await offered(fleet, filled_in(one["card"]["definition"], values))) == 8
