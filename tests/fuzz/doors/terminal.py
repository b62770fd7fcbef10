"""What guestctl writes of a server's answers: tables, CSV and JSON, with the input as text in every string."""

from __future__ import annotations

import csv
import io
import json

from google.protobuf.message import Message

from guest_api import guest_api_pb2
from guest_client.guestctl.output import csv_view, json_view, tables
from tests.fuzz.door import Door
from tests.fuzz.doors.agent_pages import TEXTS, WORDS, filled, text_of
from tests.http.guests import containers, h200s, system_info


def check(data: bytes) -> None:
    """No character that moves the cursor, hides or turns text; one row a card; CSV no spreadsheet computes; JSON that reads back."""
    text = text_of(data)
    for message in _answers():
        filled(message, text)
        shown = tables.show(message, "vm-1")
        _seen(shown)
        assert json.loads(json_view.to_text(json_view.view(message))), "the JSON is empty"
    gpus, listed, _, failed, _ = _answers()
    for message in (gpus, listed, failed):
        filled(message, text)
    assert isinstance(gpus, guest_api_pb2.GpuInfoResponse)
    # Two cards of one name would be one that was told twice.
    gpus.gpus[1].uuid, gpus.gpus[1].pci_bus_id = f"{text}2", f"{text}3"
    assert isinstance(listed, guest_api_pb2.ListContainersResponse)
    assert isinstance(failed, guest_api_pb2.GpuInfoResponse)
    _cells(csv_view.to_text([csv_view.CARD_COLUMNS, *csv_view.cards("vm-1", gpus)]), rows=3)
    _cells(csv_view.to_text([csv_view.CARD_COLUMNS, *csv_view.cards("vm-1", failed)]), rows=2)
    _cells(csv_view.to_text(csv_view.containers(listed)), rows=3)


def _seen(shown: str) -> None:
    hidden = {c for c in shown if not (c.isprintable() or c == "\n")}
    assert not hidden, f"characters that nobody sees: {hidden}"


def _cells(text: str, *, rows: int) -> None:
    _seen(text)
    found = list(csv.reader(io.StringIO(text)))
    assert len(found) == rows, f"{len(found)} rows, not {rows}"
    assert len(set(map(len, found))) == 1, "rows of different length"
    for cell in (cell for row in found for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r")), f"a spreadsheet would compute {cell[:80]!r}"


def _answers() -> list[Message]:
    gpus = h200s(2)
    gpus.gpus[0].errors.append("power: Not Supported")
    network = guest_api_pb2.NetworkInformation(dns_servers=["192.0.2.1"], wg_info="interface: wg0")
    network.interfaces.add(name="eth0").addresses.add(address="192.0.2.7", prefix=24)
    network.gateways.add(address="192.0.2.1")
    return [
        gpus,
        guest_api_pb2.ListContainersResponse(containers=containers(2)),
        system_info(),
        guest_api_pb2.GpuInfoResponse(error="NVIDIA driver is not loaded"),
        network,
    ]


TERMINAL = Door("terminal", check, TEXTS.map(str.encode), words=(*WORDS, b"=1+1", b"@SUM(A1)", b"+1", b"-1"), examples=6)
