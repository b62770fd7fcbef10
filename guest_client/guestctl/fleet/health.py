"""`guestctl health`: whether every card is ok, of one guest, of several, or of all.

It ends with CARDS_NOT_OK where a card is degraded, failed, unknown or missing, so that a script needs to read nothing. A guest of a fleet
that does not answer is unknown and said so; one that is stopped is no trouble. A single guest that does not answer is the failure of
the command, as for every other command.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Group

from guest_client.async_client import AsyncProxyClient
from guest_client.guestctl import connect
from guest_client.guestctl.fleet.collecting import is_not_known, outcome_of
from guest_client.guestctl.fleet.listing import gpus_given
from guest_client.guestctl.fleet.several import HostQuestion, ask_each, each_host, require_answers, status_of
from guest_client.guestctl.output import csv_view, health_view, json_view, stdout, tables
from guest_client.guestctl.output.health_view import GuestHealth
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_contract.health import Level

# The exit status; 1 to 5 are failures of the call.
CARDS_NOT_OK = 6


def show(question: Question, say: Say) -> bool:
    """Ask and show; whether all is well. Raises ClientError, OutputError, NoSuchGuestError, HostsFailedError."""
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
        _write(question.output, [found], several=False)
        unknown_fields.look_at(reply)
        return found.level is Level.OK
    return asyncio.run(_show_many(question, unknown_fields))


async def _show_many(question: Question, unknown_fields: UnknownFields) -> bool:
    seen: dict[str, GuestHealth] = {}

    async def ask(asked: HostQuestion, proxy: AsyncProxyClient) -> None:
        chosen = asked.chosen
        stream = proxy.collect_gpu_info(ids=chosen.ids, labels=chosen.labels or None)
        async with contextlib.aclosing(stream) as outcomes:
            async for each in outcomes:
                outcome = outcome_of(each)
                if is_not_known(outcome):
                    continue
                given = each.gpus_given if each.HasField("gpus_given") else None
                judged = health_view.judge(each.guest_id, outcome, given)
                seen[asked.named(each.guest_id)] = replace(judged, host=asked.host)
                unknown_fields.look_at(each)

    chosen = question.chosen or Chosen()
    failures = await ask_each(each_host(question), ask)
    found = [each for _, each in sorted(seen.items())]
    found.extend(health_view.without_answer(host, status_of(error)) for host, error in failures.items())
    if found or not (chosen.ids or chosen.labels):
        _write(question.output, found, several=bool(question.proxies))
    require_answers(failures, question, seen)
    return all(guest.level is Level.OK for guest in found)


def _write(output: Output, guests: Sequence[GuestHealth], *, several: bool) -> None:
    match output:
        case Output.JSON:
            lines = (json_view.with_host(guest.host, health_view.as_json(guest)) for guest in guests)
            stdout.write("".join(map(json_view.to_line, lines)))
        case Output.CSV:
            rows = [row for guest in guests for row in csv_view.of_host(guest.host, health_view.as_rows(guest))]
            stdout.write(csv_view.to_text([["host", *health_view.CSV_COLUMNS] if several else health_view.CSV_COLUMNS, *rows]))
        case Output.TABLE:
            stdout.write(tables.render(Group(*health_view.lines(guests))))
