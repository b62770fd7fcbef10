"""`guestctl top`: follows a fleet and shows it, on a terminal as a screen with keys, elsewhere as a table once per interval.

On a screen a proxy that goes away is waited for, with the last values and their age in view; elsewhere it ends the command, because a
script is better told.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import time

from rich.console import Group

from guest_client.async_client import AsyncProxyClient
from guest_client.errors import CallError, DeadlineError, LimitError, UnavailableError
from guest_client.guestctl import csv_view, json_view, opening, screen, standard_output, tables, top_view
from guest_client.guestctl.board import Board
from guest_client.guestctl.collecting import outcome_lines
from guest_client.guestctl.question import Chosen, Output, Question, SortKey
from guest_client.guestctl.remarks import Say, UnknownFields
from guest_client.guestctl.screen import Key

# A proxy that was restarted is seen again as soon.
RETRY_SECONDS = 1.0
# How often the proxy is asked which guests are stopped; its stream tells everything else.
LIST_SECONDS = 30.0
# Ages count on though nothing comes.
REDRAW_SECONDS = 1.0
# A thousand guests answer one by one; so often is a frame made of it, a few milliseconds each.
_LEAST_REDRAW_SECONDS = 0.1
_SORT_KEYS = {key.value[0]: key for key in SortKey}


async def run(question: Question, say: Say) -> signal.Signals | None:
    """Show until the end: `question.count` tables, q, or a signal, which is returned; raises ClientError, OutputError."""
    board = Board(question.interval_seconds, time.monotonic, time.time)
    if question.output is Output.TABLE and screen.usable():
        return await _Live(question, board).run()
    await _print(question, board, say)
    return None


class _Follower:
    """Keeps a board up to date with one stream."""

    def __init__(self, question: Question, board: Board) -> None:
        self._question = question
        self._chosen = question.chosen or Chosen()
        self._board = board
        self.changed = asyncio.Event()
        # Set once every guest that is known has been heard.
        self.whole = asyncio.Event()

    async def list_guests(self, proxy: AsyncProxyClient) -> None:
        """Learn which guests there are; also says at once when the proxy is not there, or not for us."""
        async for guest in proxy.list_guests(ids=self._chosen.ids, labels=self._chosen.labels or None, page_size=1000):
            self._board.expect(guest)
        self._look()

    async def follow(self, proxy: AsyncProxyClient, unknown_fields: UnknownFields) -> None:
        """Tell the board of every outcome; raises ClientError when the stream ends."""
        self._board.new_stream()
        stream = proxy.watch_gpu_info(
            ids=self._chosen.ids, labels=self._chosen.labels or None, interval_seconds=self._question.interval_seconds
        )
        async with contextlib.aclosing(stream) as outcomes:
            async for outcome in outcomes:
                self._board.tell(outcome)
                unknown_fields.look_at(outcome)
                self._look()

    def _look(self) -> None:
        self.changed.set()
        if self._board.all_heard(self._chosen.ids):
            self.whole.set()


async def _print(question: Question, board: Board, say: Say) -> None:
    follower = _Follower(question, board)
    tables_left = itertools.count() if question.count is None else range(question.count)
    async with opening.async_proxy_client(question) as proxy:
        await follower.list_guests(proxy)
        following = asyncio.create_task(follower.follow(proxy, UnknownFields(say)))
        whole = asyncio.create_task(follower.whole.wait())
        try:
            if question.output is Output.CSV:
                standard_output.write(csv_view.to_text([csv_view.CARD_COLUMNS]))
            # The first table comes when it is whole, and after an interval at the latest.
            wait_for = {following, whole}
            for _ in tables_left:
                await asyncio.wait(wait_for, timeout=question.interval_seconds, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    return following.result()
                wait_for = {following}
                board.forget_silent()
                standard_output.write(_printed(question, board))
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
    width = standard_output.terminal_size().columns if standard_output.is_terminal() else tables.NOT_A_TERMINAL_WIDTH
    return tables.render(Group(*top_view.snapshot(board, question.sort, width), ""))


class _Live:
    """The screen and its keys."""

    def __init__(self, question: Question, board: Board) -> None:
        self._question = question
        self._board = board
        self._follower = _Follower(question, board)
        self._sort = question.sort
        self._offset = 0
        self._last_offset = 0
        self._page = 1
        self._notice = ""
        self._typed = asyncio.Event()
        self._ended = False
        self._signal: signal.Signals | None = None

    async def run(self) -> signal.Signals | None:
        """Show until the end; the signal that was it."""
        loop = asyncio.get_running_loop()
        async with opening.async_proxy_client(self._question) as proxy:
            # Before the screen is taken, so that a refusal stands where the command was typed.
            await self._follower.list_guests(proxy)
        following = asyncio.create_task(self._follow())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, number)
        try:
            with (terminal := screen.Screen(self._on_key)).shown():
                await self._show(terminal, following)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if following.done() and not following.cancelled():
            following.result()
        return self._signal

    async def _show(self, terminal: screen.Screen, following: asyncio.Task[None]) -> None:
        last_at = 0.0
        while not self._ended and not following.done():
            self._typed.clear()
            self._follower.changed.clear()
            self._board.forget_silent()
            size = standard_output.terminal_size()
            made = top_view.frame(self._board, self._sort, self._offset, size, self._notice)
            self._last_offset, self._page = made.last_offset, max(size.lines - 6, 1)
            terminal.draw(made.lines, size)
            if self._question.count is not None and self._follower.whole.is_set():
                now = asyncio.get_running_loop().time()
                last_at = last_at or now + (self._question.count - 1) * self._question.interval_seconds
                if now >= last_at:
                    return
            await self._news(following)

    async def _news(self, following: asyncio.Task[None]) -> None:
        """Wait for a key, or for outcomes but not for each single one, or until ages have grown."""
        typed = asyncio.create_task(self._typed.wait())
        changed = asyncio.create_task(self._changed())
        await asyncio.wait({typed, changed, following}, timeout=REDRAW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        typed.cancel()
        changed.cancel()

    async def _changed(self) -> None:
        await self._follower.changed.wait()
        await asyncio.sleep(_LEAST_REDRAW_SECONDS)

    async def _follow(self) -> None:
        """Follow the fleet, over again when the proxy comes back; raises what does not pass by itself."""
        unknown_fields = UnknownFields(lambda _: None)
        while True:
            try:
                async with opening.async_proxy_client(self._question) as proxy:
                    listing = asyncio.create_task(self._list(proxy))
                    try:
                        await self._follower.follow(proxy, unknown_fields)
                    finally:
                        listing.cancel()
                        await asyncio.gather(listing, return_exceptions=True)
            except (UnavailableError, LimitError, DeadlineError) as error:
                self._notice = f"no news from the proxy, trying again: {error.reason or error.code.name.lower()}"
            self._follower.changed.set()
            await asyncio.sleep(RETRY_SECONDS)

    async def _list(self, proxy: AsyncProxyClient) -> None:
        while True:
            with contextlib.suppress(CallError):  # the stream meets the same trouble, and tells
                await self._follower.list_guests(proxy)
                self._notice = ""
            await asyncio.sleep(LIST_SECONDS)

    def _end(self, number: signal.Signals) -> None:
        self._signal, self._ended = number, True
        self._typed.set()

    def _on_key(self, key: Key | str | None) -> None:
        match key:
            case "q" | "Q":
                self._ended = True
            case str() if key.lower() in _SORT_KEYS:
                self._sort, self._offset = _SORT_KEYS[key.lower()], 0
            case "j" | Key.DOWN:
                self._scroll(1)
            case "k" | Key.UP:
                self._scroll(-1)
            case " " | Key.PAGE_DOWN:
                self._scroll(self._page)
            case Key.PAGE_UP:
                self._scroll(-self._page)
            case Key.HOME:
                self._scroll(-self._offset)
            case Key.END:
                self._scroll(self._last_offset)
        self._typed.set()

    def _scroll(self, lines: int) -> None:
        self._offset = min(max(self._offset + lines, 0), self._last_offset)
