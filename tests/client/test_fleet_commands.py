"""`guestctl list | gpu | top | watch` about many guests: what is shown, what a script reads, and that nobody chosen is never a success."""

from __future__ import annotations

import json
from typing import Any

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_client.guestctl.cli import run
from guest_contract import words
from guest_contract.card_fields import ROWS
from guest_contract.card_row import FLAG, GUESTCTL, TEXT_VALUE, Field
from tests.client.fake_proxy import Fleet, Guest
from tests.client.in_process import csv_rows, json_lines, output_of, refusal_of

pytestmark = pytest.mark.usefixtures("asks_the_proxy")

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse
HOSTILE = "\x1b[2J\r\nset-cookie: [red]a[/red]\u202e\u2028\x9b5n"


@pytest.mark.usefixtures("dead")
def test_all_guests_are_shown_in_order_and_a_dead_one_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output_of(capsys, "gpu", "--all").splitlines()
    assert lines[0] == "vm0: unavailable: unreachable"
    assert lines[1].startswith("vm1: 1 GPU, CC enabled false, CC ready unknown, sampled 9.0 s ago")
    assert lines[2] == "vm2: no NVIDIA GPU"
    assert lines[4].split()[:3] == ["vm1", "0", "GPU-1"]
    assert len(lines) == 5


@pytest.mark.usefixtures("dead")
def test_json_of_all_guests_is_a_line_each_with_answer_or_status(capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = {each["guest_id"]: each for each in json_lines(output_of(capsys, "gpu", "--all", "-o", "json"))}
    assert outcomes["vm0"]["gpu_info"] is None
    assert outcomes["vm0"]["status"]["code"] == 14
    assert outcomes["vm1"]["status"] is None
    assert outcomes["vm1"]["gpu_info"]["gpus"][0]["utilization_gpu"] == 0
    assert outcomes["vm1"]["gpu_info"]["gpus"][0]["power_usage_mw"] is None
    assert outcomes["vm2"]["gpu_info"]["gpus"] == []


def test_csv_of_all_guests_has_the_contracts_names_and_empty_cells_for_unset(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, dead: str
) -> None:
    fleet.guests["vm2"] = Guest(GpuInfo(error="NVIDIA driver is not loaded"))
    fleet.guests["vm3"] = Guest(GpuInfo())
    fleet.guests["vm4"] = Guest(GpuInfo(gpus=[GpuDevice()], cc_devtools=True))
    rows = {row["guest_id"]: row for row in csv_rows(output_of(capsys, "gpu", "--all", "-o", "csv"))}
    assert {field.name for field in GpuDevice.DESCRIPTOR.fields} <= rows["vm1"].keys()
    assert (rows[dead]["status"], rows[dead]["reason"]) == ("unavailable", "guest vm0: unreachable")
    assert (rows["vm1"]["status"], rows["vm1"]["utilization_gpu"], rows["vm1"]["power_usage_mw"]) == ("ok", "0", "")
    assert (rows["vm1"]["cc_enabled"], rows["vm1"]["cc_ready"], rows["vm1"]["cc_devtools"]) == ("false", "", "")
    assert rows["vm4"]["cc_devtools"] == "true"
    assert (rows["vm2"]["status"], rows["vm2"]["error"]) == ("ok", "NVIDIA driver is not loaded")
    assert (rows["vm3"]["status"], rows["vm3"]["error"], rows["vm3"]["index"]) == ("ok", "", "")
    assert None not in rows[dead], "no row is longer than its header"
    one = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert [row | {"received_at": ""} for row in one] == [rows["vm1"] | {"received_at": ""}]


def test_csv_is_exact_for_the_largest_numbers(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[GpuDevice(index=2**32 - 1, memory_used_bytes=2**56 - 1, errors=["a: b", "c: d"])]))
    (row,) = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert (row["index"], row["memory_used_bytes"], row["errors"]) == ("4294967295", "72057594037927935", "a: b; c: d")


IMPOSSIBLE = {"utilization_gpu": 4_000_000_000, "power_usage_mw": 2**32 - 1, "memory_used_bytes": 2**64 - 1}


def test_an_impossible_number_is_unknown_in_csv_tables_and_sums_and_untouched_in_json(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[GpuDevice(index=0, temperature_c=31, **IMPOSSIBLE)]))  # type: ignore[arg-type] # by name
    (row,) = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert ({row[name] for name in IMPOSSIBLE}, row["temperature_c"]) == ({""}, "31")
    assert "power: 4294967295 mW is over 5000000" in row["errors"]
    shown = output_of(capsys, "gpu", "vm1")
    assert "34 %" not in shown
    assert "power: 4294967295 mW is over 5000000" in shown
    for form in (("gpu", "vm1"), ("top", "vm1", "--count", "1"), ("watch", "vm1", "--count", "1")):
        cells = [line for line in output_of(capsys, *form).splitlines() if "31 °C" in line]
        assert len(cells) == 1
        assert not any(str(value) in cells[0] or "PB" in cells[0] for value in IMPOSSIBLE.values())
    assert "at –, memory –, power –" in output_of(capsys, "top", "vm1", "--count", "1")  # noqa: RUF001 - what the totals show
    (card,) = json.loads(output_of(capsys, "gpu", "vm1", "-o", "json"))["gpus"]
    assert {name: card[name] for name in IMPOSSIBLE} == IMPOSSIBLE


