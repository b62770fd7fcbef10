"""`guestctl list`: the guests that a proxy knows; and the rule of all fleet commands that a choice which chooses nobody is no success.

Whether a guest's cards are healthy is judged here from their values, as everywhere; the list waits for them no longer than HEALTH_SECONDS,
and a guest without an answer by then has a dash. Rejected: a verdict in the list of the proxy (it would be judged by the proxy's rules, and
asked of guests though nobody looks).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping

from guest_client.errors import CallError
from guest_client.guestctl import connect
from guest_client.guestctl.output import csv_view, json_view, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_client.sync_client import ProxyClient
from guest_contract.health import Level, judge_guest
from guest_fleet.v1 import fleet_pb2

# A list comes at once: by then every guest of a host has answered that is not in trouble.
HEALTH_SECONDS = 0.5
# Trouble with a card lasts longer, and a guest whose last answer is as young is not asked.
HEALTH_AGE_SECONDS = 30.0


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
        # JSON is the message as it came.
        levels = {} if question.output is Output.JSON else _health(proxy, chosen)
    if reply.guests or not (chosen.ids or chosen.labels):
        stdout.write(_text(question.output, reply, levels))
    UnknownFields(say).look_at(reply)
    require_chosen(chosen, {guest.id for guest in reply.guests})


def _health(proxy: ProxyClient, chosen: Chosen) -> dict[str, Level]:
    """The health of each guest that has cards and answers in time; what fails is left out: no reason to fail a list."""
    levels: dict[str, Level] = {}
    with contextlib.suppress(CallError):
        for each in proxy.collect_gpu_info(
            ids=chosen.ids,
            labels=chosen.labels or None,
            max_age_seconds=HEALTH_AGE_SECONDS,
            timeout_seconds=HEALTH_SECONDS,
        ):
            if each.gpu_info.gpus or each.gpus_given:
                levels[each.guest_id] = judge_guest(each.gpu_info, each.gpus_given).level
    return levels


def _text(output: Output, reply: fleet_pb2.ListGuestsResponse, levels: Mapping[str, Level]) -> str:
    if output is Output.JSON:
        return json_view.to_text(json_view.view(reply))
    return (
        csv_view.to_text(csv_view.guests(reply, levels)) if output is Output.CSV else tables.render(tables.guests(reply, levels))
    )
