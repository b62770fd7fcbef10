"""`top` on a terminal: the screen, its keys, and a proxy that may go away and come back.

The last values and their age stay in view while there is no proxy: somebody who watches a fleet through a restart wants to see it pass.
"""

from __future__ import annotations

import asyncio
import signal
from typing import Any

from guest_client.guestctl import connect
from guest_client.guestctl.fleet.several import each_host
from guest_client.guestctl.output import screen, stdout
from guest_client.guestctl.output.remarks import UnknownFields
from guest_client.guestctl.output.screen import Key
from guest_client.guestctl.request import SORTS, Question
from guest_client.guestctl.top import frame
from guest_client.guestctl.top.fleet_state import Board
from guest_client.guestctl.top.follow import Follower, follow_all

# Ages count on though nothing comes.
REDRAW_SECONDS = 1.0
# A thousand guests answer one by one, and a frame of a thousand guests takes 30 ms.
_LEAST_REDRAW_SECONDS = 0.1
# Scrolling by a page keeps some lines in view.
_KEPT_LINES = 6
_SORT_KEYS = {sort[0]: sort for sort in SORTS}


class LiveTop:
    """The screen and its keys."""

    def __init__(self, question: Question, board: Board) -> None:
        self._question = question
        self._board = board
        self._heard = asyncio.Event()
        self._followers = [Follower(asked, board, self._heard) for asked in each_host(question)]
        self._sort = question.sort
        self._offset = 0
        self._last_offset = 0
        self._page = 1
        self._typed = asyncio.Event()
        self._ended = False
        self._signal: signal.Signals | None = None

    async def run(self) -> signal.Signals | None:
        """Show until the end; the signal that was it."""
        loop = asyncio.get_running_loop()
        if not self._question.proxies:
            async with await connect.async_proxy_client(self._question) as proxy:
                # Before the screen is taken, so that a refusal stands where the command was typed.
                await self._followers[0].list_guests(proxy)
        unknown_fields = UnknownFields(lambda _: None)  # a remark would stand in the middle of the screen
        following = asyncio.create_task(follow_all(self._followers, unknown_fields))
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
            self._heard.clear()
            size = stdout.terminal_size()
            made = frame.frame(self._board, self._sort, self._offset, size, self._notice())
            self._last_offset, self._page = made.last_offset, max(size.lines - _KEPT_LINES, 1)
            terminal.draw(made.lines, size)
            if self._question.count is not None and all(each.whole.is_set() for each in self._followers):
                now = asyncio.get_running_loop().time()
                last_at = last_at or now + (self._question.count - 1) * self._question.interval_seconds
                if now >= last_at:
                    return
            await self._news(following)

    def _notice(self) -> str:
        """Trouble with the one proxy; several have a line each."""
        first = self._followers[0]
        if self._question.proxies or first.connected or not first.trouble:
            return ""
        return f"no news from the proxy, trying again: {first.trouble}"

    async def _news(self, following: asyncio.Task[None]) -> None:
        """Wait for a key, or for outcomes but not for each single one, or until ages have grown."""
        typed = asyncio.create_task(self._typed.wait())
        changed = asyncio.create_task(self._changed())
        waiting: set[asyncio.Future[Any]] = {typed, changed, following}  # Any: only whether they are done matters
        await asyncio.wait(waiting, timeout=REDRAW_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        typed.cancel()
        changed.cancel()

    async def _changed(self) -> None:
        await self._heard.wait()
        await asyncio.sleep(_LEAST_REDRAW_SECONDS)

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
