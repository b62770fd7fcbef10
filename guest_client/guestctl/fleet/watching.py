"""`guestctl watch`: outcomes of guests as they come, without an end.

People are shown what changed; scripts get every outcome, so that they can tell a fleet where nothing happens from a stream that died. A
stream that breaks ends the command: whoever runs it in a script decides whether to start it again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from guest_client.async_client import AsyncProxyClient
from guest_client.guestctl import connect
from guest_client.guestctl.fleet.changes import Changes
from guest_client.guestctl.fleet.collecting import outcome_lines
from guest_client.guestctl.output import csv_view, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Chosen, Output, Question
from guest_fleet.v1 import fleet_pb2

# How soon it is noticed that the reader of the pipe has gone, while nothing is written.
READER_SECONDS = 1.0


async def run(question: Question, say: Say) -> None:
    """Show outcomes until `question.count` were shown; raises ClientError, OutputError."""
    chosen = question.chosen or Chosen()
    unknown_fields = UnknownFields(say)
    changes = Changes()
    left = question.count
    async with await connect.async_proxy_client(question) as proxy:
        await _look_for(proxy, chosen, say)
        if question.output is Output.CSV:
            stdout.write(csv_view.to_text([csv_view.CARD_COLUMNS]))
        stream = proxy.watch_gpu_info(ids=chosen.ids, labels=chosen.labels or None, interval_seconds=question.interval_seconds)
        async with contextlib.aclosing(_while_read(stream)) as outcomes:
            async for outcome in outcomes:
                text = _text(question, changes, outcome)
                stdout.write(text)
                unknown_fields.look_at(outcome)
                if left is not None and text:
                    left -= 1
                    if left == 0:
                        return


async def _while_read(stream: AsyncGenerator[fleet_pb2.GuestGpuInfo, None]) -> AsyncGenerator[fleet_pb2.GuestGpuInfo, None]:
    """The outcomes; raises OutputError when nobody reads any more, also while none comes and nothing is written."""
    coming = None
    try:
        while True:
            coming = asyncio.ensure_future(anext(stream))
            while not (await asyncio.wait({coming}, timeout=READER_SECONDS))[0]:
                stdout.check_reader()
            try:
                outcome = await coming
            except StopAsyncIteration:
                return
            yield outcome
            stdout.check_reader()
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)
        await stream.aclose()


async def _look_for(proxy: AsyncProxyClient, chosen: Chosen, say: Say) -> None:
    """Ask whether there is anybody to watch: an answer within the caller's bound, which the stream itself has not."""
    async with contextlib.aclosing(proxy.list_guests(ids=chosen.ids, labels=chosen.labels or None, page_size=1)) as guests:
        async for _ in guests:
            return
    asked = f" {chosen}" if str(chosen) else ""
    say(f"the proxy knows no guest{' with' if asked else ''}{asked} yet: waiting")


def _text(question: Question, changes: Changes, outcome: fleet_pb2.GuestGpuInfo) -> str:
    if question.output is Output.TABLE:
        return "".join(tables.render(line) for line in changes.lines(outcome))
    if question.changes_only and not changes.differs(outcome):
        return ""
    return outcome_lines(question.output, outcome)
