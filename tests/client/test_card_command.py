"""`guestctl card`: that every row of a card is there, that unset and not asked differ, and what a hostile guest can make of it."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, GpuProcess, MigInstance, XidCount
from guest_client.guestctl.cli import run
from guest_client.guestctl.output.card_view import LIST_LIMIT
from guest_contract.card_fields import GROUPS, ROWS
from guest_contract.card_row import TEXT_VALUE, Field
from tests.client.fake_proxy import Fleet, Guest
from tests.client.in_process import refusal_of
from tests.guest_contract.test_health import healthy

pytestmark = pytest.mark.usefixtures("asks_the_proxy")

HOSTILE = "\x1b[2J\r\n[red]a[/red]\u202e"


@pytest.fixture
def card() -> GpuDevice:
    """Answers for base and health; it had two XIDs and is cut into instances."""
    card = healthy(0)
    card.xids.extend([XidCount(xid=31, count=4, last_age_ms=9_000_000), XidCount(xid=79, count=2, last_age_ms=61_000)])
    card.mig_instances.add(gpu_instance=1, compute_instance=0, uuid="MIG-a", profile="1g.18gb", memory_total_bytes=2**34)
    return card


@pytest.fixture
def fleet(card: GpuDevice) -> Fleet:
    return Fleet({"vm1": Guest(GpuInfoResponse(gpus=[card, healthy(1)], groups=["health", "mig"], driver_version="580.95.05"))})


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["card", *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def _sections(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("  "):
            found[list(found)[-1]].append(" ".join(line.split()))
        else:
            found[line] = []
    return found


def _value(row: Field, card: GpuDevice) -> Any:
    """A value that no other row has, where that is possible."""
    value = f"text of {row.name}" if row.unit == TEXT_VALUE else row.most
    setattr(card, row.name, value)
    return getattr(card, row.name)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_of_a_card_is_in_its_group_as_text_json_and_csv(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, row: Field
) -> None:
    card = GpuDevice(index=0)
    value = _value(row, card)
    fleet.guests["vm1"] = Guest(GpuInfoResponse(gpus=[card]))
    said = [line for line in _sections(_shown(capsys, "vm1", "0"))[row.group] if line.startswith(f"{row.title} ")]
    assert any(not line.endswith("–") for line in said)  # noqa: RUF001 - a dash
    assert json.loads(_shown(capsys, "vm1", "0", "-o", "json"))["groups"][row.group][row.name] == value
    cells = csv.DictReader(io.StringIO(_shown(capsys, "vm1", "0", "-o", "csv")))
    (cell,) = [cell for cell in cells if cell["name"] == row.name and cell["group"] == row.group]
    assert (cell["value"], cell["unit"], cell["state"]) == (
        str(value).lower() if value is True else str(value),
        row.unit,
        "value",
    )


def test_a_card_begins_with_its_verdict_why_and_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    sections = _sections(_shown(capsys, "vm1", "0"))
    head = next(iter(sections))
    assert head == "vm1 GPU 0: failed"
    assert sections[head][0].startswith("XID 79: needs a new start. Stop and start the VM.")
    assert "UUID GPU-0" in sections[head]
    assert "Driver 580.95.05" in sections[head]


def test_unset_and_not_asked_are_said_differently(capsys: pytest.CaptureFixture[str]) -> None:
    text = _shown(capsys, "vm1", "1")
    sections = _sections(text)
    assert "ECC errors corrected, in all –" in sections["health"]  # noqa: RUF001 - a dash
    not_asked = [group for group in GROUPS if group not in {"health", "mig"}]
    assert f"not asked: {', '.join(not_asked)} (" in text
    assert not sections.keys() & set(not_asked)
    groups = json.loads(_shown(capsys, "vm1", "1", "-o", "json"))["groups"]
    assert [group for group in GROUPS if groups[group] is None] == not_asked
    assert groups["health"]["ecc_corrected_aggregate"] is None
    rows = {row["name"]: row["state"] for row in csv.DictReader(io.StringIO(_shown(capsys, "vm1", "1", "-o", "csv")))}
    assert (rows["ecc_corrected_aggregate"], rows["power_limit_mw"]) == ("unset", "not asked")


def test_xids_stand_in_health_the_last_one_first_and_instances_in_mig(capsys: pytest.CaptureFixture[str]) -> None:
    sections = _sections(_shown(capsys, "vm1", "0"))
    at = sections["health"].index("XID Count Last")
    assert sections["health"][at + 1 : at + 3] == ["79 2 1m 1s ago", "31 4 2h 30m 0s ago"]
    assert sections["mig"][-2:] == ["MIG Profile Used Memory UUID", "1/0 1g.18gb – 16.00 GB MIG-a"]  # noqa: RUF001 - a dash
    groups = json.loads(_shown(capsys, "vm1", "0", "-o", "json"))["groups"]
    assert [xid["xid"] for xid in groups["health"]["xids"]] == [31, 79]
    assert groups["mig"]["mig_instances"][0]["profile"] == "1g.18gb"


@pytest.mark.parametrize("name", ["1", "GPU-1", "gpu-1", "00000000:01:00.0"])
def test_a_card_is_named_by_its_index_its_uuid_or_its_address(
    capsys: pytest.CaptureFixture[str], name: str, address: str
) -> None:
    assert _shown(capsys, "vm1", name).startswith("vm1 GPU 1: ok\n")
    assert _shown(capsys, "--guest", address, name).startswith("guest GPU 1: ok\n")


def test_a_card_that_is_not_there_is_status_3_and_one_of_which_nobody_knows_status_1(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    assert "its cards are 0, 1 " in refusal_of(capsys, 3, "card", "vm1", "GPU-9")
    assert "no guest vm9" in refusal_of(capsys, 3, "card", "vm9", "0")
    fleet.guests["vm1"] = Guest(GpuInfoResponse())
    assert "no NVIDIA GPU" in refusal_of(capsys, 3, "card", "vm1", "0")
    fleet.guests["vm1"] = Guest(GpuInfoResponse(error="driver is not loaded"))
    assert "GPUs unknown: driver is not loaded" in refusal_of(capsys, 1, "card", "vm1", "0")
    fleet.guests["vm1"] = Guest(GpuInfoResponse(error="y" * 60_000))
    assert len(refusal_of(capsys, 1, "card", "vm1", "0")) < 500


def test_a_guest_without_a_card_or_a_card_without_a_guest_is_misuse(capsys: pytest.CaptureFixture[str], address: str) -> None:
    assert "guestctl card ID INDEX|UUID" in refusal_of(capsys, 2, "card", "vm1")
    assert "no guest id" in refusal_of(capsys, 2, "card", "vm/1", "0")
    assert "guestctl card INDEX|UUID" in refusal_of(capsys, 2, "card", "--guest", address, "vm1", "0")


def test_a_hostile_card_is_short_drives_no_terminal_and_is_whole_in_json(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    long = HOSTILE * 100
    hostile = GpuDevice(index=0, uuid=long, pci_bus_id=long, name=long, errors=[long] * 100, power_limit_mw=2**32 - 1)
    hostile.xids.extend(XidCount(xid=number, count=2**64 - 1, last_age_ms=2**64 - 1) for number in range(10_000))
    hostile.mig_instances.extend(MigInstance(uuid=long, memory_used_bytes=2**64 - 1) for _ in range(500))
    hostile.process_list.extend(GpuProcess(pid=number, name=f"[red]a[/red]{long}") for number in range(500))
    fleet.guests["vm1"] = Guest(GpuInfoResponse(gpus=[hostile], driver_version=long))
    text = _shown(capsys, "vm1", "0")
    assert all(line.isprintable() for line in text.split("\n"))
    assert len(text.splitlines()) < 3 * LIST_LIMIT + 150
    assert max(map(len, text.splitlines())) < 1000
    assert f"and {10_000 - LIST_LIMIT} more, see -o json" in text
    groups = json.loads(_shown(capsys, "vm1", "0", "-o", "json"))["groups"]
    assert len(groups["health"]["xids"]) == 10_000
    assert not set(_shown(capsys, "vm1", "0", "-o", "csv")) & {"\x1b", "\r", "\u202e"}
