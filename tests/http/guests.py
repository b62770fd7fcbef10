"""A guest for the pages: telemetry, system and engine that behave, each with the ways in which it can go wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from guest_api.guest_api_pb2 import Container, GpuInfoResponse, ListContainersResponse, SystemInfo
from guest_service.http.parts import HttpParts
from guest_service.http.server import HttpServer
from guest_transport.addresses import TcpAddress
from guest_transport.http.concurrency import REQUESTS_AT_ONCE
from guest_transport.http.connections import ClientLimits

GIB = 1024**3


@dataclass
class Bus:
    nvidia: int = 0


@dataclass
class Stats:
    samples: Mapping[str, int] = field(default_factory=lambda: {"sample": 3, "timeout": 1})
    last_duration_seconds: float | None = 0.125
    failed_cc_queries: int = 2


@dataclass
class Gpus:
    """Telemetry: `callers` are those whose request may begin a sample."""

    reply: GpuInfoResponse = field(default_factory=GpuInfoResponse)
    ready: bool = True
    inventory: Bus | None = field(default_factory=Bus)
    stats: Stats = field(default_factory=Stats)
    callers: list[str] = field(default_factory=list)

    def last(self, caller: str) -> GpuInfoResponse:
        self.callers.append(caller)
        return self.reply


@dataclass
class System:
    """System facts; `error` fails the read, `hangs` never ends it."""

    info: SystemInfo
    error: Exception | None = None
    hangs: bool = False
    reads: int = 0

    async def read(self) -> SystemInfo:
        self.reads += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        return self.info


@dataclass
class Engine:
    """Containers and their output. A log that is followed goes on with what is put into `more`."""

    containers: Sequence[Container] = ()
    output: Sequence[bytes] = (b"first line\n", b"second line\n")
    error: Exception | None = None
    breaks: Exception | None = None
    hangs: bool = False
    lists: int = 0
    asked: list[dict[str, object]] = field(default_factory=list)
    more: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)
    open_streams: int = 0

    async def list(self) -> ListContainersResponse:
        self.lists += 1
        if self.hangs:
            await asyncio.get_running_loop().create_future()
        if self.error is not None:
            raise self.error
        return ListContainersResponse(containers=self.containers)

    async def logs(
        self, container: str, *, since: float | None, until: float | None, tail: int | None, follow: bool, timestamps: bool
    ) -> AsyncIterator[bytes]:
        self.asked.append(
            {"container": container, "since": since, "until": until, "tail": tail, "follow": follow, "timestamps": timestamps}
        )
        self.open_streams += 1
        try:
            for line in self.output:
                yield line
            if self.breaks is not None:
                raise self.breaks
            while follow:
                yield await self.more.get()
        finally:
            self.open_streams -= 1


@dataclass
class Shown:
    """The switches, all on."""

    public_sysinfo: bool = True
    public_logs: bool = True
    public_containers: bool = True


@dataclass
class Guest:
    """A whole guest; `parts()` is what pages see of it."""

    gpus: Gpus = field(default_factory=Gpus)
    system: System = field(default_factory=lambda: System(system_info()))
    engine: Engine = field(default_factory=Engine)
    shown: Shown = field(default_factory=Shown)
    now: float = 1_800_000_000.0
    clock: float = 1000.0

    joined: HttpParts | None = None

    async def listed(self) -> None:
        """Return once the container list was read behind the pages."""
        assert self.joined is not None
        await self.joined.containers.soon(10)

    def parts(self) -> HttpParts:
        self.joined = HttpParts.join(
            rejected={"no_request": 0, "connections": 0, "calls": 0},
            telemetry=self.gpus,
            system=self.system,
            engine=self.engine,
            switches=lambda: self.shown,
            version="1.2.3",
            clock=lambda: self.clock,
            now=lambda: self.now,
        )
        return self.joined


@asynccontextmanager
async def served(
    guest: Guest, *, limits: ClientLimits | None = None, requests_at_once: int = REQUESTS_AT_ONCE
) -> AsyncGenerator[TcpAddress, None]:
    """The guest's pages on a loopback port."""
    server = HttpServer(guest.parts(), limits=limits, requests_at_once=requests_at_once)
    await server.start(TcpAddress("127.0.0.1", 0))
    [address] = server.addresses
    assert isinstance(address, TcpAddress)
    try:
        yield address
    finally:
        await server.stop(grace_seconds=1.0)


def system_info() -> SystemInfo:
    info = SystemInfo(
        os_name="Debian GNU/Linux",
        os_version="12 (bookworm)",
        kernel_version="6.1.0-31-amd64",
        cpu_model="Intel(R) Xeon(R) Platinum 8580",
        num_cpus=64,
        total_memory=512 * GIB,
        available_memory=371 * GIB,
        used_memory=141 * GIB,
        free_memory=290 * GIB,
        total_swap=8 * GIB,
        used_swap=1 * GIB,
        free_swap=7 * GIB,
        uptime=90061,
        loadavg_one=40,
        loadavg_five=100,
        loadavg_fifteen=1234,
    )
    info.disks.add(name="/dev/vda1", mount_point="/", total_size=100 * GIB, free_size=95 * GIB)
    info.disks.add(name="data/zvol", mount_point="/data", total_size=4096 * GIB, free_size=200 * GIB)
    return info


def h200s(count: int) -> GpuInfoResponse:
    """`count` cards with the figures measured on an H200 SXM in a TDX VM, memory and load varied."""
    reply = GpuInfoResponse(cc_enabled=True, cc_ready=True, sample_age_ms=1234)
    total = 150754820096
    for index in range(count):
        used = total * index // max(1, count)
        reply.gpus.add(
            index=index,
            uuid=f"GPU-{index:08x}-1b2c-3d4e-5f60-718293a4b5c6",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            utilization_gpu=min(100, 14 * index),
            utilization_memory=5 * index,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=total - used,
            temperature_c=31 + index,
            power_usage_mw=79_700 + 70_000 * index,
        )
    return reply


def containers(count: int) -> list[Container]:
    return [
        Container(
            id=f"{number:064x}",
            names=[f"/service-{number}"],
            image=f"docker.io/library/service:{number}",
            image_id="sha256:0",
            created=1_790_000_000,
            state="running" if number % 3 else "exited",
            status="Up 3 hours" if number % 3 else "Exited (0) 2 hours ago",
        )
        for number in range(count)
    ]
