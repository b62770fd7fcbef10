"""A fleet stream as its reader wants it: guest by guest, however many came in one message."""

from __future__ import annotations

import asyncio
from collections import deque

import grpc

from guest_fleet.v1 import fleet_pb2

# The types of the requests do not matter to who reads.
FleetCall = (
    grpc.aio.UnaryStreamCall[fleet_pb2.CollectGpuInfoRequest, fleet_pb2.CollectGpuInfoResponse]
    | grpc.aio.UnaryStreamCall[fleet_pb2.WatchGpuInfoRequest, fleet_pb2.WatchGpuInfoResponse]
)


class Entries:
    """The entries of `call`, one at a time."""

    def __init__(self, call: FleetCall) -> None:
        self._call = call
        self._waiting: deque[fleet_pb2.GuestGpuInfo] = deque()

    async def read(self) -> fleet_pb2.GuestGpuInfo:
        """The next entry; raises EOFError after the last."""
        if not self._waiting:
            message = await asyncio.wait_for(self._call.read(), 10)
            if not isinstance(message, fleet_pb2.CollectGpuInfoResponse | fleet_pb2.WatchGpuInfoResponse):
                raise EOFError
            assert message.guests, "a message without entries"
            self._waiting.extend(message.guests)
        return self._waiting.popleft()

    async def all(self) -> list[fleet_pb2.GuestGpuInfo]:
        """The entries that are left."""
        entries = []
        while True:
            try:
                entries.append(await self.read())
            except EOFError:
                return entries

    def cancel(self) -> None:
        """End the call."""
        self._call.cancel()