@pytest.mark.parametrize("row", [row for row in ROWS if GUESTCTL not in row.not_on], ids=lambda row: row.name)
@pytest.mark.parametrize("form", [("gpu", "vm1"), ("top", "vm1", "--count", "1"), ("watch", "vm1", "--count", "1")])
def test_a_row_of_the_table_is_in_guestctl(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, row: Field, form: tuple[str, ...]
) -> None:
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[GpuDevice(index=0, **{row.name: row.most})]))  # type: ignore[arg-type] # by name
    shown = output_of(capsys, *form)
    assert words.say(row, row.most) in shown or (form[0] == "top" and not row.column)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_of_the_table_is_in_csv(capsys: pytest.CaptureFixture[str], fleet: Fleet, row: Field) -> None:
    value: Any = "x" if row.unit == TEXT_VALUE else row.most  # Any: as the row says
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[GpuDevice(index=0, **{row.name: value})]))
    (found,) = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert found[row.name] == ("true" if row.unit == FLAG else str(value))


def test_a_card_that_the_driver_lost_is_missed_in_gpu_top_watch_and_csv(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    seen = [GpuDevice(index=index, utilization_gpu=1) for index in range(7)]
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=seen, pci_devices=8))
    remark = "8 on the PCI bus, 7 seen by the driver"
    for form in (("gpu", "vm1"), ("gpu", "--all"), ("top", "vm1", "--count", "1"), ("watch", "vm1", "--count", "1")):
        assert remark in output_of(capsys, *form), form
    rows = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert [(row["status"], row["reason"]) for row in rows] == [("ok", remark)] * 7
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=seen, pci_devices=7))
    assert "PCI bus" not in output_of(capsys, "gpu", "vm1")


@pytest.mark.parametrize(
    ("seen", "on_bus", "remark"),
    [
        (3, 3, "4 given by the host, 3 on the PCI bus, 3 seen by the driver"),
        (3, 4, "4 given by the host, 4 on the PCI bus, 3 seen by the driver"),
        (0, None, "4 given by the host, 0 seen by the driver"),
    ],
)
def test_a_card_that_the_host_gave_and_the_guest_does_not_see_is_missed_everywhere(
    capsys: pytest.CaptureFixture[str], fleet: Fleet, seen: int, on_bus: int | None, remark: str
) -> None:
    cards = [GpuDevice(index=index, utilization_gpu=1) for index in range(seen)]
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=cards, pci_devices=on_bus), listed_cards=(seen, on_bus), gpus_given=4)
    one = ("vm1", "--count", "1")
    for form in (("list",), ("gpu", "vm1"), ("gpu", "--all"), ("top", *one), ("watch", *one), ("gpu", "vm1", "-o", "csv")):
        assert remark in output_of(capsys, *form), form
    assert [row["gpus_given"] for row in csv_rows(output_of(capsys, "list", "-o", "csv"))] == ["4", ""]
    fleet.guests["vm1"].gpus_given, fleet.guests["vm1"].listed_cards = seen, (seen, seen)
    fleet.guests["vm1"].gpu_info.pci_devices = seen
    for form in (("list",), ("gpu", "vm1"), ("gpu", "--all"), ("top", *one), ("watch", *one), ("gpu", "vm1", "-o", "csv")):
        assert "given by the host" not in output_of(capsys, *form), form


