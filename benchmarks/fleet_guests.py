"""Guests for benchmarks of the fleet: what one answers, with every value of every group, and processes that serve many of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any

import grpc

from guest_api import guest_api_pb2_grpc
from guest_api.guest_api_pb2 import GpuInfoResponse, GuestInfo, ListContainersResponse, NetworkInformation, SystemInfo
from guest_contract.card_fields import BASE, GROUPS, ROWS
from guest_contract.card_row import COUNTER, TEXT_VALUE

CARDS = 8
SERVERS = 4
# 250 guests take a process a second or two; a machine that needs a minute measures nothing that is worth knowing.
START_SECONDS = 60.0
STOP_SECONDS = 10.0

# What a card's values are beside those that gpus() sets itself: steady ones, as they mostly are, and counters that grow.
_SET = {row.name for row in ROWS if row.group == BASE}
STEADY: dict[str, Any] = (
    {row.name: row.name if row.unit == TEXT_VALUE else max(row.least, min(row.most, 1)) for row in ROWS if row.name not in _SET}
    | dict.fromkeys(("row_remap_pending", "row_remap_failed", "retired_pages_pending", "recovery_action"), 0)
    | {"power_limit_mw": 700_000}
)
GROWING = tuple(
    row.name
    for row in ROWS
    if row.metric and row.metric.kind == COUNTER and row.name not in _SET and "uncorrected" not in row.name
)


def gpus(guest: int, turn: int, cards: int = CARDS, *, only_base: bool = False) -> GpuInfoResponse:
    reply = GpuInfoResponse(cc_enabled=True, cc_ready=True, sample_age_ms=1200 + turn, groups=GROUPS, driver_version="580.95.05")
    for index in range(cards):
        used = (guest * 7919 + index * 104729 + turn * 31337) % 150754820096
        reply.gpus.add(
            index=index,
            uuid=f"GPU-{guest:08x}-{index:04x}-3d4e-5f60-718293a4b5c6",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            utilization_gpu=(guest + index + turn) % 101,
            utilization_memory=(guest + turn) % 101,
            memory_total_bytes=150754820096,
            memory_used_bytes=used,
            memory_free_bytes=150754820096 - used,
            temperature_c=30 + (index + turn) % 50,
            power_usage_mw=79_700 + 1000 * ((index + turn) % 600),
            **({} if only_base else STEADY | dict.fromkeys(GROWING, 1000 + turn)),
        )
    return reply


def system(guest: int, turn: int) -> SystemInfo:
    info = SystemInfo(
        os_name="Debian GNU/Linux",
        os_version="12",
        kernel_version="6.1.0-31-amd64",
        cpu_model="Intel(R) Xeon(R) Platinum 8580",
        num_cpus=64,
        total_memory=2**39,
        available_memory=2**38 + turn,
        used_memory=2**38 - turn,
        free_memory=2**37 + guest,
        uptime=100_000 + turn,
        loadavg_one=100 + turn % 50,
    )
    for name in ("/", "/data"):
        info.disks.add(name=f"/dev/vd{len(name)}", mount_point=name, total_size=2**40, free_size=2**39 + turn)
    return info


class Answering(guest_api_pb2_grpc.GuestApiServicer):
    """A guest that answers at once."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._turn = 0

    async def GpuInfo(self, request: Any, context: Any) -> GpuInfoResponse:  # noqa: N802, ARG002
        self._turn += 1
        return gpus(self._number, self._turn)

    async def SysInfo(self, request: Any, context: Any) -> SystemInfo:  # noqa: N802, ARG002
        return system(self._number, self._turn)

    async def ListContainers(self, request: Any, context: Any) -> ListContainersResponse:  # noqa: N802, ARG002
        return ListContainersResponse()

    async def NetworkInfo(self, request: Any, context: Any) -> NetworkInformation:  # noqa: N802, ARG002
        return NetworkInformation()

    async def Info(self, request: Any, context: Any) -> GuestInfo:  # noqa: N802, ARG002
        return GuestInfo()

    async def Shutdown(self, request: Any, context: Any) -> Any:  # noqa: N802
        raise NotImplementedError


def serve_guests(folder: str, numbers: list[int], ready: Any, stop: Any) -> None:
    async def serve() -> None:
        servers = []
        for number in numbers:
            server = grpc.aio.server()
            guest_api_pb2_grpc.add_GuestApiServicer_to_server(Answering(number), server)
            server.add_insecure_port(f"unix:{folder}/{number}")
            await server.start()
            servers.append(server)
        ready.release()
        await asyncio.to_thread(stop.wait)
        await asyncio.gather(*(server.stop(None) for server in servers))

    asyncio.run(serve())


@contextlib.asynccontextmanager
async def guest_processes(guests: int, folder: str) -> AsyncIterator[None]:
    """A few processes that serve `guests` guests at sockets in `folder`; raises SystemExit when one does not come to serve."""
    context = get_context("spawn")
    ready, stop = context.Semaphore(0), context.Event()
    numbers = [list(range(first, guests, SERVERS)) for first in range(SERVERS)]
    # Daemons end with this process, however it ends.
    children = [context.Process(target=serve_guests, args=(folder, part, ready, stop), daemon=True) for part in numbers]
    for child in children:
        child.start()
    try:
        await all_ready(children, ready)
        yield
    finally:
        stop.set()
        for child in children:
            await asyncio.to_thread(child.join, STOP_SECONDS)
            if child.is_alive():
                child.kill()
                await asyncio.to_thread(child.join)


async def all_ready(children: Sequence[BaseProcess], ready: Any) -> None:
    waiting, deadline = len(children), time.monotonic() + START_SECONDS
    while waiting:
        if await asyncio.to_thread(ready.acquire, timeout=0.2):
            waiting -= 1
        elif dead := [child for child in children if child.exitcode is not None]:
            raise SystemExit(f"a guest process ended with status {dead[0].exitcode} before it served; its lines above say why")
        elif time.monotonic() > deadline:
            raise SystemExit(f"{waiting} of {len(children)} guest processes do not serve after {START_SECONDS:.0f} s")
