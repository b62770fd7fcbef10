"""Disturbs guests at random moments: they hang and go on, go and come again, are killed and started anew. The seed makes a run repeatable.

Each guest has one way of being disturbed and its own random numbers, so that what happens to one does not depend on how fast another
started. Everything is written into the book before it is done, and its end after it is over.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable

import grpc

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import parse_address
from guest_transport.options import channel_options
from soak.fleet import Fleet
from soak.judging import Book, Kind

# Between two disturbances of one guest: long enough to settle and be called in peace.
REST_SECONDS = (3.0, 7.0)
# A hang has to outlast the calls that it holds up, and to be shorter than keepalive's patience (40 s).
HANG_SECONDS = (2.0, 6.0)
AWAY_SECONDS = (0.5, 3.0)
# A change of the directory is an fsync of a small file.
DIRECTORY_SECONDS = 15.0


class Registrar:
    """Registers guests of `fleet` at its proxy, as a VMM does."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        address = parse_address(fleet.proxy_address)
        self._channel = grpc.aio.insecure_channel(fleet.proxy_address, options=channel_options(address))
        self._directory: fleet_pb2_grpc.DirectoryServiceAsyncStub = fleet_pb2_grpc.DirectoryServiceStub(self._channel)

    async def register(self, guest: str) -> None:
        """Tell the proxy of `guest`; raises AioRpcError."""
        entry = fleet_pb2.GuestEntry(id=guest, address=self._fleet.dialled_address(guest), labels={"rack": "soak"})
        await self._directory.RegisterGuest(fleet_pb2.RegisterGuestRequest(guest=entry), timeout=DIRECTORY_SECONDS)

    async def deregister(self, guest: str) -> None:
        """Have the proxy forget `guest`; raises AioRpcError."""
        await self._directory.DeregisterGuest(fleet_pb2.DeregisterGuestRequest(id=guest), timeout=DIRECTORY_SECONDS)

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()


class Disturber:
    """Disturbs those guests of `fleet` that `ways` names, from start() to stop(), after which all of them run."""

    def __init__(self, fleet: Fleet, book: Book, registrar: Registrar, ways: dict[str, Kind], seed: int) -> None:
        self._fleet = fleet
        self._book = book
        self._registrar = registrar
        self._ways = ways
        # No secrets are made of these.
        self._random = {guest: random.Random(f"{seed} {guest}") for guest in ways}  # noqa: S311
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin."""
        self._stop.clear()
        self._tasks = [asyncio.create_task(self._again(guest, kind)) for guest, kind in self._ways.items()]

    async def stop(self) -> None:
        """End what is being done, and do nothing more; raises what went wrong."""
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def first_failure(self) -> None:
        """Wait until one of them fails, and raise that."""
        await asyncio.gather(*self._tasks)

    async def _again(self, guest: str, kind: Kind) -> None:
        ways: dict[Kind, Callable[[str], Awaitable[None]]] = {
            Kind.HANGS: self._hang,
            Kind.GONE: self._go,
            Kind.KILLED: self._kill,
        }
        while not await self._stopped_within(self._random[guest].uniform(*REST_SECONDS)):
            disturbance = self._book.begin(guest, kind, asyncio.get_running_loop().time())
            try:
                await ways[kind](guest)
            finally:
                disturbance.ended = asyncio.get_running_loop().time()

    async def _hang(self, guest: str) -> None:
        service = self._fleet.guests[guest]
        service.send(signal.SIGSTOP, children=True)
        service.ear.excuse()
        try:
            await self._stopped_within(self._random[guest].uniform(*HANG_SECONDS))
        finally:
            service.send(signal.SIGCONT, children=True)

    async def _go(self, guest: str) -> None:
        await self._registrar.deregister(guest)
        await self._fleet.guests[guest].stop()
        await self._stopped_within(self._random[guest].uniform(*AWAY_SECONDS))
        await self._fleet.guests[guest].start()
        await self._registrar.register(guest)

    async def _kill(self, guest: str) -> None:
        await self._fleet.guests[guest].kill()
        await self._fleet.guests[guest].start()

    async def _stopped_within(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return False
        return True
