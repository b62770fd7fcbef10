"""The longest, widest and strangest names that a guest may give its cards, beside a guest that gives ordinary ones."""

from __future__ import annotations

import io

import pytest
from rich.cells import cell_len
from rich.console import Console

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_client.guestctl.output.card_cells import PCI_ADDRESS_CELLS, cut
from guest_client.guestctl.output.gpu_table import GpuTable
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
