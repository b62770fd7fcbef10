"""`guestctl list`: the guests that a proxy knows; and the rule of all fleet commands that a choice which chooses nobody is no success."""

from __future__ import annotations

from collections.abc import Collection

from guest_client.errors import CallError
from guest_client.guestctl import connect
from guest_client.guestctl.output import csv_view, json_view, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_client.sync_client import ProxyClient
from guest_fleet.v1 import fleet_pb2


class NoSuchGuestError(Exception):
    """Guests were asked for by id or label, and the proxy knows none such; the message names what was asked for."""


def require_chosen(chosen: Chosen, found: Collection[str]) -> None:
    """Raise NoSuchGuestError when an id of `chosen` is not among `found`, or its labels have chosen nobody."""
    missing = [guest_id for guest_id in chosen.ids if guest_id not in found]
    if missing:
        having = f" with {Chosen(labels=chosen.labels)}" if chosen.labels else ""
        raise NoSuchGuestError(f"the proxy knows no guest {', '.join(missing)}{having}")
    if chosen.labels and not found:
        raise NoSuchGuestError(f"the proxy knows no guest with {chosen}")


def gpus_given(proxy: ProxyClient, vm_id: str) -> int | None:
    """How many cards the proxy's directory gives to the guest; None where it does not say. A remark is no reason to fail."""
    try:
        found = list(proxy.list_guests(ids=[vm_id]))
    except CallError:
        return None
    return next((guest.gpus_given for guest in found if guest.id == vm_id and guest.HasField("gpus_given")), None)


def show(question: Question, say: Say) -> None:
    """Ask for the list and show it; raises ClientError, OutputError, and NoSuchGuestError after what was found is shown."""
    chosen = question.chosen or Chosen()
    with connect.proxy_client(question) as proxy:
        reply = fleet_pb2.ListGuestsResponse(guests=proxy.list_guests(ids=chosen.ids, labels=chosen.labels))
    if reply.guests or not (chosen.ids or chosen.labels):
        stdout.write(_text(question.output, reply))
    UnknownFields(say).look_at(reply)
    require_chosen(chosen, {guest.id for guest in reply.guests})


def _text(output: Output, reply: fleet_pb2.ListGuestsResponse) -> str:
    if output is Output.JSON:
        return json_view.to_text(json_view.view(reply))
    return csv_view.to_text(csv_view.guests(reply)) if output is Output.CSV else tables.show(reply, None)
