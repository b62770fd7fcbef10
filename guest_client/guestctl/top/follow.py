"""Keeps a Board up to date: a stream for what guests say, and a list now and then for which guests there are and which of them are stopped.

The stream alone would not do: a proxy falls silent about a guest that left its directory, as it does about one that needs long.
"""

from __future__ import annotations

import asyncio
import contextlib

from guest_client.async_client import AsyncProxyClient
from guest_client.errors import CallError
from guest_client.guestctl.output.remarks import UnknownFields
from guest_client.guestctl.request import Chosen, Question
from guest_client.guestctl.top.fleet_state import Board

# A guest that left is shown no longer than that; a list of a thousand guests costs the proxy what one of them costs to ask.
LIST_SECONDS = 30.0


class Follower:
    """Follows the guests that a question chooses."""

    def __init__(self, question: Question, board: Board) -> None:
        self._question = question
        self._chosen = question.chosen or Chosen()
        self._board = board
        self.changed = asyncio.Event()
        # Set once every guest that is known has been heard.
        self.whole = asyncio.Event()
        self.connected = False

    async def list_guests(self, proxy: AsyncProxyClient) -> None:
        """Learn which guests there are; raises ClientError at once when the proxy is not there, or not for us."""
        guests = proxy.list_guests(ids=self._chosen.ids, labels=self._chosen.labels or None, page_size=1000)
        async with contextlib.aclosing(guests):
            self._board.expect([guest async for guest in guests])
        self._news()

    async def follow(self, proxy: AsyncProxyClient, unknown_fields: UnknownFields) -> None:
        """Tell the board of every outcome; raises ClientError when the stream breaks."""
        self._board.new_stream()
        stream = proxy.watch_gpu_info(
            ids=self._chosen.ids, labels=self._chosen.labels or None, interval_seconds=self._question.interval_seconds
        )
        listing = asyncio.create_task(self._list_again(proxy))
        try:
            async with contextlib.aclosing(stream) as outcomes:
                async for outcome in outcomes:
                    self._board.tell(outcome)
                    unknown_fields.look_at(outcome)
                    self._news()
        finally:
            self.connected = False
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    async def _list_again(self, proxy: AsyncProxyClient) -> None:
        while True:
            with contextlib.suppress(CallError):  # the stream meets the same trouble, and tells
                await self.list_guests(proxy)
            await asyncio.sleep(LIST_SECONDS)

    def _news(self) -> None:
        self.connected = True
        self.changed.set()
        if self._board.all_heard(self._chosen.ids):
            self.whole.set()
