"""`top` on a terminal: the screen, its keys, and a proxy that may go away and come back.

The last values and their age stay in view while there is no proxy: somebody who watches a fleet through a restart wants to see it pass.
"""

from __future__ import annotations

import asyncio
import signal

from guest_client.errors import DeadlineError, LimitError, UnavailableError
from guest_client.guestctl import connect
from guest_client.guestctl.output import screen, stdout
from guest_client.guestctl.output.remarks import UnknownFields
from guest_client.guestctl.output.screen import Key
from guest_client.guestctl.request import SORTS, Question
from guest_client.guestctl.top import frame
from guest_client.guestctl.top.fleet_state import Board
from guest_client.guestctl.top.follow import Follower

# A proxy that was restarted is seen again as soon.
RETRY_SECONDS = 1.0
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
        self._follower = Follower(question, board)
        self._sort = question.sort
        self._offset = 0
        self._last_offset = 0
        self._page = 1
        self._trouble = ""
        self._typed = asyncio.Event()
        self._ended = False
        self._signal: signal.Signals | None = None

    async def run(self) -> signal.Signals | None:
        """Show until the end; the signal that was it."""
        loop = asyncio.get_running_loop()
        async with await connect.async_proxy_client(self._question) as proxy:
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
            size = stdout.terminal_size()
            made = frame.frame(self._board, self._sort, self._offset, size, self._notice())
            self._last_offset, self._page = made.last_offset, max(size.lines - _KEPT_LINES, 1)
            terminal.draw(made.lines, size)
            if self._question.count is not None and self._follower.whole.is_set():
                now = asyncio.get_running_loop().time()
                last_at = last_at or now + (self._question.count - 1) * self._question.interval_seconds
                if now >= last_at:
                    return
            await self._news(following)

    def _notice(self) -> str:
        if self._follower.connected or not self._trouble:
            return ""
        return f"no news from the proxy, trying again: {self._trouble}"

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
        unknown_fields = UnknownFields(lambda _: None)  # a remark would stand in the middle of the screen
        while True:
            try:
                async with await connect.async_proxy_client(self._question) as proxy:
                    await self._follower.follow(proxy, unknown_fields)
            except (UnavailableError, LimitError, DeadlineError) as error:
                self._trouble = error.reason or error.code.name.lower()
            self._follower.changed.set()
            await asyncio.sleep(RETRY_SECONDS)

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
