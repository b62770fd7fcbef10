"""`guestctl gpu` of several guests: each is asked once, and one that gives no answer is a line of its own.

Scripts get each outcome as it comes; a table waits for the last one, to be in order and in columns. What came before a failure or a Ctrl-C
is shown all the same.
"""

from __future__ import annotations

import asyncio
import contextlib

from google.rpc import code_pb2, status_pb2

from guest_client.async_client import AsyncProxyClient
from guest_client.guestctl.fleet.several import HostQuestion, ask_each, each_host, require_answers, status_of
from guest_client.guestctl.output import csv_view, json_view, screen, stdout, tables
from guest_client.guestctl.output.gpu_table import GpuTable, Outcome
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Output, Question
from guest_fleet.v1 import fleet_pb2


def show(question: Question, say: Say) -> None:
    """Ask and show; raises ClientError, OutputError, NoSuchGuestError, HostsFailedError."""
    asyncio.run(_show(question, UnknownFields(say)))


async def _show(question: Question, unknown_fields: UnknownFields) -> None:
    collected = _Collected(question, unknown_fields)
    if question.output is Output.CSV:
        stdout.write(csv_view.to_text([csv_view.CARD_COLUMNS if not question.proxies else ["host", *csv_view.CARD_COLUMNS]]))
    try:
        failures = await ask_each(each_host(question), collected.ask)
        for host, error in failures.items():
            collected.failed(host, status_of(error))
    finally:
        collected.over()
    require_answers(failures, question, collected.known)
    if question.output is Output.TABLE and not collected.seen:
        stdout.write("the proxy knows no guests\n")


class _Collected:
    """The outcomes by what the guests are called, shown as they come or all together."""

    def __init__(self, question: Question, unknown_fields: UnknownFields) -> None:
        self._question = question
        self._unknown_fields = unknown_fields
        self._waiting = _Waiting(shown=question.output is Output.TABLE and screen.usable())
        self.seen: dict[str, Outcome] = {}
        self._given: dict[str, int] = {}
        self.known: set[str] = set()

    async def ask(self, asked: HostQuestion, proxy: AsyncProxyClient) -> None:
        """Take the outcomes of one host's guests."""
        chosen = asked.chosen
        stream = proxy.collect_gpu_info(
            ids=chosen.ids, labels=chosen.labels or None, max_age_seconds=self._question.max_age_seconds
        )
        async with contextlib.aclosing(stream) as outcomes:
            async for outcome in outcomes:
                self._take(asked, outcome)

    def _take(self, asked: HostQuestion, outcome: fleet_pb2.GuestGpuInfo) -> None:
        found = outcome_of(outcome)
        name = asked.named(outcome.guest_id)
        if not is_not_known(found):
            self.known.add(name)
        elif asked.host:
            return  # another host may know it
        self.seen[name] = found
        if outcome.HasField("gpus_given"):
            self._given[name] = outcome.gpus_given
        if self._question.output is not Output.TABLE:
            stdout.write(outcome_lines(self._question.output, outcome, asked.host))
        self._unknown_fields.look_at(outcome)
        self._waiting.answered(len(self.seen))

    def failed(self, host: str, status: status_pb2.Status) -> None:
        """A host gave no answer, or not all of it."""
        self.seen[host] = status
        if self._question.output is not Output.TABLE:
            stdout.write(outcome_lines(self._question.output, fleet_pb2.GuestGpuInfo(status=status), host))

    def over(self) -> None:
        """All have answered, or nobody waits any more: show the table of those that have."""
        self._waiting.over()
        if self._question.output is Output.TABLE and self.seen:
            stdout.write(tables.render(GpuTable(dict(sorted(self.seen.items())), self._given)))


class _Waiting:
    """A line for somebody who looks on while the slowest guest takes its 15 s; it is gone when the table comes."""

    def __init__(self, *, shown: bool) -> None:
        self._shown = shown

    def answered(self, count: int) -> None:
        """So many guests have answered, or failed to."""
        if self._shown:
            stdout.write(f"\r{count} answered, waiting for more")

    def over(self) -> None:
        """Take the line away."""
        if self._shown:
            stdout.write("\r\x1b[K")


def is_not_known(outcome: Outcome) -> bool:
    """Whether the proxy knows no such guest."""
    return isinstance(outcome, status_pb2.Status) and outcome.code == code_pb2.NOT_FOUND


def outcome_of(outcome: fleet_pb2.GuestGpuInfo) -> Outcome:
    """The answer, or why there is none."""
    return outcome.gpu_info if outcome.WhichOneof("outcome") == "gpu_info" else outcome.status


def outcome_lines(output: Output, outcome: fleet_pb2.GuestGpuInfo, host: str = "") -> str:
    """One outcome for a script: a line of JSON, or its rows of CSV; with its host where there are several."""
    if output is Output.JSON:
        return json_view.to_line(json_view.with_host(host, json_view.view(outcome)))
    return csv_view.to_text(csv_view.of_host(host, csv_view.cards_of_outcome(outcome)))
