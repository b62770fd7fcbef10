"""`guestctl gpu` of several guests: each is asked once, and one that gives no answer is a line of its own.

Scripts get each outcome as it comes; a table waits for the last one, to be in order and in columns. What came before a failure or a Ctrl-C
is shown all the same.
"""

from __future__ import annotations

import contextlib

from google.rpc import code_pb2, status_pb2

from guest_client.guestctl import connect
from guest_client.guestctl.fleet.listing import require_chosen
from guest_client.guestctl.output import csv_view, json_view, screen, stdout, tables
from guest_client.guestctl.output.gpu_table import GpuTable, Outcome
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_fleet.v1 import fleet_pb2


def show(question: Question, say: Say) -> None:
    """Ask and show; raises ClientError, OutputError, NoSuchGuestError."""
    chosen = question.chosen or Chosen()
    unknown_fields = UnknownFields(say)
    seen: dict[str, Outcome] = {}
    given: dict[str, int] = {}
    waiting = _Waiting(shown=question.output is Output.TABLE and screen.usable())
    if question.output is Output.CSV:
        stdout.write(csv_view.to_text([csv_view.CARD_COLUMNS]))
    try:
        with (
            connect.proxy_client(question) as proxy,
            contextlib.closing(
                proxy.collect_gpu_info(ids=chosen.ids, labels=chosen.labels or None, max_age_seconds=question.max_age_seconds)
            ) as outcomes,
        ):
            for outcome in outcomes:
                seen[outcome.guest_id] = outcome_of(outcome)
                if outcome.HasField("gpus_given"):
                    given[outcome.guest_id] = outcome.gpus_given
                if question.output is not Output.TABLE:
                    stdout.write(outcome_lines(question.output, outcome))
                unknown_fields.look_at(outcome)
                waiting.answered(len(seen))
    finally:
        waiting.over()
        if question.output is Output.TABLE and seen:
            stdout.write(tables.render(GpuTable(dict(sorted(seen.items())), given)))
    require_chosen(chosen, {guest_id for guest_id, outcome in seen.items() if not _unknown(outcome)})
    if question.output is Output.TABLE and not seen:
        stdout.write("the proxy knows no guests\n")


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


def _unknown(outcome: Outcome) -> bool:
    return isinstance(outcome, status_pb2.Status) and outcome.code == code_pb2.NOT_FOUND


def outcome_of(outcome: fleet_pb2.GuestGpuInfo) -> Outcome:
    """The answer, or why there is none."""
    return outcome.gpu_info if outcome.WhichOneof("outcome") == "gpu_info" else outcome.status


def outcome_lines(output: Output, outcome: fleet_pb2.GuestGpuInfo) -> str:
    """One outcome for a script: a line of JSON, or its rows of CSV."""
    if output is Output.JSON:
        return json_view.to_line(json_view.view(outcome))
    return csv_view.to_text(csv_view.cards_of_outcome(outcome))
