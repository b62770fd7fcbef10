"""`guestctl top`: on a terminal a screen with keys, elsewhere a table once per interval.

Elsewhere a proxy that goes away ends it, because a script is better told than kept waiting.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Group

from guest_client.guestctl import connect
from guest_client.guestctl.fleet.collecting import outcome_lines
from guest_client.guestctl.fleet.several import HostQuestion, HostsFailedError, each_host, status_of
from guest_client.guestctl.output import csv_view, json_view, screen, stdout, tables
from guest_client.guestctl.output.remarks import Say, UnknownFields
from guest_client.guestctl.request import Output, Question
from guest_client.guestctl.top import frame
from guest_client.guestctl.top.fleet_state import Board
from guest_client.guestctl.top.follow import Follower, follow_all
from guest_client.guestctl.top.live import LiveTop
from guest_fleet.v1 import fleet_pb2


async def run(question: Question, say: Say) -> signal.Signals | None:
    """Show until the end: `question.count` tables, q, or a signal, which is returned; raises ClientError, OutputError."""
    board = Board(question.interval_seconds, partial(time.clock_gettime, time.CLOCK_BOOTTIME), time.time)
    if question.output is Output.TABLE and screen.usable():
        return await LiveTop(question, board).run()
    await _print(question, board, say)
    return None


async def _print(question: Question, board: Board, say: Say) -> None:
    if question.proxies:
        await _print_several(question, board, say)
        return
    follower = Follower(HostQuestion("", question), board, asyncio.Event())
    async with await connect.async_proxy_client(question) as proxy:
        await follower.list_guests(proxy)
        await _tables(question, board, [follower], asyncio.create_task(follower.follow(proxy, UnknownFields(say))))


async def _print_several(question: Question, board: Board, say: Say) -> None:
    """A host that gives no answer is a line of each table, and the exit status when it gives none at the end."""
    changed, unknown_fields = asyncio.Event(), UnknownFields(say)
    followers = [Follower(asked, board, changed) for asked in each_host(question)]
    following = asyncio.create_task(follow_all(followers, unknown_fields))
    await _tables(question, board, followers, following)
    if board.away:
        raise HostsFailedError(dict(sorted(board.away.items())), len(followers))


async def _tables(question: Question, board: Board, followers: Sequence[Follower], following: asyncio.Task[None]) -> None:
    tables_left = itertools.count() if question.count is None else range(question.count)
    whole = asyncio.ensure_future(asyncio.gather(*(each.whole.wait() for each in followers)))
    try:
        if question.output is Output.CSV:
            stdout.write(csv_view.to_text([["host", *csv_view.CARD_COLUMNS] if question.proxies else csv_view.CARD_COLUMNS]))
        # The first table comes when it is whole, and after an interval at the latest.
        wait_for: set[asyncio.Future[Any]] = {following, whole}
        for _ in tables_left:
            await asyncio.wait(wait_for, timeout=question.interval_seconds, return_when=asyncio.FIRST_COMPLETED)
            if following.done():
                following.result()
                return
            wait_for = {following}
            stdout.write(_printed(question, board))
    finally:
        for task in (following, whole):
            task.cancel()
        await asyncio.gather(following, whole, return_exceptions=True)


def _printed(question: Question, board: Board) -> str:
    outcomes = [(entry.host, entry.outcome) for entry in board.entries() if entry.outcome is not None]
    away = [(host, fleet_pb2.GuestGpuInfo(status=status_of(error))) for host, error in sorted(board.away.items())]
    if question.output is Output.JSON:
        return json_view.to_line(
            {"guests": [json_view.with_host(host, json_view.view(outcome)) for host, outcome in (*outcomes, *away)]}
        )
    if question.output is Output.CSV:
        return "".join(outcome_lines(Output.CSV, outcome, host) for host, outcome in (*outcomes, *away))
    width = stdout.terminal_size().columns if stdout.is_terminal() else tables.NOT_A_TERMINAL_WIDTH
    return tables.render(Group(*frame.snapshot(board, question.sort, width), ""))
