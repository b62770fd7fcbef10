"""`guestctl health`: what is said of cards that are not ok, what a script reads, and the exit status alone."""

from __future__ import annotations

import csv
import io
import json

import grpc
import pytest

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, XidCount
from guest_client.guestctl.cli import run
from tests.client.fake_proxy import Fleet, Guest
from tests.guest_contract.test_health import answer, healthy

pytestmark = pytest.mark.usefixtures("asks_the_proxy")

HOSTILE = "\x1b[2J\r\n[red]a[/red]\u202e"


@pytest.fixture
def fleet() -> Fleet:
    """One guest whose cards are ok, one without a card, one with a card that fell off the bus and one that was slowed down."""
    lost, slow = healthy(0), healthy(1)
    lost.xids.append(XidCount(xid=79, count=2, last_age_ms=1000))
    slow.clocks_event_reasons = 0x80
    return Fleet({"good": Guest(answer(), {"rack": "a"}), "none": Guest(), "sick": Guest(answer(lost, slow), {"rack": "b"})})


def _health(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> str:
    assert run(["health", *arguments]) == status
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_a_fleet_whose_cards_are_ok_is_one_line_and_status_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert _health(capsys, 0, "good", "none") == "2 cards of 2 guests: 2 ok\n"
    assert _health(capsys, 0, "-l", "rack=a") == "2 cards of 1 guest: 2 ok\n"
    assert _health(capsys, 0, "none") == "no cards in 1 guest\n"


def test_each_card_that_is_not_ok_is_a_line_with_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    first, second, count = _health(capsys, 6).splitlines()
    assert first.startswith("sick GPU 0 GPU-0: failed: XID 79: needs a new start. Stop and start the VM.")
    assert second.startswith("sick GPU 1 GPU-1: degraded: the power brake holds the clocks down. The host must look at")
    assert count == "4 cards of 3 guests: 2 ok, 1 degraded, 1 failed"


def test_one_guest_asked_directly_and_through_the_proxy_is_judged_alike(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, address: str
) -> None:
    fleet.guests["vm1"] = fleet.guests["sick"]
    through = _health(capsys, 6, "vm1")
    direct = _health(capsys, 6, "--guest", address)
    assert direct.replace("guest GPU", "vm1 GPU") == through


def test_cards_that_are_missing_unknown_or_of_a_silent_guest_are_status_6(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    missing = answer()
    missing.pci_devices = 3
    fleet.guests = {"a": Guest(missing)}
    assert "a: failed: 2 cards are seen, 3 are on the PCI bus." in _health(capsys, 6)
    fleet.guests = {"a": Guest(GpuInfoResponse(gpus=[healthy()]))}
    assert "a GPU 0 GPU-0: unknown: its health was not asked." in _health(capsys, 6)
    fleet.guests = {"a": Guest(GpuInfoResponse(error="the driver did not answer"))}
    assert "a: unknown: the driver did not answer." in _health(capsys, 6)
    fleet.guests = {"a": Guest(refuses_with=(grpc.StatusCode.UNAVAILABLE, "guest a: unreachable")), "b": Guest(answer())}
    assert "a: unknown: unavailable: unreachable." in _health(capsys, 6)


def test_a_list_shows_the_health_of_each_guest_that_has_cards_and_waits_for_no_silent_one(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    fleet.collect_goes_on.clear()
    try:
        assert run(["list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert run(["list", "-o", "csv"]) == 0
        rows = csv.DictReader(io.StringIO(capsys.readouterr().out))
    finally:
        fleet.collect_goes_on.set()
    assert [line.split()[:3] for line in lines[:3]] == [
        ["Guest", "State", "Health"],
        ["good", "serving", "ok"],
        ["none", "serving", "–"],  # noqa: RUF001 - a dash
    ]
    assert lines[3].split()[:3] == ["sick", "serving", "failed"]
    assert {row["id"]: row["health"] for row in rows} == {"good": "ok", "none": "", "sick": "failed"}


def test_the_table_of_cards_says_what_a_sick_card_suffers_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["gpu", "sick", "good"]) == 0
    out = capsys.readouterr().out
    assert "sick GPU 0: failed: XID 79: needs a new start\n" in out
    assert [line.split()[4] for line in out.splitlines() if line.startswith(("good  ", "sick  "))] == [
        "ok",
        "ok",
        "failed",
        "degraded",
    ]
    assert run(["gpu", "sick", "-o", "csv"]) == 0
    assert [row["health"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["failed", "degraded"]


def test_a_card_that_a_guest_tells_twice_is_judged_and_listed_once(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests = {"a": Guest(answer(healthy(0), healthy(0), healthy(1)))}
    fleet.guests["a"].gpu_info.pci_devices = 2
    assert _health(capsys, 0) == "2 cards of 1 guest: 2 ok\n"
    assert run(["gpu", "a", "-o", "csv"]) == 0
    assert [row["index"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))] == ["0", "1"]


def test_a_failed_call_about_one_guest_keeps_its_status(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests["a"] = Guest(refuses_with=(grpc.StatusCode.UNAVAILABLE, "guest a: unreachable"))
    assert run(["health", "a"]) == 4
    assert run(["health", "nobody"]) == 3
    assert run(["health", "good", "nobody"]) == 3
    assert run(["health", "-l", "rack=z"]) == 3
    capsys.readouterr()


def test_scripts_get_each_card_with_codes(capsys: pytest.CaptureFixture[str]) -> None:
    guests = {line["guest_id"]: line for line in map(json.loads, _health(capsys, 6, "-o", "json").splitlines())}
    assert [guests[name]["health"] for name in ("good", "none", "sick")] == ["ok", "ok", "failed"]
    assert [reason["code"] for reason in guests["sick"]["cards"][0]["reasons"]] == ["xid_reboot"]
    assert guests["sick"]["cards"][0]["reasons"][0]["action"]
    rows = list(csv.DictReader(io.StringIO(_health(capsys, 6, "-o", "csv"))))
    assert [(row["guest_id"], row["index"], row["health"], row["reason"]) for row in rows] == [
        ("good", "0", "ok", ""),
        ("good", "1", "ok", ""),
        ("none", "", "ok", ""),
        ("sick", "0", "failed", "xid_reboot"),
        ("sick", "1", "degraded", "power_brake"),
    ]


def test_text_of_a_hostile_guest_drives_no_terminal_and_ten_thousand_xids_are_one_reason(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    card = GpuDevice(index=2**32 - 1, uuid=HOSTILE, ecc_uncorrected_volatile=2**64 - 1, errors=[HOSTILE] * 9)
    card.xids.extend(XidCount(xid=number, count=2**64 - 1, pci_bus_id=HOSTILE) for number in range(10_000))
    fleet.guests = {"a": Guest(GpuInfoResponse(gpus=[card], groups=["health"])), "b": Guest(GpuInfoResponse(error=HOSTILE))}
    for output in ("table", "json", "csv"):
        out = _health(capsys, 6, "-o", output)
        assert not set(out) & {"\x1b", "\r", "\u202e"}
        assert len(out) < 4000
    lines = _health(capsys, 6).splitlines()
    assert len(lines) == 3
    assert "[red]a[/red]" in lines[0]


@pytest.mark.parametrize("chosen", [("good",), ("good", "none")])
def test_a_card_that_the_host_gave_and_the_guest_does_not_see_is_not_ok(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, chosen: tuple[str, ...]
) -> None:
    fleet.guests["good"].gpus_given = 2
    assert "2 ok" in _health(capsys, 0, *chosen)
    fleet.guests["good"].gpus_given = 3
    assert "good: failed: 2 cards are seen, the host gave 3" in _health(capsys, 6, *chosen)
