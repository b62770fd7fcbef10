"""Kills agents, collectors and the proxy of a fleet under load, and finds what is not whole or not back afterwards.

A victim is started again where a service manager would do it; nothing is cleaned up for it. What was promised stands in the ledger, what
became of calls in the book; only what the two do not explain is a fault. Rejected: killing at chosen points of the code (a fault between
two of them would never be met).
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import grpc

from guest_client import AsyncGuestClient, AsyncProxyClient, CallError
from guest_fleet.v1 import fleet_pb2_grpc
from guest_transport.addresses import parse_address
from guest_transport.options import channel_options
from soak.ages import Ages
from soak.callers import Callers
from soak.fleet import Fleet
from soak.judging import DIRECT, Book, Kind
from soak.ledger import IDS_OF_A_CLERK, PREFIX, Clerk, Ledger, faults_of_audit, numbers_in_file
from soak.processes import children_of, processes_about
from soak.service import Service
from soak.verdict import BAD_WORDS

# Between the end of one death's checks and the next death: short, because what a death meets must not be rest.
BETWEEN_SECONDS = (0.05, 0.6)
# How often each is chosen. Proxies hold the files; collectors are the quickest to check.
VICTIMS = {"proxy": 4, "agent": 3, "collector": 3}
# From READY to the first good call: what is aimed at (a channel that waits out its backoff of 1 s and connects), and what fails a run. A
# machine with ten other programs on two cores is no slower service; ten times the aim is one that does not come back by itself.
BACK_AIM_SECONDS = 2.0
BACK_LIMIT_SECONDS = 20.0
# A collector whose agent was killed is killed by the kernel with it; this long it may take to be gone on a busy machine.
ORPHAN_SECONDS = 5.0
# A collector lives for 0.1 s and comes every second.
COLLECTOR_SECONDS = 20.0
LOOK_AGAIN_SECONDS = 0.002
TRY_AGAIN_SECONDS = 0.01
TRY_SECONDS = 2.0
CLERKS = 3
# Each of them several times a second, and each of the guests.
CALL_EVERY_SECONDS = 0.1
PAGE_EVERY_SECONDS = 1.0


class Kills:
    """One run: services in `fleet`, and what was found."""

    def __init__(self, fleet: Fleet, guests: int, seed: int) -> None:
        self.fleet = fleet
        self._names = [f"vm{number}" for number in range(guests)]
        for name in self._names:
            fleet.add_guest(name)
        # One of them is behind hybrid vsock, so that the proxy has relays of both kinds.
        fleet.hybrid = {self._names[-1]}
        self.vmm = Service("vmm", ["soak.vmm", str(fleet.folder), *fleet.hybrid], fleet.folder)
        self._random = random.Random(seed)  # noqa: S311 - no secrets are made of it
        self._loop = asyncio.get_running_loop()
        # The clerks' guests are entries without anybody behind them.
        nobody = {f"{PREFIX}-{clerk}-{number}" for clerk in range(CLERKS) for number in range(IDS_OF_A_CLERK)}
        self.book = Book(always=dict.fromkeys(nobody, frozenset({"UNAVAILABLE", "NOT_FOUND"})))
        self.ledger = Ledger()
        self.faults: list[str] = []
        # By victim: from the kill to READY, and from READY (of a collector: from the kill) to the first good call.
        self.starts: dict[str, list[float]] = defaultdict(list)
        self.backs: dict[str, list[float]] = defaultdict(list)

    async def run(self, kills: int) -> None:
        """Kill so often; raises ServiceError."""
        self.fleet.configure_proxy((name, self.fleet.dialled_address(name)) for name in self._names)
        await asyncio.gather(*(service.start() for service in [self.vmm, *self.fleet.services]))
        async with self._clients() as (client, directs, clerks):
            callers = self._load(client, directs)
            for _ in range(kills):
                await asyncio.sleep(self._random.uniform(*BETWEEN_SECONDS))
                (victim,) = self._random.choices(list(VICTIMS), list(VICTIMS.values()))
                if victim == "proxy":
                    await self._kill_proxy(client, clerks)
                elif victim == "agent":
                    await self._kill_agent(client, self._random.choice(self._names))
                else:
                    await self._kill_collector(client, self._random.choice(self._names))
            await self._idle(clerks)
            await callers.pause()
        self.faults += faults_of_audit(self.fleet.audit_file, self.ledger.promises)
        self._find_left_behind(running=True)
        for service in self.fleet.services:
            await service.stop()
        self._find_left_behind(running=False)
        self._judge_calls()

    @contextlib.asynccontextmanager
    async def _clients(self) -> AsyncIterator[tuple[AsyncProxyClient, dict[str, AsyncGuestClient], list[Clerk]]]:
        """Clients that live through all deaths, as callers' do, and the clerks at work."""
        address = self.fleet.proxy_address
        async with contextlib.AsyncExitStack() as clients:
            client = await clients.enter_async_context(AsyncProxyClient(address))
            directs = {
                name: await clients.enter_async_context(AsyncGuestClient(self.fleet.guest_address(name))) for name in self._names
            }
            options = channel_options(parse_address(address))
            channel = await clients.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            directory: fleet_pb2_grpc.DirectoryServiceAsyncStub = fleet_pb2_grpc.DirectoryServiceStub(channel)
            seed = self._random.randrange(2**32)
            clerks = [Clerk(str(number), directory, self.ledger, self.book, seed) for number in range(CLERKS)]
            for clerk in clerks:
                clerk.may_work.set()
            working = [asyncio.create_task(clerk.work()) for clerk in clerks]
            try:
                yield client, directs, clerks
            finally:
                for task in working:
                    task.cancel()
                await asyncio.gather(*working, return_exceptions=True)

    def _load(self, client: AsyncProxyClient, directs: dict[str, AsyncGuestClient]) -> Callers:
        callers = Callers(client, self.fleet.proxy_page, self.book, Ages(self._names, self.book))
        callers.each(CALL_EVERY_SECONDS, callers.in_turn("gpu_info", self._names))
        callers.each(CALL_EVERY_SECONDS * 2, callers.in_turn("info", self._names))
        callers.each(PAGE_EVERY_SECONDS, callers.collect(lambda: self._names))
        callers.each(PAGE_EVERY_SECONDS, callers.scrape(self.fleet.proxy_page))
        for name, direct in directs.items():
            callers.each(CALL_EVERY_SECONDS * len(directs), callers.ask_directly(direct, f"{DIRECT}{name}"))
        return callers

    async def _kill_proxy(self, client: AsyncProxyClient, clerks: list[Clerk]) -> None:
        disturbance = self.book.begin("", Kind.PROXY_KILLED, self._loop.time())
        killed_at = await self.fleet.proxy.kill()
        await self._idle(clerks)
        where = f"after kill {self._count()} (proxy)"
        try:
            in_file = numbers_in_file(self.fleet.registered_file)
        except (ValueError, KeyError) as error:
            self.faults.append(f"{where}: the directory's file is not whole: {error}")
        else:
            self.faults += self.ledger.faults_of(in_file, f"{where}, file")
        ready_at = await self.fleet.proxy.start()
        self.starts["proxy"].append(ready_at - killed_at)
        self.backs["proxy"].append(await self._first_good(client, self._random.choice(self._names)) - ready_at)
        disturbance.ended = self._loop.time()
        seen = {guest.id: int(guest.labels["change"]) async for guest in client.list_guests() if guest.id.startswith(PREFIX)}
        self.faults += self.ledger.faults_of(seen, f"{where}, proxy")
        for clerk in clerks:
            clerk.may_work.set()

    async def _kill_agent(self, client: AsyncProxyClient, guest: str) -> None:
        service = self.fleet.guests[guest]
        now = self._loop.time()
        disturbances = [self.book.begin(name, Kind.KILLED, now) for name in (guest, f"{DIRECT}{guest}")]
        killed_at = await service.kill()
        await self._no_orphans(guest)
        ready_at = await service.start()
        self.starts["agent"].append(ready_at - killed_at)
        self.backs["agent"].append(await self._first_good(client, guest) - ready_at)
        for disturbance in disturbances:
            disturbance.ended = self._loop.time()

    async def _kill_collector(self, client: AsyncProxyClient, guest: str) -> None:
        service = self.fleet.guests[guest]
        collector = await self._collector_of(service)
        now = self._loop.time()
        disturbances = [self.book.begin(name, Kind.COLLECTOR_KILLED, now) for name in (guest, f"{DIRECT}{guest}")]
        at = time.time()
        with contextlib.suppress(ProcessLookupError):
            os.kill(collector, signal.SIGKILL)
        self.backs["collector"].append(await self._first_good(client, guest, newer_than=at) - at)
        for disturbance in disturbances:
            disturbance.ended = self._loop.time()

    async def _collector_of(self, service: Service) -> int:
        """A collector that runs right now; calls come several times a second, and so do samples."""
        async with asyncio.timeout(COLLECTOR_SECONDS):
            while not (children := children_of(service.pid)):  # noqa: ASYNC110 - a child tells nobody that it is there
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        return children[0]

    async def _no_orphans(self, guest: str) -> None:
        """Until no process of the dead agent is left, or a fault."""
        until = self._loop.time() + ORPHAN_SECONDS
        while left := processes_about(self.fleet.folder / f"{guest}.rack.toml"):
            if self._loop.time() > until:
                self.faults.append(f"kill {self._count()}: {guest}'s agent left {left} behind")
                return
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _first_good(self, client: AsyncProxyClient, guest: str, newer_than: float = 0.0) -> float:
        """When (epoch seconds) a call to `guest` was first answered with GPUs, of a sample taken after `newer_than`."""
        until = self._loop.time() + BACK_LIMIT_SECONDS
        while True:
            with contextlib.suppress(CallError):
                reply = await client.gpu_info(guest, timeout_seconds=TRY_SECONDS)
                now = time.time()
                if reply.gpus and now - reply.sample_age_ms / 1000 > newer_than:
                    return now
            if self._loop.time() > until:
                self.faults.append(f"kill {self._count()}: {guest} is not back after {BACK_LIMIT_SECONDS:.0f} s")
                return time.time()
            await asyncio.sleep(TRY_AGAIN_SECONDS)

    async def _idle(self, clerks: list[Clerk]) -> None:
        for clerk in clerks:
            clerk.may_work.clear()
        await asyncio.gather(*(clerk.idle.wait() for clerk in clerks))

    def _count(self) -> int:
        return sum(len(backs) for backs in self.backs.values()) + 1

    def _find_left_behind(self, *, running: bool) -> None:
        """Files that nobody needs: half-written ones always, sockets and their folders once nothing runs any more."""
        folder = self.fleet.folder
        for path in folder.glob(".*"):
            self.faults.append(f"left behind: {path.name}")
        # While all runs, each private folder of sockets is locked by who uses it (the proxy has one for each guest that it dialled).
        for path in sorted((folder / "tmp").iterdir()):
            if not running or not _is_held(path):
                self.faults.append(f"left behind: {path.name}, a private folder of sockets that nobody uses")
        if not running:
            self.faults += [
                f"left behind: {path.name}" for path in folder.iterdir() if path.suffix in {".sock", ".http", ".lock"}
            ]

    def _judge_calls(self) -> None:
        for failure in self.book.lost():
            self.faults.append(f"lost: {failure.what} about {failure.guest or 'none'}: {failure.status} {failure.text[:200]}")
        for service in self.fleet.services:
            for line in service.log_text().splitlines():
                if any(words in line for words in BAD_WORDS):
                    self.faults.append(f"{service.name}: its log has: {line[:200]}")
        for victim, backs in self.backs.items():
            if max(backs) > BACK_LIMIT_SECONDS:
                self.faults.append(f"{victim}: back only after {max(backs):.1f} s, and {BACK_LIMIT_SECONDS:.0f} are allowed")
        if not self.ledger.promises:
            self.faults.append("no change of the directory was answered: nothing was proven of the files")


def _is_held(folder: Path) -> bool:
    """Whether a process holds the lock of `folder` (guest_transport.sockets.private_folder); one that is gone by now was in use."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False
