"""`guestctl health`: whether every card is ok, of one guest, of several, or of all.

It ends with CARDS_NOT_OK where a card is degraded, failed, unknown or missing, so that a script needs to read nothing. A guest of a fleet
that does not answer is unknown and said so; one that is stopped is no trouble. A single guest that does not answer is the failure of
the command, as for every other command.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from google.rpc import code_pb2, status_pb2
from rich.console import Group

from guest_client.guestctl import connect
from guest_client.guestctl.fleet.collecting import outcome_of
from guest_client.guestctl.fleet.listing import gpus_given, require_chosen
from guest_client.guestctl.output import csv_view, health_view, json_view, stdout, tables
from guest_client.guestctl.output.gpu_table import Outcome
from guest_client.guestctl.output.health_view import GuestHealth
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_contract.health import Level

# The exit status; 1 to 5 are failures of the call.
CARDS_NOT_OK = 6


def show(question: Question, say: Say) -> bool:
    """Ask and show; whether all is well. Raises ClientError, OutputError, NoSuchGuestError."""
    unknown_fields = UnknownFields(say)
    if question.chosen is None:
        given = None
        if question.vm_id is None:
            with connect.guest_client(question) as guest:
                reply = guest.gpu_info()
        else:
            with connect.proxy_client(question) as proxy:
                reply = proxy.gpu_info(question.vm_id)
                given = gpus_given(proxy, question.vm_id)
        found = health_view.judge(question.vm_id or "guest", reply, given)
        _write(question.output, [found])
        unknown_fields.look_at(reply)
        return found.level is Level.OK
    return _show_many(question, question.chosen, unknown_fields)


def _show_many(question: Question, chosen: Chosen, unknown_fields: UnknownFields) -> bool:
    seen: dict[str, GuestHealth] = {}
    not_known: set[str] = set()
    with (
        connect.proxy_client(question) as proxy,
        contextlib.closing(proxy.collect_gpu_info(ids=chosen.ids, labels=chosen.labels or None)) as outcomes,
    ):
        for each in outcomes:
            outcome = outcome_of(each)
            if _is_not_known(outcome):
                not_known.add(each.guest_id)
                continue
            seen[each.guest_id] = health_view.judge(
                each.guest_id, outcome, each.gpus_given if each.HasField("gpus_given") else None
            )
            unknown_fields.look_at(each)
    if seen or not (chosen.ids or chosen.labels):
        _write(question.output, [guest for _, guest in sorted(seen.items())])
    require_chosen(chosen, seen.keys() - not_known)
    return all(guest.level is Level.OK for guest in seen.values())


def _write(output: Output, guests: Iterable[GuestHealth]) -> None:
    match output:
        case Output.JSON:
            stdout.write("".join(json_view.to_line(health_view.as_json(guest)) for guest in guests))
        case Output.CSV:
            rows = [row for guest in guests for row in health_view.as_rows(guest)]
            stdout.write(csv_view.to_text([health_view.CSV_COLUMNS, *rows]))
        case Output.TABLE:
            stdout.write(tables.render(Group(*health_view.lines(guests))))


def _is_not_known(outcome: Outcome) -> bool:
    return isinstance(outcome, status_pb2.Status) and outcome.code == code_pb2.NOT_FOUND
