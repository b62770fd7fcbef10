"""The longest, widest and strangest names that a guest may give its cards, beside a guest that gives ordinary ones."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from guest_api import guest_api_pb2
from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_client.guestctl.output.card_cells import PCI_ADDRESS_CELLS, TEXT_CELLS, cut
from guest_client.guestctl.output.gpu_table import GpuTable
from guest_client.guestctl.output.tables import ROWS_LIMIT, render, show
from guest_contract.card_values import CARDS_LIMIT
from guest_contract.words import ERRORS_SHOWN
from tests.http.guests import h200s

STRANGE = ["W" * 300, "\u7af6" * 300, "e" + "\u0301" * 300, "\u202e\u05d0" * 150, "\x1b[2J" * 80, "word " * 60]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_a_name_of_any_length_leaves_the_other_guests_in_a_table(name: str) -> None:
    evil, good = h200s(1), h200s(1)
    evil.gpus[0].uuid = evil.gpus[0].pci_bus_id = name

    def shown(**guests: GpuInfoResponse) -> list[str]:
        text = io.StringIO()
        Console(file=text, width=220).print(GpuTable(guests))
        return text.getvalue().splitlines()

    ordinary = next(line for line in shown(good=good) if line.startswith("good  "))
    beside = next(line for line in shown(evil=evil, good=good) if line.startswith("good  "))
    assert beside.split() == ordinary.split()
    assert all(cell_len(line) <= 220 for line in shown(evil=evil, good=good))


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_a_name_that_is_cut_takes_no_more_cells_than_it_may(name: str) -> None:
    text = cut(name, PCI_ADDRESS_CELLS)
    assert text.cell_len <= PCI_ADDRESS_CELLS
    assert len(text.plain) <= PCI_ADDRESS_CELLS + 1
    assert text.plain.endswith("…")


def test_nvidias_own_names_are_whole() -> None:
    assert cut("00000000:01:00.0", PCI_ADDRESS_CELLS).plain == "00000000:01:00.0"


def test_thousands_of_errors_of_one_card_leave_the_other_guests_in_the_window() -> None:
    loud = guest_api_pb2.GpuInfoResponse(gpus=[guest_api_pb2.GpuDevice(errors=["broken"] * 5000)])
    lines = render(GpuTable({"loud": loud, "calm": guest_api_pb2.GpuInfoResponse()})).splitlines()
    assert len(lines) < 20
    assert f"loud GPU 0: and {5000 - ERRORS_SHOWN} more" in lines


def test_an_error_of_any_length_and_any_number_of_cards_are_cut_in_the_table() -> None:
    long = "y" * 100_000
    card = guest_api_pb2.GpuDevice(uuid=long, pci_bus_id=long, errors=[long])
    loud = {"a": guest_api_pb2.GpuInfoResponse(gpus=[card]), "b": guest_api_pb2.GpuInfoResponse(error=long)}
    assert max(map(len, render(GpuTable(loud)).splitlines())) < 2 * TEXT_CELLS
    many = guest_api_pb2.GpuInfoResponse(gpus=[guest_api_pb2.GpuDevice(index=number) for number in range(20_000)])
    assert len(render(GpuTable({"many": many})).splitlines()) < 2 * CARDS_LIMIT


@pytest.mark.parametrize(
    "answer",
    [
        guest_api_pb2.SystemInfo(disks=[guest_api_pb2.DiskInfo()] * 10_000),
        guest_api_pb2.NetworkInformation(interfaces=[guest_api_pb2.Interface()] * 10_000, wg_info="peer\n" * 10_000),
        guest_api_pb2.ListContainersResponse(containers=[guest_api_pb2.Container()] * 10_000),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_rows_and_lines_of_every_table_end_with_how_many_more_there_are(answer: guest_api_pb2.SystemInfo) -> None:
    lines = show(answer, "vm1").splitlines()
    assert len(lines) < 2 * ROWS_LIMIT + 20
    assert lines[-1] == f"and {10_000 - ROWS_LIMIT} more, see -o json"


def test_a_text_of_any_length_is_cut_in_every_table_of_a_guest() -> None:
    long = "y" * 100_000
    system = guest_api_pb2.SystemInfo(disks=[guest_api_pb2.DiskInfo(name=long, mount_point=long)])
    network = guest_api_pb2.NetworkInformation(interfaces=[guest_api_pb2.Interface(name=long)])
    containers = guest_api_pb2.ListContainersResponse(
        containers=[guest_api_pb2.Container(id="c", names=[long], image=long, status=long)]
    )
    for answer in (system, network, containers):
        assert max(map(len, show(answer, "vm1").splitlines())) < 4 * TEXT_CELLS


def test_a_card_that_a_guest_tells_twice_is_in_the_table_once_and_is_said() -> None:
    answer = h200s(2)
    answer.gpus[1].uuid = answer.gpus[0].uuid
    lines = render(GpuTable({"vm1": answer})).splitlines()
    assert lines[0].startswith("vm1: 1 GPU, 1 told again")
    assert len([line for line in lines if line.startswith("vm1  ")]) == 1
