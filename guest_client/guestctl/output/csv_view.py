"""Answers as CSV for scripts and spreadsheets: a header, then one row per guest, card or container.

Unset is an empty cell, and so is what is impossible, and a card that a guest tells twice is one row: a spreadsheet adds up what it is given
(JSON is the message untouched). Text of a server is one line without control characters, and one that a spreadsheet would take for a
formula gets an apostrophe in front, because a guest chooses it. Columns are the contract's own names, taken from its descriptors, so that a
new field of a card becomes a column without being listed here; `health` after them is the verdict.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from google.rpc import status_pb2

from guest_api import guest_api_pb2
from guest_client.guestctl.output import card_cells
from guest_client.guestctl.output.json_view import Json, view
from guest_client.guestctl.output.statuses import code_name
from guest_client.guestctl.output.tables import Listed
from guest_contract import card_values
from guest_contract.health import Level
from guest_fleet.v1 import fleet_pb2
from guest_transport.process.logs import escape

Row: TypeAlias = Sequence[Json]

_CARD_FIELDS = [field.name for field in guest_api_pb2.GpuDevice.DESCRIPTOR.fields]
# First what is true of the guest, then of the card.
_GUEST_FIELDS = ["guest_id", "received_at", "status", "reason", "error", "cc_enabled", "cc_ready", "cc_devtools", "sample_age_ms"]
CARD_COLUMNS = [*_GUEST_FIELDS, *_CARD_FIELDS, "health"]
_LIST_COLUMNS = [
    "id",
    "state",
    "last_contact",
    "agent_version",
    "labels",
    "address",
    "gpus",
    "pci_devices",
    "gpus_given",
    "health",
]
_CONTAINER_COLUMNS = [field.name for field in guest_api_pb2.Container.DESCRIPTOR.fields]
_FORMULA = ("=", "+", "-", "@")


def to_text(rows: Iterable[Row]) -> str:
    """Rows as lines of CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def of_host(host: str, rows: Iterable[Row]) -> list[Row]:
    """The same rows with the host in front, where there are several."""
    return [[host, *row] if host else row for row in rows]


def cards_of_outcome(outcome: fleet_pb2.GuestGpuInfo) -> list[Row]:
    """One row per card of a guest, or one without a card: nothing there, unknown, or no answer at all."""
    received = view(outcome.received_at) if outcome.HasField("received_at") else None
    if outcome.WhichOneof("outcome") == "gpu_info":
        given = outcome.gpus_given if outcome.HasField("gpus_given") else None
        return cards(outcome.guest_id, outcome.gpu_info, received, given)
    return [_failed(outcome.guest_id, received, outcome.status)]


def cards(guest_id: str, answer: guest_api_pb2.GpuInfoResponse, received: Json = None, given: int | None = None) -> list[Row]:
    """The same for the answer of one guest, to which the host gave `given` cards."""
    shown = view(answer)
    assert isinstance(shown, dict)  # noqa: S101 - a message with fields is an object
    guest = [guest_id, received, "ok", card_values.missing(answer, given), *(shown[name] for name in _GUEST_FIELDS[4:])]
    found: list[Row] = []
    for card in card_cells.read(answer):
        values = view(card.message)
        assert isinstance(values, dict)  # noqa: S101 - the same
        values |= {**card.judged.values, "errors": list(card.errors)}
        found.append([*guest, *(values[name] for name in _CARD_FIELDS), health_word(card.verdict.level)])
    return found or [[*guest, *[None] * (len(_CARD_FIELDS) + 1)]]


def health_word(level: Level) -> Json:
    """An empty cell for what nobody knows."""
    return None if level is Level.UNKNOWN else level.word


def _failed(guest_id: str, received: Json, status: status_pb2.Status) -> Row:
    return [guest_id, received, code_name(status.code), status.message, *[None] * (len(CARD_COLUMNS) - 4)]


def guests(listed: Iterable[Listed], levels: Mapping[str, Level], *, several: bool) -> list[Row]:
    """A header and one row per guest; of several hosts with the host in front, and `reason` at the end for one that gave no answer."""
    rows: list[Row] = [["host", *_LIST_COLUMNS, "reason"]]
    for host, name, answer in listed:
        if isinstance(answer, status_pb2.Status):
            rows.append([host, None, code_name(answer.code), *[None] * (len(_LIST_COLUMNS) - 2), answer.message])
            continue
        shown = view(answer)
        assert isinstance(shown, dict)  # noqa: S101 - a message with fields is an object
        level = health_word(levels.get(name, Level.UNKNOWN))
        rows.append([host, *(shown[column] for column in _LIST_COLUMNS[:-1]), level, None])
    return rows if several else [row[1:-1] for row in rows]


def containers(answer: guest_api_pb2.ListContainersResponse) -> list[Row]:
    """A header and one row per container."""
    rows: list[Row] = [_CONTAINER_COLUMNS]
    for container in answer.containers:
        shown = view(container)
        assert isinstance(shown, dict)  # noqa: S101 - the same
        rows.append([shown[name] for name in _CONTAINER_COLUMNS])
    return rows


def _cell(value: Json) -> str:
    match value:
        case None:
            return ""
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list():
            return _text("; ".join(str(each) for each in value))
        case dict():
            return _text("; ".join(f"{key}={each}" for key, each in value.items()))
    return _text(value)


def _text(text: str) -> str:
    plain = escape(text)
    return f"'{plain}" if plain.startswith(_FORMULA) else plain
