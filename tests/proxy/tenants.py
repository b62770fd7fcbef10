"""A proxy with its pages, guests of two tenants, and readers who remember nothing but what they may not have been shown.

Each VM puts a secret of its own into everything that it says. After each step of a test whatever a reader was sent since the step before
is held against what was right before it or after it: secrets of other tenants' guests, and of VMs that are not the entry's, are `leaks`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import TcpAddress, parse_address
from guest_transport.http.server import PageServer
from tests.eventually import turns
from tests.http.web import connect, get, read_head, request
from tests.policy.callers import bearer, rules, token
from tests.proxy.raw_guest import Behaviour, RawGuest, Stream
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.app import join_pages, page_app
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.fleet.watch import Sleep
from vmm_proxy.pages.dashboard.render import Pages
from vmm_proxy.pages.settings import PageSetup
from vmm_proxy.policy.roles import Role

TENANTS = ("blue", "red")
IDS = ("a", "b")
VMS = 3
# Open at a time of each tenant; the oldest makes room. Half of what the proxy allows, because one that was left ends a moment later.
# Of a reader who takes what the proxy has kept of the guest.
KEPT = (("cache-control", "max-age=300"),)
STREAMS = 4
_SECRET = re.compile(rb"secret(\d+)x")


@dataclass
class Vm:
    """What listens at one socket; it is replaced by another VM with another secret."""

    secret: int
    guest: RawGuest
    large: bool = False
    held: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, stream: Stream) -> None:
        word, large = f"secret{self.secret}x", self.large
        method = stream.path.rpartition("/")[2]
        if method != "Info":
            await self.held.wait()
        # As it was when it was asked: another VM may have the socket by now.
        device = guest_api_pb2.GpuDevice(uuid=f"GPU-{word}", errors=["x" * 50_000] * 2 if large else [])
        reply = {
            "GpuInfo": guest_api_pb2.GpuInfoResponse(gpus=[device]),
            "SysInfo": guest_api_pb2.SystemInfo(os_name=word, num_cpus=1),
            "Info": guest_api_pb2.GuestInfo(version=word, instance_id=pin_of(self.secret)),
        }.get(method, guest_api_pb2.ListContainersResponse())
        await stream.answer(reply.SerializeToString())


def pin_of(secret: int) -> bytes:
    return secret.to_bytes(20, "big")


class Tenants:
    """The world of one run."""

    def __init__(self, folder: Path, proxy: Proxy, pages: TcpAddress, clock: Clock) -> None:
        self.folder, self.proxy, self.pages, self.clock = folder, proxy, pages, clock
        self.vms: list[Vm] = []
        self.tenants: dict[str, str] = {}
        self.at: dict[str, int] = {}
        self.pins: dict[str, int] = {}
        # Whose secrets an entry may show: of the VMs that were at its address since it has its generation.
        self.right: dict[str, set[int]] = {}
        self.leaks: list[str] = []
        # The secrets that each tenant read.
        self.shown: defaultdict[str, set[int]] = defaultdict(set)
        self._before: tuple[dict[str, str], dict[str, set[int]]] = ({}, {})
        self._tasks: set[asyncio.Task[None]] = set()
        self._secrets = 0
        self._streams: dict[str, deque[asyncio.Task[None]]] = {}

    async def boot(self) -> None:
        for number in range(VMS):
            guest = RawGuest(str(self.folder / f"g{number}"), self._answer_of(number))
            self.vms.append(Vm(self._next_secret(), guest))
            self.vms[number].held.set()
            await guest.start()

    def _answer_of(self, number: int) -> Behaviour:
        async def answer(stream: Stream) -> None:
            await self.vms[number].answer(stream)

        return answer

    def _next_secret(self) -> int:
        self._secrets += 1
        return self._secrets

    # What changes.

    def put(self, guest_id: str, number: int, tenant: str, *, pinned: bool) -> None:
        """Register `guest_id`, or update it."""
        pin = self.vms[number].secret if pinned else 0
        entry = GuestEntry(
            guest_id,
            parse_address(self.vms[number].guest.address),
            labels={"tenant": tenant},
            instance_id=pin_of(pin) if pinned else b"",
        )
        known = guest_id in self.at
        (self.proxy.directory.replace if known else self.proxy.directory.add)(entry)
        if not known or self.at[guest_id] != number or self.pins.get(guest_id, 0) != pin:
            self.right[guest_id] = {self.vms[number].secret}
        self.tenants[guest_id], self.at[guest_id], self.pins[guest_id] = tenant, number, pin

    def remove(self, guest_id: str) -> None:
        self.proxy.directory.remove(guest_id)
        for known in (self.tenants, self.at, self.pins, self.right):
            del known[guest_id]

    async def replace_vm(self, number: int) -> None:
        """Another VM listens at the socket."""
        old = self.vms[number]
        await old.guest.stop()
        old.held.set()
        (self.folder / f"g{number}").unlink(missing_ok=True)
        self.vms[number] = Vm(self._next_secret(), RawGuest(old.guest.path, self._answer_of(number)))
        self.vms[number].held.set()
        await self.vms[number].guest.start()
        for guest_id, at in self.at.items():
            if at == number and not self.pins[guest_id]:
                self.right[guest_id].add(self.vms[number].secret)

    # Who reads.

    def _read(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def ask(self, tenant: str, guest_id: str, method: str, *, kept: bool = False) -> None:
        metadata = (*bearer(tenant), *(KEPT if kept else ()))

        async def read() -> None:
            call = getattr(self.proxy.api, method)(guest_api_pb2.Id(id=guest_id), timeout=20, metadata=metadata)
            with contextlib.suppress(grpc.aio.AioRpcError):
                self._see(tenant, guest_id, (await call).SerializeToString(), method)

        self._read(read())

    def stream(self, tenant: str, *, watch: bool, by_name: bool, kept: bool = False) -> None:
        metadata = (*bearer(tenant), *(KEPT if kept else ()))
        selector = fleet_pb2.GuestSelector(ids=IDS if by_name else ())
        asked = fleet_pb2.WatchGpuInfoRequest(selector=selector) if watch else fleet_pb2.CollectGpuInfoRequest(selector=selector)
        method = self.proxy.fleet.WatchGpuInfo if watch else self.proxy.fleet.CollectGpuInfo

        async def read() -> None:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for message in method(asked, metadata=metadata):  # type: ignore[arg-type] # one of two pairs
                    for entry in message.guests:
                        self._see(tenant, entry.guest_id, entry.SerializeToString(), "watch" if watch else "collect")

        streams = self._streams.setdefault(tenant, deque())
        if len(streams) == STREAMS:
            streams.popleft().cancel()
        streams.append(self._read(read()))

    def list(self, tenant: str) -> None:
        async def read() -> None:
            listed = await self.proxy.fleet.ListGuests(fleet_pb2.ListGuestsRequest(), metadata=bearer(tenant))
            for guest in listed.guests:
                self._see(tenant, guest.id, guest.SerializeToString(), "list")
                if tenant not in {known.get(guest.id) for known in (self.tenants, self._before[0])}:
                    self.leaks.append(f"list: {tenant} was told of {guest.id}")

        self._read(read())

    def scrape(self, guest_id: str) -> None:
        async def read() -> None:
            self._see(None, guest_id, (await get(self.pages, f"/metrics?vm_id={guest_id}")).body, "scrape")
            for line in (await get(self.pages, "/metrics")).body.splitlines():
                if named := re.search(rb'vm_id="(\w+)"', line):
                    self._see(None, named[1].decode(), line, "metrics")

        self._read(read())

    def page(self) -> None:
        async def read() -> None:
            self._see_any((await get(self.pages, "/")).body, "page")

        self._read(read())

    def events(self) -> None:
        async def read() -> None:
            reader, writer = await connect(self.pages)
            with contextlib.closing(writer):
                writer.write(request("/events"))
                await read_head(reader)
                while line := await reader.readline():
                    self._see_any(line, "events")

        self._read(read())

    # What may be seen.

    def _see(self, tenant: str | None, guest_id: str, data: bytes, where: str) -> None:
        for secret in {int(found) for found in _SECRET.findall(data)}:
            self.shown[tenant or ""].add(secret)
            states = ((self.tenants, self.right), self._before)
            if not any(
                secret in right.get(guest_id, ()) and (tenant is None or tenants.get(guest_id) == tenant)
                for tenants, right in states
            ):
                self.leaks.append(
                    f"{where}: {tenant or 'a page'} was shown {secret} as {guest_id}; right is {self.tenants} {self.right}"
                )

    def _see_any(self, data: bytes, where: str) -> None:
        right = set[int]().union(*self.right.values(), *self._before[1].values())
        if wrong := {int(found) for found in _SECRET.findall(data)} - right:
            self.leaks.append(f"{where}: {wrong} was shown; right is {self.right}")

    def join(self) -> None:
        """A new watcher of each tenant, who may be served with what is known."""
        for tenant in TENANTS:
            self.stream(tenant, watch=True, by_name=False)

    async def settle(self) -> None:
        """Have everything read that was sent, and take the present state as what was right before the next step."""
        for _ in range(3):
            with contextlib.suppress(grpc.aio.AioRpcError):
                # Its answer comes after what was sent before it on the same connection.
                await self.proxy.api.Info(guest_api_pb2.Id(id="nobody"), timeout=20, metadata=bearer("blue"))
            await turns(50)
        self._before = (dict(self.tenants), {guest_id: set(right) for guest_id, right in self.right.items()})

    async def close(self) -> None:
        for vm in self.vms:
            vm.held.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for vm in self.vms:
            await vm.guest.stop()


class Clock:
    """Ends the interval of every watch when the test says so."""

    def __init__(self) -> None:
        self._tick = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        await self._tick.wait()

    def tick(self) -> None:
        self._tick.set()
        self._tick = asyncio.Event()


@contextlib.asynccontextmanager
async def running_tenants(folder: Path) -> AsyncIterator[Tenants]:
    """The proxy, its pages and its VMs; no guest is registered."""
    clock = Clock()
    sleep: Sleep = clock.sleep
    access = rules(tokens=tuple(token(tenant, Role.VIEWER, {"tenant": tenant}) for tenant in TENANTS))
    async with running_proxy(folder / "proxy", sleep=sleep, access=access) as proxy:
        setup = PageSetup(TcpAddress("127.0.0.1", 0), {}, False, None, False)
        server = PageServer()
        pages = join_pages(setup, proxy.parts, await asyncio.to_thread(Pages, "1"), server)
        await server.start(page_app(pages, proxy.parts), TcpAddress("127.0.0.1", 0))
        [address] = server.addresses
        assert isinstance(address, TcpAddress)
        world = Tenants(folder, proxy, address, clock)
        await world.boot()
        try:
            yield world
        finally:
            await world.close()
            await server.stop(grace_seconds=0.1)
            await pages.close()