def test_a_list_says_which_guest_misses_a_card(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests["vm1"].listed_cards = (7, 8)
    assert "vm1: a card is missing (8 on the PCI bus, 7 seen by the driver)" in output_of(capsys, "list")
    assert [(row["id"], row["gpus"], row["pci_devices"]) for row in csv_rows(output_of(capsys, "list", "-o", "csv"))] == [
        ("vm1", "7", "8"),
        ("vm2", "", ""),
    ]
    fleet.guests["vm1"].listed_cards = (8, 8)
    assert "missing" not in output_of(capsys, "list")


def test_the_list_and_containers_are_csv_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert [(row["id"], row["state"], row["labels"]) for row in csv_rows(output_of(capsys, "list", "-o", "csv"))] == [
        ("vm1", "serving", "rack=a"),
        ("vm2", "serving", "rack=b"),
    ]
    (container,) = csv_rows(output_of(capsys, "containers", "vm1", "-o", "csv"))
    assert (container["id"], container["names"], container["created"]) == ("f" * 64, "/web", "-9223372036854775808")


def test_a_formula_in_a_guests_text_is_text_in_a_spreadsheet(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    card = GpuDevice(index=0, uuid="=HYPERLINK(1)", pci_bus_id="@x", errors=["-1+1", 'a,"b"'])
    fleet.guests["vm1"] = Guest(GpuInfo(gpus=[card]))
    (row,) = csv_rows(output_of(capsys, "gpu", "vm1", "-o", "csv"))
    assert (row["uuid"], row["pci_bus_id"], row["errors"]) == ("'=HYPERLINK(1)", "'@x", '\'-1+1; a,"b"')


def test_text_of_hostile_guests_drives_no_terminal_in_any_form(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    """D22, for many guests at once."""
    card = GpuDevice(index=0, uuid=HOSTILE, pci_bus_id=HOSTILE, errors=[HOSTILE])
    fleet.guests = {
        "vm1": Guest(GpuInfo(gpus=[card]), labels={HOSTILE: HOSTILE}),
        "vm2": Guest(GpuInfo(error=HOSTILE)),
        "vm3": Guest(refuses_with=(grpc.StatusCode.INTERNAL, HOSTILE)),
    }
    for command in (["gpu", "--all"], ["list"], ["top", "--count", "1"], ["watch", "--count", "3"]):
        for output in ("table", "json", "csv"):
            shown = output_of(capsys, *command, "-o", output)
            assert all(line.isprintable() for line in shown.split("\n")), (command, output)
            assert not any(line.startswith("set-cookie") for line in shown.split("\n")), "no line of a guest's making"


def test_ids_and_labels_choose_together(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests = {f"vm{n}": Guest(labels={"rack": "ab"[n % 2], "note": "x,y", "n": str(n)}) for n in range(6)}

    def chosen(*arguments: str) -> list[str]:
        return [row["id"] for row in csv_rows(output_of(capsys, "list", "-o", "csv", *arguments))]

    assert chosen() == [f"vm{n}" for n in range(6)]
    assert chosen("-l", "rack=a") == ["vm0", "vm2", "vm4"]
    assert chosen("vm2", "vm4", "-l", "rack=a") == ["vm2", "vm4"]
    assert chosen("--selector", "rack=a", "--selector", "n=4") == ["vm4"]
    assert chosen("--selector", "rack=a,n=4") == ["vm4"]
    assert chosen("-l", r"note=x\,y,n=3") == ["vm3"]
    assert [each["guest_id"] for each in json_lines(output_of(capsys, "gpu", "-l", "rack=b", "-o", "json"))] == [
        "vm1",
        "vm3",
        "vm5",
    ]
    assert [each["guest_id"] for each in json_lines(output_of(capsys, "gpu", "vm5", "vm1", "-o", "json"))] == ["vm1", "vm5"]
    watched = json_lines(output_of(capsys, "watch", "-l", "rack=b", "--count", "3", "-o", "json"))
    assert [each["guest_id"] for each in watched] == ["vm1", "vm3", "vm5"]


@pytest.mark.parametrize("output", ["table", "json", "csv"])
@pytest.mark.parametrize("command", [["list"], ["gpu", "--all"]])
def test_labels_that_no_guest_has_are_no_empty_success(
    capsys: pytest.CaptureFixture[str], command: list[str], output: str
) -> None:
    """D20: a selector that chooses nobody."""
    assert run([*command, "-l", "rack=z", "-o", output]) == 3
    out, err = capsys.readouterr()
    assert err == "guestctl: the proxy knows no guest with rack=z\n"
    assert csv_rows(out) == [] if output == "csv" else out == ""


def test_ids_that_are_not_known_are_named_after_those_that_are_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["list", "vm1", "vm8", "vm9"]) == 3
    out, err = capsys.readouterr()
    assert out.splitlines()[1].startswith("vm1 ")
    assert err == "guestctl: the proxy knows no guest vm8, vm9\n"
    assert run(["gpu", "vm1", "vm9"]) == 3
    out, err = capsys.readouterr()
    assert "vm9: not found: not known" in out
    assert err == "guestctl: the proxy knows no guest vm9\n"


def test_a_host_without_guests_is_an_answer(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.guests = {}
    assert output_of(capsys, "list") == "the proxy knows no guests\n"
    assert output_of(capsys, "gpu", "--all") == "the proxy knows no guests\n"
    assert output_of(capsys, "gpu", "--all", "-o", "json") == ""
    assert csv_rows(output_of(capsys, "list", "-o", "csv")) == []


def test_what_came_before_the_proxy_broke_off_is_shown(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    fleet.collect_breaks = True
    for output in ("table", "json", "csv"):
        assert run(["gpu", "--all", "-o", output]) == 4
        out, err = capsys.readouterr()
        assert "vm1" in out
        assert "vm2" in out
        assert "the proxy stops" in err
    assert "CollectGpuInfo" in err


def test_the_age_that_all_guests_must_keep_travels(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    output_of(capsys, "gpu", "--all", "--max-age", "3")
    assert fleet.metadata["cache-control"] == "max-age=3"


@pytest.mark.parametrize("command", [["gpu", "--all"], ["top"], ["watch"], ["list"]])
def test_a_proxy_that_is_not_there_is_exit_status_4_at_once(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert "is the address right" in refusal_of(capsys, 4, *command, "--proxy", "unix:/run/nobody")
