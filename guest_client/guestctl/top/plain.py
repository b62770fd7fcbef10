"""`guestctl top`: on a terminal a screen with keys, elsewhere a table once per interval.

Elsewhere a proxy that goes away ends it, because a script is better told than kept waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from functools import partial

from rich.console import Group

from guest_client.guestctl import connect
from guest_client.guestctl.fleet.collecting import outcome_lines
from guest_client.guestctl.output import csv_view, json_view, screen, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Output, Question
from guest_client.guestctl.top import frame
from guest_client.guestctl.top.fleet_state import Board
from guest_client.guestctl.top.follow import Follower
from guest_client.guestctl.top.live import LiveTop


async def run(question: Question, say: Say) -> signal.Signals | None:
    """Show until the end: `question.count` tables, q, or a signal, which is returned; raises ClientError, OutputError."""
    board = Board(question.interval_seconds, partial(time.clock_gettime, time.CLOCK_BOOTTIME), time.time)
    if question.output is Output.TABLE and screen.usable():
        return await LiveTop(question, board).run()
    await _print(question, board, say)
    return None


async def _print(question: Question, board: Board, say: Say) -> None:
    follower = Follower(question, board)
    tables_left = itertools.count() if question.count is None else range(question.count)
    async with await connect.async_proxy_client(question) as proxy:
        await follower.list_guests(proxy)
        following = asyncio.create_task(follower.follow(proxy, UnknownFields(say)))
        whole = asyncio.create_task(follower.whole.wait())
        try:
            if question.output is Output.CSV:
                stdout.write(csv_view.to_text([csv_view.CARD_COLUMNS]))
            # The first table comes when it is whole, and after an interval at the latest.
            wait_for = {following, whole}
            for _ in tables_left:
                await asyncio.wait(wait_for, timeout=question.interval_seconds, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    return following.result()
                wait_for = {following}
                stdout.write(_printed(question, board))
        finally:
            for task in (following, whole):
                task.cancel()
            await asyncio.gather(following, whole, return_exceptions=True)


def _printed(question: Question, board: Board) -> str:
    outcomes = [entry.outcome for entry in board.entries() if entry.outcome is not None]
    if question.output is Output.JSON:
        return json_view.to_line({"guests": [json_view.view(outcome) for outcome in outcomes]})
    if question.output is Output.CSV:
        return "".join(outcome_lines(Output.CSV, outcome) for outcome in outcomes)
    width = stdout.terminal_size().columns if stdout.is_terminal() else tables.NOT_A_TERMINAL_WIDTH
    return tables.render(Group(*frame.snapshot(board, question.sort, width), ""))
