"""Keeps a Board up to date: a stream for what guests say, and a list now and then for which guests there are and which of them are stopped.

The stream alone would not do: a proxy falls silent about a guest that left its directory, as it does about one that needs long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import grpc
from google.rpc import code_pb2

from guest_client.async_client import AsyncProxyClient
from guest_client.errors import CallError, ClientError, DeadlineError, LimitError, UnavailableError, failure
from guest_client.guestctl import connect
from guest_client.guestctl.fleet.several import HostQuestion
from guest_client.guestctl.output.remarks import UnknownFields
from guest_client.guestctl.top.fleet_state import Board

# A guest that left is shown no longer than that; a list of a thousand guests costs the proxy what one of them costs to ask.
LIST_SECONDS = 30.0


# A proxy that was restarted is seen again as soon.
RETRY_SECONDS = 1.0


class Follower:
    """Follows the guests of one proxy that a question chooses; `changed` is set with each piece of news."""

    def __init__(self, asked: HostQuestion, board: Board, changed: asyncio.Event) -> None:
        self._asked = asked
        self._board = board
        self._changed = changed
        # Set once every guest that is known has been heard, or that none can be is known.
        self.whole = asyncio.Event()
        self.connected = False
        # Why there is no connection, once one has failed.
        self.trouble = ""
        if asked.host:
            # A host that hangs is seen from the first frame on.
            board.away[asked.host] = failure(
                grpc.StatusCode.DEADLINE_EXCEEDED, "no answer yet", method="ListGuests", address=asked.question.address
            )

    async def list_guests(self, proxy: AsyncProxyClient) -> None:
        """Learn which guests there are; raises ClientError at once when the proxy is not there, or not for us."""
        chosen = self._asked.chosen
        guests = proxy.list_guests(ids=chosen.ids, labels=chosen.labels or None, page_size=1000)
        async with contextlib.aclosing(guests):
            self._board.expect([guest async for guest in guests], self._asked.host)
        self._news()

    async def follow(self, proxy: AsyncProxyClient, unknown_fields: UnknownFields) -> None:
        """Tell the board of every outcome; raises ClientError when the stream breaks."""
        self._board.new_stream(self._asked.host)
        chosen = self._asked.chosen
        stream = proxy.watch_gpu_info(
            ids=chosen.ids, labels=chosen.labels or None, interval_seconds=self._asked.question.interval_seconds
        )
        listing = asyncio.create_task(self._list_again(proxy))
        try:
            async with contextlib.aclosing(stream) as outcomes:
                async for outcome in outcomes:
                    if self._asked.host and outcome.status.code == code_pb2.NOT_FOUND:
                        continue  # another host may know it
                    self._board.tell(outcome, self._asked.host)
                    unknown_fields.look_at(outcome)
                    self._news()
        finally:
            self.connected = False
            listing.cancel()
            await asyncio.gather(listing, return_exceptions=True)

    async def keep_following(self, unknown_fields: UnknownFields) -> None:
        """Follow, over again when the proxy comes back; raises what does not pass by itself, where there is one proxy."""
        while True:
            try:
                async with await connect.async_proxy_client(self._asked.question) as proxy:
                    if self._asked.host:
                        await self.list_guests(proxy)
                    await self.follow(proxy, unknown_fields)
            except (UnavailableError, LimitError, DeadlineError) as error:
                self._failed(error, error.reason or error.code.name.lower())
            except ClientError as error:
                if not self._asked.host:
                    raise
                self._failed(error, str(error))
            self._changed.set()
            await asyncio.sleep(RETRY_SECONDS)

    def _failed(self, error: ClientError, reason: str) -> None:
        self.trouble = reason
        if self._asked.host:
            self._board.away[self._asked.host] = error
            self.whole.set()

    async def _list_again(self, proxy: AsyncProxyClient) -> None:
        while True:
            with contextlib.suppress(CallError):  # the stream meets the same trouble, and tells
                await self.list_guests(proxy)
            await asyncio.sleep(LIST_SECONDS)

    def _news(self) -> None:
        self.connected = True
        self._board.away.pop(self._asked.host, None)
        self._changed.set()
        asked = self._asked
        # Of several hosts not each knows each id that is meant.
        if self._board.all_heard(() if asked.host else asked.chosen.ids):
            self.whole.set()


async def follow_all(followers: Sequence[Follower], unknown_fields: UnknownFields) -> None:
    """Each until the end; raises what the follower of a single proxy raises."""
    await asyncio.gather(*(each.keep_following(unknown_fields) for each in followers))
