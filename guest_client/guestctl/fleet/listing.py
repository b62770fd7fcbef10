"""`guestctl list`: the guests that a proxy knows, or several.

Whether a guest's cards are healthy is judged here from their values, as everywhere. The list waits for them as long as they come; when none
has come for HEALTH_SECONDS, the guests without an answer have a dash. Rejected: a verdict in the list of the proxy (it would be judged by
the proxy's rules, and asked of guests though nobody looks), and one bound for all (at 0.5 s half of a thousand guests had a dash).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field

from guest_client.async_client import AsyncProxyClient
from guest_client.errors import CallError, ClientError
from guest_client.guestctl.fleet.several import HostQuestion, ask_each, each_host, require_answers, status_of
from guest_client.guestctl.output import csv_view, json_view, stdout, tables
from guest_client.guestctl.output.json_view import Json
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.output.tables import Listed
from guest_client.guestctl.request import Chosen, Output, Question
from guest_client.sync_client import ProxyClient
from guest_contract.health import Level, judge_guest
from guest_fleet.v1 import fleet_pb2

# A list comes at once: a guest that is not in trouble answers in milliseconds, and 8000 cards come one behind the other.
HEALTH_SECONDS = 0.5
# Slow guests may come one by one, each within that time.
HEALTH_LIMIT_SECONDS = 5.0
# Trouble with a card lasts longer, and a guest whose last answer is as young is not asked.
HEALTH_AGE_SECONDS = 30.0


@dataclass(slots=True)
class _Answers:
    """What the proxies said, by host, and the health of guests by what they are called."""

    replies: dict[str, fleet_pb2.ListGuestsResponse] = field(default_factory=dict)
    levels: dict[str, Level] = field(default_factory=dict)
    failures: dict[str, ClientError] = field(default_factory=dict)
    # In the order in which the hosts were named.
    listed: list[Listed] = field(default_factory=list)


def gpus_given(proxy: ProxyClient, vm_id: str) -> int | None:
    """How many cards the proxy's directory gives to the guest; None where it does not say. A remark is no reason to fail."""
    try:
        found = list(proxy.list_guests(ids=[vm_id]))
    except CallError:
        return None
    return next((guest.gpus_given for guest in found if guest.id == vm_id and guest.HasField("gpus_given")), None)


def guest_ids(question: Question, within_seconds: float) -> list[str]:
    """What the guests are called that the proxies know which answer in time; raises ClientError where there is one proxy."""
    found: list[str] = []

    async def ask(asked: HostQuestion, proxy: AsyncProxyClient) -> None:
        found.extend([asked.named(guest.id) async for guest in proxy.list_guests(page_size=1000, timeout_seconds=within_seconds)])

    asyncio.run(ask_each(each_host(question), ask))
    return found


def show(question: Question, say: Say) -> None:
    """Ask and show; raises ClientError, OutputError, and after what was found is shown NoSuchGuestError, HostsFailedError."""
    answers = asyncio.run(_ask(question))
    chosen = question.chosen or Chosen()
    found = [name for _, name, answer in answers.listed if isinstance(answer, fleet_pb2.Guest)]
    if answers.listed or not (chosen.ids or chosen.labels):
        stdout.write(_text(question, answers))
    unknown_fields = UnknownFields(say)
    for reply in answers.replies.values():
        unknown_fields.look_at(reply)
    require_answers(answers.failures, question, found)


async def _ask(question: Question) -> _Answers:
    answers = _Answers()

    async def ask(asked: HostQuestion, proxy: AsyncProxyClient) -> None:
        chosen = asked.chosen
        guests = [guest async for guest in proxy.list_guests(ids=chosen.ids, labels=chosen.labels)]
        # JSON is the message as it came.
        if question.output is not Output.JSON:
            await _judge(asked, proxy, answers.levels)
        answers.replies[asked.host] = fleet_pb2.ListGuestsResponse(guests=guests)

    answers.failures = await ask_each(each_host(question), ask)
    for asked in each_host(question):
        if asked.host in answers.failures:
            answers.listed.append(Listed(asked.host, asked.host, status_of(answers.failures[asked.host])))
        else:
            guests = answers.replies[asked.host].guests
            answers.listed.extend(Listed(asked.host, asked.named(guest.id), guest) for guest in guests)
    return answers


async def _judge(asked: HostQuestion, proxy: AsyncProxyClient, levels: dict[str, Level]) -> None:
    """The health of each guest that has cards and answers in time; what fails is left out: no reason to fail a list."""
    chosen = asked.chosen
    stream = proxy.collect_gpu_info(
        ids=chosen.ids, labels=chosen.labels or None, max_age_seconds=HEALTH_AGE_SECONDS, timeout_seconds=HEALTH_LIMIT_SECONDS
    )
    with contextlib.suppress(CallError, TimeoutError, StopAsyncIteration):
        async with contextlib.aclosing(stream) as outcomes:
            while True:
                each = await asyncio.wait_for(anext(outcomes), HEALTH_SECONDS)
                if each.gpu_info.gpus or each.gpus_given:
                    levels[asked.named(each.guest_id)] = judge_guest(each.gpu_info, each.gpus_given).level


def _text(question: Question, answers: _Answers) -> str:
    if question.output is Output.CSV:
        return csv_view.to_text(csv_view.guests(answers.listed, answers.levels, several=bool(question.proxies)))
    if question.output is Output.TABLE:
        return tables.render(tables.guests(answers.listed, answers.levels))
    if not question.proxies:
        return json_view.to_text(json_view.view(answers.replies[""]))
    said: dict[str, Json] = {host: json_view.view(reply) for host, reply in answers.replies.items()}
    said |= {host: {"status": json_view.view(status_of(error))} for host, error in answers.failures.items()}
    hosts = [asked.host for asked in each_host(question)]
    return "".join(json_view.to_line(json_view.with_host(host, said[host])) for host in hosts)
